"""Measure what encodings cost: `python scripts/bench/benchmark.py --encodings rpr,rope`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import jax
from benchmarking import cases, output, tables
from benchmarking.measure import Stopped, measure
from benchmarking.peers import X_TRANSFORMERS, Peer

from posexp.config import unknown_name
from posexp.config.arguments import Parser, names, numbers, run
from posexp.machine import cores
from posexp.training.devices import prepare

CHOICES = {"passes": list(cases.PASSES), "dtype": ["float32", "bfloat16"]}
MODELS = ("auto", "encoder", "decoder", "translator")
RECURRING = {"forward", "step"}  # passes in which a model may have a memory
COUNTS = ("heads", "layers", "d_ff", "batch", "tokens", "beam", "rounds", "lengths", "d_model")
COUNTS += ("seeds",)
EXAMPLES = (
  "passes:\n"
  + "\n".join(f"  {name:<10} {what}" for name, what in cases.PASSES.items())
  + """

examples:
  python scripts/bench/benchmark.py --encodings rpr,split --option rpr.k=16 --lengths 64,256
  python scripts/bench/benchmark.py --encodings all --passes attention --lengths 512,2048
  python scripts/bench/benchmark.py --encodings rpr --passes attention --attention reference,auto
  python scripts/bench/benchmark.py --peers --peer-python ~/torch/bin/python --passes step,decode
  python scripts/bench/benchmark.py --encodings rpr --passes seeds --d-model 32,128

The cases of a table are timed in turn, round by round. Ratios are taken within a round, to none
with the first of --attention, and shown as a median with the quartiles. On a busy machine the ratio
of CPU time is the steadier one. Ctrl-C keeps what was measured.
"""
)


def parser_of(script: str, description: str, examples: str) -> Parser:
  """Return a parser for one of the scripts that measure."""
  parser = Parser("", f"{description}\n\n{examples}")
  parser.prog = f"python scripts/{script}.py"
  add = parser.add_argument
  add("--encodings", type=names, default=["all"], help="all, or names with commas; default: all")
  add("--option", nargs="+", action="extend", default=[], help="of encodings, as in rpr.k=16")
  add("--passes", type=names, default=["step"], help="see below; default: step")
  add("--lengths", type=numbers, default=[256], help="tokens in a sequence; default: 256")
  add("--texts", type=Path, metavar="FILE", help="lines, each as long as its words")
  add("--batch", type=int, help="sequences in a batch; default: as many as have --tokens")
  add("--tokens", type=int, default=2048, help="of a batch without --batch; default: 2048")
  add("--d-model", type=numbers, default=[256], help="default: 256")
  add("--heads", type=int, default=4, help="default: 4")
  add("--layers", type=int, default=4, help="default: 4")
  add("--d-ff", type=int, help="default: 4 times d_model")
  add("--vocabulary", type=int, default=8000, help="default: 8000")
  add("--dropout", type=float, default=0.0, help="in training; default: 0")
  add("--dtype", type=names, default=["float32"], help="float32, bfloat16 or both")
  add("--model", choices=MODELS, default="auto", help="auto: an encoder, or a decoder if it must")
  add("--memory", type=int, default=0, help="slots of a decoder's memory; default: 0, none")
  add("--attention", type=names, default=["auto"], help="of auto, reference, blocked, fused")
  add("--beam", type=int, default=4, help="hypotheses of the pass beam; default: 4")
  add("--seeds", type=numbers, default=[4], help="of the pass seeds; default: 4")
  add("--rounds", type=int, default=7, help="default: 7")
  add("--seconds", type=float, default=0.5, help="of each in a round, about; default: 0.5")
  add("--peers", action="store_true", help="x-transformers on PyTorch too, in the same rounds")
  add("--peer-python", metavar="PATH", help="a Python that has a peer's modules; default: this one")
  add("--out", type=Path, default=Path("benchmark"), help="a folder; default: benchmark")
  return parser


def arguments(argv: list[str], parser: Parser | None = None) -> argparse.Namespace:
  """Return the options, by default of this script.

  Raises:
    UserError: they cannot be understood.
  """
  what = "Measures what encodings cost in time and memory."
  parser = parser or parser_of("benchmark", what, EXAMPLES)
  args = parser.parse_args(argv)
  for option, choices in CHOICES.items():
    for each in getattr(args, option):
      if each not in choices:
        raise unknown_name(option.replace("passes", "pass"), each, choices)
  for name in COUNTS:
    values = getattr(args, name)
    least = min(values) if isinstance(values, list) else values
    if least is not None and least < 1:
      parser.error(f"--{name.replace('_', '-')} must be at least 1, not {least}")
  parser.check_least(args, seconds=0, vocabulary=8)
  if args.peer_python and not args.peers:
    parser.error("--peer-python goes with --peers")
  if args.texts and not {"step", *cases.SEARCHES}.issuperset(args.passes):
    parser.error("--texts goes with the passes step, decode and beam")
  if args.memory and (args.model != "decoder" or not RECURRING.issuperset(args.passes)):
    parser.error("--memory goes with --model decoder and the passes forward and step")
  return args


def peer_of(args: argparse.Namespace) -> Peer | None:
  """Whom posexp is measured beside; UserError if it cannot be started."""
  if not args.peers:
    return None
  return Peer(X_TRANSFORMERS, args.peer_python, cores(), jax.default_backend())


def benchmark(
  args: argparse.Namespace, command: str, failed: dict[str, str] | None = None
) -> list[dict]:
  """Measure, print each measurement as it comes, write all to a folder; return the rows.

  What fails ends the benchmark, or, if `failed` is given, goes there with the reason.

  Raises:
    UserError: something that was asked for does not exist, or the folder cannot be written.
  """
  prepare()
  jax.config.update("jax_enable_compilation_cache", False)  # compiling is timed
  groups, notes = cases.plan(args)
  output.check_writable(args.out)
  peer = peer_of(args)
  about = output.about(command, notes, peer.about if peer else "")
  print("\n".join(about))
  rows: list[dict] = []
  stopped = False
  try:
    for found in measure(groups, peer, args.rounds, args.seconds, failed):
      rows += found
      print("\n".join(map(tables.line, found)), flush=True)
      output.write_rows(args.out, rows, about)
  except Stopped:
    stopped = True
  finally:
    if peer is not None:
      peer.close()
  for table in tables.tables(rows):
    print(f"\n{table.terminal()}")
  if stopped:
    print(f"\nstopped; {len(rows)} rows are kept", file=sys.stderr)
  if rows:
    print(f"\nin {args.out}: {', '.join(output.draw(args.out, rows))}")
  if stopped:
    raise KeyboardInterrupt
  return rows


def main() -> None:
  """Run the command line."""
  command = shlex.join(["python", "scripts/bench/benchmark.py", *sys.argv[1:]])
  run(lambda argv: benchmark(arguments(argv), command))


if __name__ == "__main__":
  main()
