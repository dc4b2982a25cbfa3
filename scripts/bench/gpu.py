"""Check and measure what only a GPU can show, and say which defaults should change: `make gpu`."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import benchmark
import jax
from benchmarking import output, proof, rows
from benchmarking.cases import BY_NAME, JAX
from benchmarking.defaults import advice
from benchmarking.measure import reason
from benchmarking.rows import Row

from posexp.config import unknown_name
from posexp.config.arguments import Parser, names, run
from posexp.errors import UserError
from posexp.kernels.target import Target
from posexp.models import attention

ENOUGH = "--rounds 5 --seconds 0.1"
FORMS = f"--passes attention --d-model 512 --heads 8 --tokens 16384 {ENOUGH}"
ALL_FORMS = f"{FORMS} --attention reference,blocked,fused --dtype bfloat16"
# What is done, each in a folder of its own, by the options of benchmark.py. A folder's part is the
# first part of its name. `fused_rpr` comes last: if its kernel brings the process down, the
# others' rows are there.
WORK = {
  "check": "",
  "steps": "--passes step --encodings rope,rpr --option rpr.k=16 --d-model 64,128,256,512 "
  f"--heads 8 --lengths 256 --batch 64 --dtype float32,bfloat16 {ENOUGH}",
  "search": "--passes decode,beam --encodings rope --layers 3 --lengths 32 --batch 128 "
  f"--dtype float32,bfloat16 {ENOUGH}",
  "seeds": "--passes seeds --seeds 2,8 --encodings none --d-model 64,128,256,512 --layers 2 "
  f"--lengths 32 --batch 32 {ENOUGH}",
  "attention": f"{ALL_FORMS} --encodings rope,alibi,t5,transformer_xl,fused_rpr "
  "--lengths 128,512,2048,8192",
  "attention/causal": f"{ALL_FORMS} --encodings rope,fused_rpr --model decoder "
  "--lengths 512,2048,8192",
  "attention/float32": f"{FORMS} --attention reference,blocked --encodings rpr "
  "--lengths 512,2048,8192",
}
TINY = "--heads 2 --layers 1 --vocabulary 20 --batch 2 --rounds 3 --seconds 0"  # a rehearsal
TINY_CHECK = ("none", "t5", "cope", "fused_rpr"), (7,)
# FLOPs a second, dense, in bfloat16: NVIDIA's data sheets, the SXM form.
PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
PARTS = list(dict.fromkeys(name.partition("/")[0] for name in WORK))
EXAMPLES = """\
parts:
  check      attention by every kernel against its definition: forward, gradients, bfloat16, masks
  steps      training steps and MFU
  search     greedy and beam search
  seeds      several seeds in one program against one after another
  attention  one layer's attention by its definition, in blocks and by kernels, by length

examples:
  make gpu                                            all parts on this GPU
  make gpu ARGS="--parts check,attention"             some of them; files of the others stay
  python scripts/bench/gpu.py --rehearse --out rehearsal    on a CPU, at tiny sizes

