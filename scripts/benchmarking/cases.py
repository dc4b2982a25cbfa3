"""What is measured: a plan of groups, in each of which everything is held against the first."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from posexp import config
from posexp.errors import UserError

if TYPE_CHECKING:
  from posexp.encodings import Encoding
  from posexp.models.transformer import Size

PASSES = ("attention", "forward", "step", "decode", "beam", "seeds", "start")
SEARCHES = ("decode", "beam")
APART, TOGETHER = "one after another", "in one program"  # ways of seeds
JAX = "jax.nn.dot_product_attention"  # who else does the pass attention, without positions
TOKENS = 2048  # of a batch whose rows are not given


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
  beam: int = 1  # hypotheses, of a search
  seeds: int = 1
  way: str = "posexp"  # or whose implementation it is; of seeds, how they are trained

  @property
  def label(self) -> str:
    """What it is called in a table of its group."""
    parts = [self.name, self.options]
    if self.work == "seeds":
      parts.append(f"{self.seeds} seeds {self.way}")
    elif self.way == "posexp":
      parts.append("" if self.size.attention == "auto" else self.size.attention)
    else:
      parts.append(self.way)
    return " ".join(filter(None, parts))

  @property
  def tokens(self) -> int:
    """How many tokens one call takes in, or, of a search, gives out."""
    return self.batch * self.length * self.seeds

  @property
  def flops(self) -> float | None:
    """Additions and multiplications of one call: those of the plain Transformer of these widths.

    2 for every weight of a matrix and token, and attention's two products, of which a causal model
    needs half; the backward pass takes twice the forward pass. Nothing that is computed again
    counts, nor what an encoding adds or, in half as many weights, saves.
    """
    if self.work in (*SEARCHES, "start"):
      return None
    size, length = self.size, self.length
    seen = length / 2 if self.model == "decoder" else length
    attention = 4 * seen * size.d_model
    if self.work == "attention":
      return 3 * attention * self.tokens
    layer = 8 * size.d_model**2 + 4 * size.d_model * size.d_ff + attention
    head = 2 * size.d_model * self.vocabulary
    total = size.num_layers * layer
    if self.model == "decoder":
      total += head
    elif self.model == "translator":  # the decoder's own half of attention, and the source's whole
      total = size.num_layers * (2 * layer + 8 * size.d_model**2 + attention / 2) + head
    return total * self.tokens * (1 if self.work == "forward" else 3)


class Shape(NamedTuple):
  """What the cases of a group have in common."""

  work: str
  model: str
  dtype: str
  d_model: int
  length: int
  of: str = ""  # the encoding, where the group is about one


def shape(case: Case) -> Shape:
  """The group of a case."""
  alone = case.label.split(" seeds ")[0] if case.work == "seeds" else ""
  return Shape(case.work, case.model, case.size.dtype, case.size.d_model, case.length, alone)


def encodings(names: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, Encoding]]:
  """Each name with its options, as typed, and the encoding; `none` is the first.

  Raises:
    UserError: a name or an option does not exist, or an option is of an encoding not among them.
  """
  from omegaconf import OmegaConf

  from posexp.encodings import ENCODINGS

  chosen = dict.fromkeys(["none", *(ENCODINGS if list(names) == ["all"] else names)])
  for name in chosen:
    if name not in ENCODINGS:
      raise config.unknown_name("encoding", name, list(ENCODINGS))
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
    found[name] = " ".join(values), config.build(ENCODINGS[name], section, name)
  return found


def reaching(name: str, encoding: Encoding, length: int, options: str) -> Encoding:
  """The encoding with positions for `length` tokens.

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


def plan(args) -> tuple[list[list[Case]], list[str]]:
  """The groups, each with what the others are held against first; and what is to be said of it.

  Raises:
    UserError: an encoding, an option or a size does not exist or does not suit.
  """
  chosen = encodings(args.encodings, args.option)
  groups: dict[Shape, list[Case]] = {}
  notes = []
  for work, dtype, d_model, length in itertools.product(
    args.passes, args.dtype, args.d_model, args.lengths
  ):
    for name, (options, encoding) in chosen.items():
      if work == "seeds" and name not in (args.encodings if args.encodings != ["all"] else chosen):
        continue  # these are held against themselves
      fitting = reaching(name, encoding, length, options)
      if fitting is not encoding:
        told = f"{name} has as many positions as a text has tokens, not {encoding.limit}"
        notes += [] if told in notes else [told]
      for model in models(args.model, work, name, encoding, chosen, notes):
        for case in _cases(args, work, model, (name, options, fitting), dtype, d_model, length):
          groups.setdefault(shape(case), []).append(case)
  if not groups:
    raise UserError(f"nothing is left to be measured: {'; '.join(notes)}")
  return list(groups.values()), notes


def models(asked: str, work: str, name: str, encoding, chosen, notes: list[str]) -> list[str]:
  """As what an encoding is measured: an encoder if it can be one and nothing else is asked."""
  only = encoding.causal_only
  if work in SEARCHES or asked == "translator":
    if only:
      told = f"{name} is for decoders alone, so that no translator has it in its encoder"
      notes += [] if told in notes else [told]
    return [] if only else ["translator"]
  if asked == "decoder":
    return ["decoder"]
  if only:
    told = f"{name} is for decoders alone: it is measured as one, against none as a decoder"
    notes += [] if told in notes else [told]
    return ["decoder"]
  others = [each for _, each in chosen.values() if each.causal_only]
  return ["encoder", "decoder"] if name == "none" and others else ["encoder"]


def _cases(args, work, model, of, dtype: str, d_model: int, length: int) -> Iterator[Case]:
  """The cases of one encoding in one group."""
  name, options, encoding = of
  batch = args.batch or max(1, TOKENS // length)
  for attention in args.attention:
    fields = {
      "d_model": d_model,
      "num_heads": args.heads,
      "num_layers": args.layers,
      "d_ff": args.d_ff or 4 * d_model,
      "dropout": args.dropout,
      "dtype": dtype,
      "attention": attention,
    }
    case = Case(
      work, model, name, options, encoding, size_of(fields), length, batch, args.vocabulary
    )
    if work == "beam":
      case = dataclasses.replace(case, beam=args.beam)
    if work != "seeds":
      yield case
      if work == "attention" and name == "none" and attention == args.attention[0]:
        yield dataclasses.replace(case, way=JAX)
      continue
    for seeds in args.seeds:
      for way in (APART, TOGETHER):
        yield dataclasses.replace(case, seeds=seeds, way=way)


def size_of(fields: dict) -> Size:
  """The size of the model.

  Raises:
    UserError: there is no such model.
  """
  from posexp.models.transformer import Size

  return config.build(Size, fields, "model")
