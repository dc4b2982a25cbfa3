"""Write a run as a folder that Hugging Face's transformers loads, with its tokenizer and a card.

examples:
  python -m posexp.export runs/sympy/rope/0a1b2c3d4e5f/seed=0 llama
  python -m posexp.export RUN FOLDER

FOLDER then holds config.json, model.safetensors, generation_config.json, the tokenizer and a
README.md with the task, the data, the encoding, the versions and the results. It can be read again:
python -m posexp.inspect hf:FOLDER.

A language model is written if an architecture of transformers is the same model: GPT-2 with learned
positions; Llama, Mistral, Qwen 2 and 3 and SmolLM3 with rotary ones, with their scalings, windows
and layers without positions. What all of them need: model.embed_scale=none and model.norm=pre; the
latter also model.norm_kind=rms, model.feed_forward=swiglu, model.bias=none and rope.layout=half;
GPT-2 model.bias=qkv+out+feed_forward and model.feed_forward=gelu_tanh. Otherwise the message names
the option that stands in the way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from posexp.config import show_options
from posexp.config.arguments import Parser, command
from posexp.errors import UserError, near
from posexp.runs import Run

SPLITS = ("test/", "validation/")
FILES = ("train", "validation", "test")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("export", __doc__)
  parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a language model's run")
  parser.add_argument("folder", type=Path, metavar="FOLDER", help="is made, or was written before")
  return parser.parse_args(argv)


def export(args: argparse.Namespace) -> list[Path]:
  """Write the folder, and print its files.

  Raises:
    UserError: the run cannot be opened, or is no model that transformers has.
  """
  from flax import nnx

  from posexp.models.transformer import Size
  from posexp.released import export as released
  from posexp.tasks.language_modeling import LanguageModeling
  from posexp.training.devices import prepare
  from posexp.training.restore import open_alone

  prepare()
  why = "posexp.export writes language models"
  trained = open_alone(args.run, LanguageModeling, why)
  run, spec = trained.run, trained.spec
  if not isinstance(spec.size, Size):
    raise UserError(f"{args.run}: model={spec.size.backbone} is no Transformer, and {why}")
  params = nnx.state(trained.snapshot.model(), nnx.Param)
  assert isinstance(trained.setup.task, LanguageModeling)
  length = trained.setup.task.segment
  kept = json.loads((run.path / "tokenizer.json").read_text(encoding="utf-8"))
  tokens = released.tokens_of(kept)
  model = released.Exported(spec.encoding, spec.size, spec.vocab_size, length, params, tokens)
  files = released.export(model, args.folder, card(run))
  print(*map(near, files), sep="\n")
  if tokens.tokenizer is None:
    why = f"transformers has none for task.tokenizer={kept['kind']}"
    print(f"no tokenizer.json, as {why}: give it the numbers of tokens")
  return files


def card(run: Run) -> str:
  """Return what is said of a run: its task, data, encoding, versions and results, in Markdown."""
  name, options = run.encoding, run.config.get(run.encoding)
  task = {
    key: Path(value).name if key in FILES and isinstance(value, str) else value  # not whose it is
    for key, value in run.config["task"].items()
    if key not in ("kind", "name")
  }
  results = {
    key: value
    for key, value in (run.summary or {}).items()
    if key.startswith(SPLITS) and isinstance(value, int | float)
  }
  rows = [f"| {key} | {value:.6g} |" for key, value in results.items()]
  sizes = {key: run.config["model"][key] for key in ("d_model", "num_layers", "num_heads")}
  sections = [
    "---\nlibrary_name: transformers\ntags: [posexp, positional-encoding]\n---",
    f"# {run.task} with {name}",
    "A model (ARCHITECTURE) trained by posexp, which compares positional encodings.",
    f"- task: {run.task}",
    f"- data: {show_options(task) or 'as the task has it'}",
    f"- encoding: {' '.join(filter(None, [name, show_options(options)]))}",
    f"- model: {show_options(sizes)}",
    f"- trained: {run.step:,} steps, seed {run.seed}",
    f"- versions: {run.facts.get('versions', 'unknown: the run has not finished')}",
    "\n".join(["| result | value |", "|---|---|", *rows] if rows else ["It has no results yet."]),
  ]
  return "\n\n".join(sections).replace("\n\n- ", "\n- ") + "\n"


main = command("exporting", export, arguments)


if __name__ == "__main__":
  main()
