"""Write a run as a folder that Hugging Face's transformers loads, with its tokenizer and a card.

examples:
  python -m posexp.export runs/sympy/rope/0a1b2c3d4e5f/seed=0 llama
  python -m posexp.export RUN FOLDER

FOLDER then holds config.json, model.safetensors, generation_config.json, the tokenizer and a
README.md with the task, the data, the encoding, the versions and the results. It can be read again:
python -m posexp.inspect hf:FOLDER.

A language model is written if an architecture of transformers is the same model. With model=llama
and encoding=rope it is a Llama; other scalings, windows, biases, norms of queries and keys and
layers without positions make it Mistral, Qwen 2 or 3, SmolLM3, OLMo 2 or GPT-NeoX. GPT-2 has
learned positions, model.embed_scale=none, model.bias=qkv+out+feed_forward and
model.feed_forward=gelu_tanh. A classifier of texts is written as BERT: model=bert and
encoding=learned. Otherwise the message names the option that stands in the way.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexp import reading
from posexp.config import show_options
from posexp.config.arguments import Parser, command
from posexp.errors import UserError, check_installed, near
from posexp.runs import Run, read_run

SPLITS = ("test/", "validation/")
FILES = ("train", "validation", "test")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
  """Parse the command line; raise UserError if it cannot be understood."""
  parser = Parser("export", __doc__)
  parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
  parser.add_argument("folder", type=Path, metavar="FOLDER", help="is made, or was written before")
  return parser.parse_for_run(argv)


def export(args: argparse.Namespace) -> list[Path]:
  """Write the folder, and print its files.

  Raises:
    UserError: the run cannot be opened, or is no model that transformers has.
  """
  from flax import nnx

  from posexp.encodings.rotary import RoPE
  from posexp.models.size import Size
  from posexp.released import PREFIX
  from posexp.released import export as released
  from posexp.tasks import make_task
  from posexp.tasks.text_classification import LabeledTexts
  from posexp.training.devices import prepare
  from posexp.training.restore import open_alone, open_trained

  check_installed("posexp.export", "released", "safetensors")
  prepare()
  why = "posexp.export writes language models and classifiers of texts"
  decoder = str(args.run).startswith(PREFIX)
  decoder = decoder or not isinstance(make_task(read_run(args.run).config), LabeledTexts)
  trained = open_alone(args.run, "export") if decoder else open_trained(args.run)
  run, size = trained.run, trained.spec.size
  spec: Any = trained.spec  # of one of two tasks, as are the task and the data
  task: Any = trained.setup.task
  data: Any = trained.data
  if not isinstance(size, Size):
    raise UserError(f"{args.run}: model={size.backbone} is no Transformer, and {why}")
  if decoder:
    labels, read, length = (), "", task.segment
  else:
    labels, length = data.label_names, spec.encoding.limit or data.longest
    read = "the first token" if spec.first else "all tokens, averaged"
  params = nnx.state(trained.snapshot.model(), nnx.Param)
  kept = reading.parse(reading.read(run.path / "tokenizer.json"))
  made = task.vocabulary(run.path).as_library() if decoder else None
  tokens = released.tokens_of(kept, made)
  about = spec.encoding, spec.size, spec.vocab_size, length
  model = released.Exported(*about, params, tokens, labels)
  files = released.export(model, args.folder, card(run, read))
  print(*map(near, files), sep="\n")
  if tokens.tokenizer is None:
    why = f"transformers has none for task.tokenizer={kept['kind']}"
    print(f"no tokenizer.json, as {why}: give it the numbers of tokens")
  layers = (layer.encoding for layer in model.layers)
  bound = (each.trained_length for each in layers if isinstance(each, RoPE) and each.by_length)
  if (trained_length := next(bound, None)) is not None:
    print(
      "transformers scales by the longest text of a batch, posexp each query by its own place: "
      f"the two are equal in batches of at most {trained_length:,} tokens"
    )
  return files


def card(run: Run, read: str = "") -> str:
  """Return a model card in Markdown: task, data, encoding, versions and results of a run.

  `read` says which tokens' logits are those of a class, in a classifier.
  """
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
    *([f"- classes: the logits of a text are those of {read}"] if read else []),
    f"- trained: {run.step:,} steps, seed {run.seed}",
    f"- versions: {run.facts.get('versions', 'unknown: the run has not finished')}",
    "\n".join(["| result | value |", "|---|---|", *rows] if rows else ["It has no results yet."]),
  ]
  return "\n\n".join(sections).replace("\n\n- ", "\n- ") + "\n"


main = command("exporting", export, arguments)


if __name__ == "__main__":
  main()
