"""Measure what encodings cost: `python scripts/benchmark.py --encodings rpr,rope`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from posexp.config.arguments import Parser, names, numbers, run

PASSES = {
  "attention": "one layer's relation alone, forward and backward",
  "forward": "what evaluation predicts",
  "step": "the update step of training",
  "decode": "greedy translation, every text as long as its source",
  "beam": "the same by beam search",
  "seeds": "the update steps of several seeds in one program, against one after another",
  "start": "a new process up to the end of its first step, with what was compiled kept",
}
DTYPES = ("float32", "bfloat16")
MODELS = ("auto", "encoder", "decoder", "translator")
COUNTS = ("heads", "layers", "d_ff", "batch", "vocabulary", "beam", "rounds")
EXAMPLES = (
  "passes:\n"
  + "\n".join(f"  {name:<10} {what}" for name, what in PASSES.items())
  + """

examples:
  python scripts/benchmark.py --encodings rpr,transformer_xl --option rpr.k=16 --lengths 64,256
  python scripts/benchmark.py --encodings all --passes attention --lengths 512,2048
  python scripts/benchmark.py --encodings rpr --passes attention --attention reference,auto
  python scripts/benchmark.py --peers --peer-python ~/torch/bin/python --passes step,decode
  python scripts/benchmark.py --encodings rpr --passes seeds --d-model 32,128
  python scripts/benchmark.py --ahead h100 --encodings rpr --dtype bfloat16 --attention fused

All of a table is timed in turn, round by round; ratios are taken within a round, and shown as a
median with the quartiles. none, with the first of --attention, is what the others are held against.
On a busy machine the ratio of CPU time is the steadier one. Ctrl-C keeps what was measured.
"""
)


def arguments(argv: list[str]) -> argparse.Namespace:
  """What was typed.

  Raises:
    UserError: it cannot be understood.
  """
  parser = Parser("", "Measures what encodings cost in time and memory.", EXAMPLES)
  parser.prog = "python scripts/benchmark.py"
  add = parser.add_argument
  add("--encodings", type=names, default=["all"], help="all, or names with commas; default: all")
  add("--option", nargs="+", action="extend", default=[], help="of encodings, as in rpr.k=16")
  add("--passes", type=names, default=["step"], help="see below; default: step")
  add("--lengths", type=numbers, default=[256], help="tokens in a text; default: 256")
  add("--batch", type=int, help="texts in a batch; default: as many as have 2048 tokens")
  add("--d-model", type=numbers, default=[256], help="default: 256")
  add("--heads", type=int, default=4, help="default: 4")
  add("--layers", type=int, default=4, help="default: 4")
  add("--d-ff", type=int, help="default: 4 times d_model")
  add("--vocabulary", type=int, default=8000, help="default: 8000")
  add("--dropout", type=float, default=0.0, help="in training; default: 0")
  add("--dtype", type=names, default=["float32"], help="float32, bfloat16 or both")
  add("--model", choices=MODELS, default="auto", help="auto: an encoder, or a decoder if it must")
  add("--attention", type=names, default=["auto"], help="of auto, reference, blocked, fused")
  add("--beam", type=int, default=4, help="hypotheses of the pass beam; default: 4")
  add("--seeds", type=numbers, default=[4], help="of the pass seeds; default: 4")
  add("--rounds", type=int, default=7, help="default: 7")
  add("--seconds", type=float, default=0.5, help="of each in a round, about; default: 0.5")
  add("--peers", action="store_true", help="x-transformers on PyTorch too, in the same rounds")
  add("--peer-python", metavar="PATH", help="a Python that has it; default: this one")
  add("--ahead", metavar="GPU", help="compile for h100, h200 or 8xh100, which need not be here")
  add("--out", type=Path, default=Path("benchmark"), help="a folder; default: benchmark")
  args = parser.parse_args(argv)
  for name, choices in (("passes", list(PASSES)), ("dtype", DTYPES)):
    for each in getattr(args, name):
      if each not in choices:
        from posexp.config import unknown_name

        raise unknown_name("pass" if name == "passes" else name, each, choices)
  for name in COUNTS:
    if (value := getattr(args, name)) is not None and value < 1:
      parser.error(f"--{name.replace('_', '-')} must be at least 1, not {value}")
  for name in ("lengths", "d_model", "seeds"):
    if min(getattr(args, name)) < 1:
      parser.error(f"--{name.replace('_', '-')} must be at least 1, not {min(getattr(args, name))}")
  if args.seconds < 0:
    parser.error(f"--seconds must be at least 0, not {args.seconds}")
  if args.vocabulary < 8:
    parser.error(f"--vocabulary must be at least 8, not {args.vocabulary}")
  if args.ahead and args.passes != ["step"]:
    parser.error("--ahead compiles the pass step alone")
  if args.peer_python and not args.peers:
    parser.error("--peer-python goes with --peers")
  return args


def benchmark(args: argparse.Namespace, command: str) -> list[dict]:
  """Measures, tells each measurement as it comes, keeps all in a folder; returns the rows.

  Raises:
    UserError: something that was asked for does not exist, or the folder cannot be written.
  """
  if args.ahead:
    from benchmarking import ahead

    return ahead.ahead(args, command)
  import jax
  from benchmarking import cases, machine, output, tables
  from benchmarking.measure import Stopped, measure

  from posexp.training.devices import prepare

  prepare()

  jax.config.update("jax_enable_compilation_cache", False)  # what is compiled is timed
  groups, notes = cases.plan(args)
  output.writable(args.out)
  peer = None
  if args.peers:
    from benchmarking.peers import Peer

    peer = Peer(args.peer_python, machine.threads(), jax.default_backend())
  about = output.about(command, notes, peer)
  print("\n".join(about))
  rows: list[dict] = []
  stopped = False
  try:
    for found in measure(groups, peer, args.rounds, args.seconds, tell):
      rows += found
      tell("\n".join(map(tables.line, found)))
      output.write(args.out, rows, about)
  except Stopped:
    stopped = True
  finally:
    if peer is not None:
      peer.close()
  for table in tables.tables(rows):
    print(f"\n{tables.terminal(table)}")
  if stopped:
    print(f"\nstopped; {len(rows)} rows are kept", file=sys.stderr)
  if rows:
    print(f"\nin {args.out}: {', '.join(output.draw(args.out, rows))}")
  if stopped:
    raise KeyboardInterrupt
  return rows


def tell(line: str) -> None:
  """Shows a line at once, also through a pipe."""
  print(line, flush=True)


def main() -> None:
  """The command line."""
  command = shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]])
  run(lambda argv: benchmark(arguments(argv), command))


if __name__ == "__main__":
  main()
