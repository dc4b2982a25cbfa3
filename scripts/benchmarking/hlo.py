"""Reads a compiled program: which kernels it launches, what they compute and what they move.

The text that XLA gives of it (HLO) says of each instruction its name, its type, what it does and
what it is given. An instruction of the entry computation is a kernel, one in a loop as many kernels
as the loop has turns. What a fusion computes is in a computation of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

FREE = (  # no kernels, but names for what is there, and the ends of what was begun
  "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "opt-barrier",
  "add-dependency", "partition-id", "replica-id",
)  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
SLICES = ("slice", "dynamic-slice", "gather")  # read of their first operand what they give
# Products of queries, keys, values and their gradients that a kernel of attention computes.
CUDNN = {"forward": 2, "backward": 5}
OWN = {"forward_kernel": 2, "query_kernel": 3, "key_kernel": 4}
HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")


class Array(NamedTuple):
  """The type of an array."""

  dtype: str
  shape: tuple[int, ...]

  @property
  def bytes(self) -> float:
    """In memory."""
    bits = re.search(r"\d+", self.dtype)
    return math.prod(self.shape) * (int(bits.group()) / 8 if bits else 1)


class Instruction(NamedTuple):
  """A line of a computation."""

  name: str
  root: bool
  arrays: tuple[Array, ...]  # its results
  op: str
  operands: tuple[str, ...]
  attributes: str

  @property
  def bytes(self) -> float:
    """Of its results."""
    return sum(each.bytes for each in self.arrays)

  def attribute(self, pattern: str) -> str:
    """Return the first group of what is found among the attributes, or nothing."""
    found = re.search(pattern, self.attributes)
    return found.group(1) if found else ""


Computation = dict[str, Instruction]


class Kernel(NamedTuple):
  """A kernel, as often as it is launched."""

  kind: str  # attention, product, collective or other
  name: str  # of who computes it: cuDNN, a kernel of our own, Triton, cuBLAS or XLA
  times: int
  flops: float  # of products alone
  dtype: str  # of these products, if there are any
  bytes: float  # read and written, or given and taken by a collective


def closing(text: str) -> int:
  """Return where the parenthesis closes that the text begins with."""
  depth = 0
  for place, letter in enumerate(text):
    depth += (letter == "(") - (letter == ")")
    if depth == 0:
      return place
  raise ValueError(f"not HLO: {text[:80]}")


def instruction(root: bool, name: str, text: str) -> Instruction:
  """`name = type op(operands), attributes`."""
  end = closing(text) + 1 if text[0] == "(" else text.index(" ")
  found = re.findall(r"(\w+)\[([\d,]*)\]", text[:end])
  arrays = tuple(
    Array(dtype, tuple(map(int, filter(None, dims.split(","))))) for dtype, dims in found
  )
  op, _, rest = text[end:].strip().partition("(")
  rest = "(" + rest
  close = closing(rest)
  operands = tuple(re.findall(r"%([\w.\-]+)", rest[:close]))
  return Instruction(name, root, arrays, op, operands, rest[close + 1 :])


class Program:
  """The computations of a program, by name."""

  def __init__(self, text: str):
    self.computations: dict[str, Computation] = {}
    for line in text.splitlines():
      if head := HEAD.match(line):
        found: Computation = {}
        self.computations[head.group(2)] = found
        if head.group(1):
          self.entry = head.group(2)
      elif self.computations and (parts := LINE.match(line)):
        found[parts.group(2)] = instruction(bool(parts.group(1)), *parts.group(2, 3))

  def kernels(self) -> list[Kernel]:
    """Of the whole program."""
    return list(self.launched(self.entry, 1))

  def launched(self, name: str, times: int) -> Iterator[Kernel]:
    """Yield the kernels of a computation that is done so many times. Of branches, the longest
    counts.
    """
    of = self.computations[name]
    for each in of.values():
      if each.op == "while":
        turns = int(each.attribute(r'"known_trip_count":\{"n":"(\d+)"') or 1)
        yield from self.launched(each.attribute(r"body=%?([\w.\-]+)"), times * turns)
      elif each.op == "conditional":
        branches = re.findall(r"%([\w.\-]+)", each.attribute(r"branch_computations=\{([^}]*)\}"))
        branches += re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", each.attributes)
        ways = [list(self.launched(branch, times)) for branch in branches]
        yield from max(ways, key=lambda way: sum(kernel.bytes for kernel in way))
      elif each.op in ("call", "async-start"):
        yield from self.launched(each.attribute(r"(?:to_apply|calls)=%?([\w.\-]+)"), times)
      elif each.op not in FREE and not each.op.endswith("-done"):
        yield self.kernel(of, each, times)

  def kernel(self, of: Computation, it: Instruction, times: int) -> Kernel:
    """Return what an instruction of a computation is."""
    plain = it.op.removesuffix("-start")
    if plain in COLLECTIVES:
      largest = max(it.arrays, key=lambda array: array.bytes)
      both = len(it.operands) if plain == "all-reduce" else 1  # several are reduced at once
      moved = it.bytes if both > 1 else largest.bytes
      return Kernel("collective", plain, times, 0, "", times * moved)
    moved = times * self.moved(of, it)
    if it.op == "custom-call":
      target = it.attribute(r'custom_call_target="([^"]+)"')
      if target.startswith("__cudnn$fmha"):
        way = "backward" if "Backward" in target else "forward"
        flops = CUDNN[way] * self.pairs(of, it, "CAUSAL" in it.attributes)
        return Kernel("attention", f"cuDNN {way}", times, times * flops, "bf16", moved)
      if target.endswith("triton"):
        name = it.attribute(r'\bname = "(\w+)"')
        count = OWN[name.removeprefix("causal_")]
        flops = count * self.pairs(of, it, name.startswith("causal_"))
        return Kernel("attention", name, times, times * flops, "bf16", moved)
      if target.startswith("__cublas"):
        axes = it.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
        left = of[it.operands[0]].arrays[0]
        flops = product(left, it.arrays[0], axes.replace('"', ""))
        return Kernel("product", "cuBLAS", times, times * flops, left.dtype, moved)
      return Kernel("other", target, times, 0, "", moved)
    flops, dtype = self.products(of, it)
    if not flops:
      return Kernel("other", it.op, times, 0, "", moved)
    name = "Triton" if "__triton" in it.attributes else it.op
    return Kernel("product", name, times, times * flops, dtype, moved)

  def pairs(self, of: Computation, it: Instruction, causal: bool) -> float:
    """FLOPs of one product in attention, whose first operands in bfloat16 are queries and keys."""
    q, k = [
      array for name in it.operands for array in of[name].arrays[:1]
      if array.dtype == "bf16" and len(array.shape) == 4
    ][:2]  # fmt: skip
    batch, queries, heads, width = q.shape
    return 2 * batch * queries * heads * width * k.shape[1] * (0.5 if causal else 1)

  def products(self, of: Computation, it: Instruction) -> tuple[float, str]:
    """FLOPs of the products of an instruction, and the dtype of the first of them."""
    if it.op == "dot":
      left = of[it.operands[0]].arrays[0]
      axes = it.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
      return product(left, it.arrays[0], axes), left.dtype
    if it.op != "fusion":
      return 0, ""
    of = self.computations[it.attribute(r"calls=%?([\w.\-]+)")]
    found = [self.products(of, each) for each in of.values()]
    return sum(flops for flops, _ in found), next((dtype for _, dtype in found if dtype), "")

  def moved(self, of: Computation, it: Instruction) -> float:
    """Bytes that an instruction reads and writes, each array once, and of slices only these."""
    sizes = [of[name].bytes for name in it.operands]
    if it.op in SLICES:
      return 2 * it.bytes
    if it.op == "dynamic-update-slice":
      return 2 * sizes[1]
    if it.op != "fusion":
      return sum(sizes) + it.bytes
    inner = self.computations[it.attribute(r"calls=%?([\w.\-]+)")]
    (root,) = (each for each in inner.values() if each.root)
    total = written(inner, root)
    for each in inner.values():
      if each.op == "parameter":
        total += min(each.bytes, read(inner, each))
    return total


def product(left: Array, result: Array, axes: str) -> float:
  """FLOPs of a product of matrices, in which these axes of the first are summed over."""
  summed = math.prod(left.shape[int(axis)] for axis in axes.split(",") if axis)
  return 2 * math.prod(result.shape) * summed


def read(of: Computation, it: Instruction) -> float:
  """Bytes that the users of a value read of it."""
  total = 0.0
  for user in of.values():
    if it.name not in user.operands:
      continue
    first = it.name == user.operands[0] and it.name not in user.operands[1:]
    if user.op in SLICES and first:
      total += user.bytes
    elif user.op == "bitcast":
      total += read(of, user)
    elif not (user.op == "dynamic-update-slice" and first):  # which is done where the value is
      return it.bytes
  return total


def written(of: Computation, root: Instruction) -> float:
  """Bytes that a computation writes."""
  if root.op == "tuple":
    return sum(written(of, of[name]) for name in root.operands)
  if root.op == "bitcast":
    return written(of, of[root.operands[0]])
  if root.op == "dynamic-update-slice":
    return of[root.operands[1]].bytes
  return root.bytes
