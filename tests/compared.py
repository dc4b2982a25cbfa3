"""Runs made by hand, of nothing but what they predicted, to be held against each other."""

import itertools
import json

import yaml

from posexp import compare
from posexp.config.arguments import kept

REFERENCES = [
  " ".join(words)
  for words in itertools.islice(
    itertools.permutations(["zwei", "Hunde", "laufen", "heute", "am", "Fluss"]), 0, 720, 12
  )
]  # 60


SCORES = {"test/bleu": 50.0, "test/exact_match": 0.5}  # of translations; classes have neither


def spoiled(sentences, wrong):
  """The sentences, of which those at `wrong` have another word than their fourth."""
  words = [sentence.split() for sentence in sentences]
  return [
    " ".join([*word[:3], "Katzen", *word[4:]] if index in wrong else word)
    for index, word in enumerate(words)
  ]


def write(path, rows, *, encoding="rpr", kind="translation", done=True, split="test", **options):
  """A run's folder, made by hand; its seed is that of the folder's name."""
  (path / "predictions").mkdir(parents=True, exist_ok=True)
  seed = int(path.name.partition("=")[2] or 0)
  config = {"encoding": encoding, encoding: {"k": 4} if encoding == "rpr" else {}}
  config["task"] = {"kind": kind, "name": "t", "target": "de", **options}
  config |= {"seed": seed, "runs": str(path)}
  (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
  if done:
    parameters = 1_000 if encoding == "rpr" else 900
    measured = SCORES
    if kind == "parsing":
      measured = SCORES | {"test/f1": 0.5, "headline": ["test/f1"]}
    summary = {"step": 9, "parameters": parameters, **measured}
    (path / "summary.json").write_text(json.dumps(summary))
  text = "".join(json.dumps({"index": index} | row) + "\n" for index, row in enumerate(rows))
  (path / "predictions" / f"{split}.jsonl").write_text(text)
  return path


def translations(wrong, references=REFERENCES):
  return [
    {"source": f"two dogs {index}", "reference": reference, "hypothesis": said}
    for index, (reference, said) in enumerate(
      zip(references, spoiled(references, wrong), strict=True)
    )
  ]


def answers(wrong, count=40, text="film"):
  return [
    {"text": f"{text} {index}", "label": "pos", "loss": index / count}
    | {"prediction": "neg" if index in wrong else "pos"}
    for index in range(count)
  ]


def typed(*argv):
  found = []
  kept(list(map(str, argv)), lambda words: found.append(compare.compare(compare.arguments(words))))
  return found[0]
