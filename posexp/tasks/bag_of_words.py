"""A baseline that ignores order: logistic regression on a bag of words or of characters. A result
beside it says what order is worth.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from posexp import storage
from posexp.data import writing
from posexp.data.splits import Rows
from posexp.runs.trained import Trained
from posexp.status import doing

RECIPE = (
  "binary words as tokenizers read them, or counts of characters, L2, C=1, F1 of classes seen"
)
ORDER_COUNTS = 2  # points ahead of a bag of words, below which positions hardly count
FEW = 5  # points: half the interval of an accuracy on so few texts that they say little


def bag_of_words(splits: dict[str, Rows], tokenizer: str = "word") -> dict[str, dict[str, float]]:
  """Fit a logistic regression on `train`, and return its `accuracy` and `macro_f1` on other splits.

  A feature says whether a text holds a word or punctuation mark, in lower case if the `tokenizer`
  is `word`, or for `char` how often it holds a character. Texts are not cut, the vocabulary is not
  limited, and nothing is tuned. The result is cached by content.
  """
  options: dict[str, Any] = {"analyzer": list}
  if tokenizer != "char":
    read = str.lower if tokenizer == "word" else str
    options = {"binary": True, "analyzer": lambda text: writing.words(read(text))}
  parts = RECIPE, tokenizer, sorted(splits.items())
  return storage.cached("baseline", lambda: _fit(splits, options), *parts)


def _fit(splits: dict[str, Rows], options: dict[str, Any]) -> dict[str, dict[str, float]]:
  from sklearn.feature_extraction.text import CountVectorizer
  from sklearn.linear_model import LogisticRegression
  from sklearn.metrics import accuracy_score, f1_score
  from threadpoolctl import threadpool_limits

  doing("fitting a bag of words")
  vectorizer = CountVectorizer(**options)
  texts, labels = zip(*splits["train"], strict=True)
  model = LogisticRegression(C=1, max_iter=1000)
  # More threads fight over small products: 20 times slower when busy. That there are many labels
  # is said elsewhere.
  with threadpool_limits(1), warnings.catch_warnings(category=UserWarning, action="ignore"):
    model.fit(vectorizer.fit_transform(texts), labels)
  measured = {}
  for name in splits.keys() - {"train"}:
    texts, labels = zip(*splits[name], strict=True)
    predicted = model.predict(vectorizer.transform(texts))
    f1 = f1_score(labels, predicted, average="macro", zero_division=0)
    measured[name] = {"accuracy": float(accuracy_score(labels, predicted)), "macro_f1": float(f1)}
  return measured


def of_order(summary: Mapping[str, Any], bag: str, ahead: float) -> Iterator[str]:
  """Yield a line on order: by how many points the model is ahead of a bag of words."""
  trained = Trained(**summary["trained"]) if "trained" in summary else None
  if trained and not trained.at_chance and ahead >= ORDER_COUNTS:
    return
  if trained and (lacking := trained.lacking()):
    blind = "; where order is all, a model with encoding=none stays at chance" * trained.at_chance
    yield f"not trained, so that nothing is known of order: {lacking}{blind}"
    return
  if abs(ahead) >= ORDER_COUNTS:
    return
  known = f"a bag of {bag}, which knows no order, is as good within {ORDER_COUNTS} points"
  if guess := summary.get("guessing"):
    count, own = guess["texts"], summary["test/accuracy"]
    share = (own * count + 2) / (count + 4)  # as Agresti and Coull have it, for few texts
    sure = 1.96 * (share * (1 - share) / (count + 4)) ** 0.5
    if own <= guess["accuracy"] + sure:
      yield (
        f"{known}, and {count:,} test texts do not tell either from guessing: nothing is known of "
        "order; more texts tell more"
      )
      return
    if 100 * sure >= FEW:
      yield (
        f"{known} on {count:,} test texts, which tell {100 * sure:.0f} points at best: order may "
        "count for as much as that; more texts tell more"
      )
      return
  yield f"{known}: these texts need no order, or this model uses none; task=who_acts needs it"
