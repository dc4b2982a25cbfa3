"""What is measured: a plan of groups, in each of which everything is compared with the first."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import fused_rpr
from omegaconf import OmegaConf

from posexp import config
from posexp.encodings import ENCODINGS, Encoding
from posexp.errors import UserError
from posexp.models.size import Size

# By name also what `all` leaves out.
BY_NAME = {**ENCODINGS, **fused_rpr.ENCODINGS}
PASSES = {  # in searches every translation is as long as its source
  "attention": "one layer's attention alone, forward and backward",
  "forward": "forward pass of evaluation",
  "step": "training step",
  "decode": "greedy search",
  "beam": "beam search",
  "seeds": "training steps of several seeds",
  "devices": "training step of a CPU as one device and as one for each core",
  "start": "from the start of a process to its first step, compiled before",
}
SEARCHES = ("decode", "beam")
IN_TURN, VMAP = "one after another", "in one program"  # ways to train several seeds
ONE, ALL = "one device", "a device for each core"  # ways to train on a CPU
WAYS = {"seeds": (IN_TURN, VMAP), "devices": (ONE, ALL)}  # of passes that compare an encoding's own
JAX = "jax.nn.dot_product_attention"  # another implementation of the pass attention


@dataclasses.dataclass(frozen=True)
class Case:
  """One thing to be measured."""

  work: str  # one of PASSES
  model: str  # encoder, decoder or translator
  name: str  # of the encoding
  options: str  # of the encoding, as typed
  encoding: Encoding
  size: Size
  length: int
  batch: int
  vocabulary: int
  beam: int = 1  # hypotheses of a search
  lines: tuple[int, ...] = ()  # tokens of each text, where they are not all alike
  seeds: int = 1
  way: str = "posexp"  # whose implementation it is; of seeds, how they are trained

  @property
  def label(self) -> str:
    """Its name in a table of its group."""
    parts = [self.name, self.options]
    if self.work == "seeds":
      parts.append(f"{self.seeds} seeds {self.way}")
    elif self.work == "devices":
      parts.append(self.way)
    elif self.way == "posexp":
      parts.append("" if self.size.attention == "auto" else self.size.attention)
    else:
      parts.append(self.way)
    return " ".join(filter(None, parts))

  @property
  def title(self) -> str:
    """What the cases of its group have in common."""
    size, work = self.size, PASSES[self.work]
    if self.work == "beam":
      work += f" of {self.beam}"
    remembered = f" after M={size.memory}" if size.memory else ""
    length = f"{len(self.lines)} lines of L≤{self.length}" if self.lines else f"L={self.length}"
    shape = f"{work}, {self.model}, {length}{remembered}, B={self.batch}, {size.dtype}"
    if self.work == "attention":
      return f"{shape}, {size.num_heads} heads × {size.d_model // size.num_heads}"
    return (
      f"{shape}, d_model {size.d_model}, {size.num_heads} heads, {size.num_layers} layers, "
      f"d_ff {size.d_ff}"
    )

  @property
  def group(self) -> tuple:
    """Equal for cases that are compared with each other."""
    own = (self.name, self.options) if self.work in WAYS else ()
    return (self.work, self.model, self.size.dtype, self.size.d_model, self.length, *own)

  @property
  def tokens(self) -> int:
    """How many tokens one call reads, or, in a search, generates."""
    return sum(self.lines) or self.batch * self.length * self.seeds

  @property
  def rows(self) -> int:
    """How many sequences one call reads."""
    return len(self.lines) or self.batch * self.seeds

  @property
  def flops(self) -> float | None:
    """Additions and multiplications of one call, for the plain Transformer of the same widths.

    2 for every weight of a matrix and token, and attention's two products, of which a causal model
    needs half; the backward pass takes twice the forward pass. Neither what is computed twice nor
    what an encoding adds or saves is counted. None for searches and starts.
    """
    if self.work in (*SEARCHES, "start"):
      return None
    size, length = self.size, self.length
    if self.lines:  # the tokens that a token sees, on average
      length = sum(line * line for line in self.lines) / self.tokens
    seen = length / 2 + size.memory if self.model == "decoder" else length
    attention = 4 * size.d_model * seen
    if self.work == "attention":
      return 3 * attention * self.tokens
    again = 4 * size.d_model**2 * size.memory / length  # keys and values of what the memory holds
    layer = 8 * size.d_model**2 + again + 4 * size.d_model * size.d_ff + attention
    head = 2 * size.d_model * self.vocabulary
    total = size.num_layers * layer
    if self.model == "decoder":
      total += head
    elif self.model == "translator":  # the decoder's own half of attention, and the source's whole
      total = size.num_layers * (2 * layer + 8 * size.d_model**2 + attention / 2) + head
    return total * self.tokens * (1 if self.work == "forward" else 3)


def plan(args: argparse.Namespace) -> tuple[list[list[Case]], list[str]]:
  """Return the groups, each with its baseline first; and remarks on what was left out or changed.

  Raises:
    UserError: an encoding, an option or a size does not exist or does not fit.
  """
  chosen = encodings(args.encodings, args.option)
  groups: dict[tuple, list[Case]] = {}
  notes: dict[str, None] = {}
  lines = words(args.texts) if args.texts else ()
  lengths = [max(lines)] if lines else args.lengths
  for work, dtype, d_model, length in itertools.product(
    args.passes, args.dtype, args.d_model, lengths
  ):
    for name, (options, encoding) in chosen.items():
      if work in WAYS and name not in (args.encodings if args.encodings != ["all"] else chosen):
        continue  # `none` is no baseline there
      fitting = with_positions(name, encoding, length, options)
      if fitting is not encoding:
        notes[f"{name} has as many positions as a sequence, not {encoding.limit}"] = None
      models, note = models_of(args.model, work, name, encoding, chosen)
      notes |= {note: None} if note else {}
      of = (name, options, fitting)
      for model, attention in itertools.product(models, args.attention):
        size = size_of(args, dtype, d_model, attention)
        batch = args.batch or max(1, args.tokens // length)
        texts = whole_batches(lines, batch, model) if lines and work == "step" else lines
        case = Case(work, model, *of, size, length, batch, args.vocabulary, lines=texts)
        for each in variants(case, args):
          groups.setdefault(each.group, []).append(each)
  if not groups:
    raise UserError(f"nothing is left to be measured: {'; '.join(notes)}")
  return list(groups.values()), list(notes)


def words(file: Path) -> tuple[int, ...]:
  """Return how many tokens the lines of a text have, if these are its words, [EOS] counted.

  Raises:
    UserError: it cannot be read, or is empty.
  """
  try:
    found = tuple(len(line.split()) + 1 for line in file.read_text(encoding="utf-8").splitlines())
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f"--texts {file}: {error}") from error
  if not found:
    raise UserError(f"--texts {file}: it is empty")
  return found


def whole_batches(lines: tuple[int, ...], batch: int, model: str) -> tuple[int, ...]:
  """Return the lines of an epoch of steps.

  Raises:
    UserError: they are fewer than a batch, or the model does not read single texts.
  """
  if model != "encoder":
    raise UserError("--texts with the pass step is for encoders: leave --model out")
  if len(lines) < batch:
    raise UserError(f"--texts has {len(lines)} lines, and a batch {batch}: lower --batch")
  return lines[: len(lines) - len(lines) % batch]


def encodings(names: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, Encoding]]:
  """Return each name with its options, as typed, and the encoding; `none` is the first.

  Raises:
    UserError: a name or an option does not exist, or an option is of an encoding not among them.
  """
  chosen = dict.fromkeys(["none", *(ENCODINGS if list(names) == ["all"] else names)])
  for name in chosen:
    if name not in BY_NAME:
      raise config.unknown_name("encoding", name, list(BY_NAME))
  typed: dict[str, list[str]] = {name: [] for name in chosen}
  for option in options:
    name, dot, rest = option.partition(".")
    if not dot or "=" not in rest:
      raise UserError(f"--option {option}: write it as encoding.option=value, as in rpr.k=16")
    if name not in typed:
      raise UserError(f"--option {option}: {name} is not among --encodings {','.join(names)}")
    typed[name].append(rest)
  found = {}
  for name, values in typed.items():
    section = OmegaConf.to_container(OmegaConf.from_dotlist(values))
    found[name] = " ".join(values), config.build(BY_NAME[name], section, name)
  return found


def with_positions(name: str, encoding: Encoding, length: int, options: str) -> Encoding:
  """Return the encoding with positions for `length` tokens.

  Raises:
    UserError: it was given fewer.
  """
  if encoding.limit is None or encoding.limit >= length:
    return encoding
  option = encoding.limited_by
  if f"{option}=" in options:
    raise UserError(
      f"--option {name}.{option}={getattr(encoding, option)}: fewer positions than the "
      f"{length} of --lengths; leave it out or raise it"
    )
  return dataclasses.replace(encoding, **{option: length})


def models_of(
  asked: str, work: str, name: str, encoding: Encoding, chosen: dict[str, tuple[str, Encoding]]
) -> tuple[list[str], str]:
  """Return the models that an encoding is measured in, and a remark if they are not what one
  expects.
  """
  decoders = f"{name} is for decoders alone"
  if work in SEARCHES or asked == "translator":
    if encoding.causal_only:
      return [], f"{decoders}, so that no translator has it in its encoder"
    return ["translator"], ""
  if asked == "decoder":
    return ["decoder"], ""
  if encoding.causal_only:
    return ["decoder"], f"{decoders}: it is measured as one, against none as a decoder"
  both = name == "none" and any(each.causal_only for _, each in chosen.values())
  return ["encoder", "decoder"] if both else ["encoder"], ""


def size_of(args: argparse.Namespace, dtype: str, d_model: int, attention: str) -> Size:
  """Return the size of the model; UserError if there is no such model."""
  fields = {
    "d_model": d_model,
    "num_heads": args.heads,
    "num_layers": args.layers,
    "d_ff": args.d_ff or 4 * d_model,
    "dropout": args.dropout,
    "dtype": dtype,
    "attention": attention,
    "memory": args.memory,
  }
  return config.build(Size, fields, "model")


def variants(case: Case, args: argparse.Namespace) -> Iterator[Case]:
  """Yield the case as often as its pass measures it."""
  if case.work in WAYS:
    for seeds, way in itertools.product(
      args.seeds if case.work == "seeds" else [1], WAYS[case.work]
    ):
      yield dataclasses.replace(case, seeds=seeds, way=way)
    return
  yield dataclasses.replace(case, beam=args.beam) if case.work == "beam" else case
  if (case.work, case.name, case.size.attention) == ("attention", "none", args.attention[0]):
    yield dataclasses.replace(case, way=JAX)