All parts take about 35 minutes on an H100 with 16 cores, nearly all of it for compiling: check 7,
steps 8, search 4, seeds 2 and attention 14, of which only check and the first of attention's three
folders were timed whole. Each folder runs in a process of its own, so that the rest goes on if one
fails; the exit status is then 1.
"""
ABOUT = """\
A default should change where another way is at least 1.05 times as fast, its slow quartile against
the default's fast one; all else stays. `none` stands for every encoding of the embedding alone.
`fused` is for dropout=0 and consecutive positions. bfloat16 rounds what layers pass on: whether a
model learns as well in it, its own runs must say. Memory is in the tables."""


class Device(NamedTuple):
  platform: str
  name: str


def device() -> Device:
  """Return the first device of this process; UserError if JAX does not start."""
  try:
    return Device(jax.default_backend(), jax.devices()[0].device_kind)
  except RuntimeError as error:  # as with JAX_PLATFORMS=cuda and no GPU
    raise UserError(reason(error)) from error


def apart(work: Callable[..., Any], *args: Any) -> Any:
  """Return the result of work in a process of its own, which alone ends if the GPU does not survive
  it.

  Raises:
    BrokenProcessPool: the process died.
  """
  with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
    return pool.submit(work, *args).result()


def do(name: str, out: Path, rehearse: bool) -> dict[str, str]:
  """Do one of `WORK`, write its files, and return what failed, with the reasons."""
  folder = out / name
  for file in folder.glob("*.csv"):
    file.unlink()
  # XLA takes what cuDNN would get, and interprets the kernel of `fused_rpr`.
  stand_in = mock.patch.object(attention, "target", return_value=Target("gpu"))
  with stand_in if rehearse else contextlib.nullcontext():
    if name == "check":
      return check(folder, *(TINY_CHECK if rehearse else (BY_NAME, proof.LENGTHS)))
    argv, failed = [*WORK[name].split(), "--out", str(folder)], {}
    if rehearse:
      sizes = (
        "--d-model 16 --lengths 8,16" if "attention" in name else "--d-model 16,32 --lengths 8"
      )
      argv += f"{TINY} {sizes}".split()
    said = shlex.join(["python", "scripts/bench/benchmark.py", *argv])
    benchmark.benchmark(benchmark.arguments(argv), said, failed)
    return failed


def check(folder: Path, encodings: Iterable[str], lengths: Sequence[int]) -> dict[str, str]:
  """Compare kernels with their definition, tell and write it; return what differs."""
  found: list[Row] = []
  for row in proof.check(encodings, lengths):
    found.append(row)
    print(f"  {proof.label(row)}: {row['equal']}", flush=True)
    output.write(folder, {"check.csv": rows.as_csv(found, proof.COLUMNS)})
  return {proof.label(row): row["reason"] for row in found if row["equal"] == "no"}


def page(out: Path, title: str, failures: list[Row]) -> str:
  """Return what all files of a folder say, in short; Markdown."""
  checks = rows.read(out / "check" / "check.csv")
  measured = {name: rows.read(out / name / "benchmark.csv") for name in WORK}
  found = advice([row for each in measured.values() for row in each], checks)
  reasons: dict[str, list[str]] = {}
  for failure in failures:
    reasons.setdefault(failure["reason"], []).append(f"{failure['part']}: {failure['what']}")
  sections = {
    "Defaults that should change": [each.text for each in found if each.change],
    "Defaults that stay": [each.text for each in found if not each.change],
    "What failed": [f"{why}\n  - " + "\n  - ".join(what) for why, what in reasons.items()],
    "What was measured": [*figures(checks, measured, title)],
  }
  parts = [f"# {title}", f"{output.versions()}.", ABOUT]
  for heading, lines in sections.items():
    parts += [f"## {heading}", "\n".join(f"- {line}" for line in lines or ["nothing"])]
  return "\n\n".join(parts) + "\n"


def figures(checks: list[Row], measured: dict[str, list[Row]], name: str) -> Iterator[str]:
  """Yield a line for each folder, and one for what MFU is reckoned with."""
  if checks:
    compared = [row["equal"] for row in checks if row["length"]]
    equal = compared.count("yes")
    yield f"[check](check/check.csv): {equal} of {len(compared)} comparisons are equal"
  peaks: dict[str, float] = {}
  for folder, found in measured.items():
    for row in found:
      peaks[row["dtype"]] = max(peaks.get(row["dtype"], 0), row["ceiling_gflops_per_s"] / 1e3)
    if own := [row for row in found if row["by"] != JAX]:
      by, form = (
        ("rows_per_s", "{:,.0f} sentences/s") if folder == "search" else ("mfu", "MFU {:.1%}")
      )
      best = max(own, key=lambda row: row[by])
      where = f"{best['label']}, {best['dtype']}, d_model {best['d_model']}, L={best['length']}"
      yield f"[{folder}]({folder}/benchmark.csv): at the best {form.format(best[by])} ({where})"
  if peaks:
    reached = ", ".join(f"{peak:,.3g} TFLOP/s in {dtype}" for dtype, peak in peaks.items())
    makers = PEAKS.get(name)
    makers = f"; its maker says {makers / 1e12:,.0f} in bfloat16" if makers else ""
    yield f"a large matrix product, of which MFU is a share, reaches {reached}{makers}"


def arguments(argv: list[str]) -> argparse.Namespace:
  """Return the options; UserError if they cannot be understood."""
  parser = Parser(
    "", f"Checks and measures this GPU, and says which defaults to change.\n\n{EXAMPLES}"
  )
  parser.prog = "python scripts/bench/gpu.py"
  add = parser.add_argument
  add("--parts", type=names, default=PARTS, help=f"of {','.join(PARTS)}; default: all")
  add("--out", type=Path, help="a folder; default: docs/benchmarks/DEVICE")
  add("--rehearse", action="store_true", help="tiny, and the CPU in place of a GPU; needs --out")
  args = parser.parse_args(argv)
  for part in args.parts or [""]:
    if part not in PARTS:
      raise unknown_name("part", part, PARTS)
  if args.rehearse and not args.out:
    parser.error("--rehearse needs --out, for what it writes is of no GPU")
  return args


def main(argv: list[str]) -> bool:
  """Do all that is asked for; return whether all of it went well.

  Raises:
    UserError: an option cannot be understood, or the folder cannot be written.
  """
  args = arguments(argv)
  # One GPU: models would divide their batches among all of them, and attention would not.
  os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
  if args.rehearse:
    os.environ["JAX_PLATFORMS"] = "cpu"
  found = apart(device)  # this process leaves the GPU, and its memory, to those that measure
  if found.platform != "gpu" and not args.rehearse:
    print(
      "JAX finds no GPU here (`make gpu` installs JAX for one of NVIDIA's), so nothing was checked "
      "or measured; --rehearse --out FOLDER goes through all of it on this CPU"
    )
    return True
  slug = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
  out = args.out or Path("docs/benchmarks") / slug
  output.check_writable(out)
  title = found.name if not args.rehearse else "A rehearsal: nothing here was measured on a GPU"
  failures = rows.read(out / "failures.csv")
  went_well = True
  for name in (name for name in WORK if name.partition("/")[0] in args.parts):
    print(f"\n{name}", flush=True)
    began = time.monotonic()
    try:
      mine = apart(do, name, out, args.rehearse)
    except Exception as error:  # the process died, or the device with it
      mine = {"all that is missing": reason(error)}
    print(f"{name}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    went_well &= not mine
    failures = [row for row in failures if row["part"] != name]
    failures += [{"part": name, "what": what, "reason": why} for what, why in mine.items()]
    text = page(out, title, failures)
    kept = rows.as_csv(failures, ("part", "what", "reason"))
    output.write(out, {"README.md": text, "failures.csv": kept})
  print(f"\n{text}\nin {out}", flush=True)
  return went_well


if __name__ == "__main__":
  run(lambda argv: main(argv) or sys.exit(1))
