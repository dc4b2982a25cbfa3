"""A baseline that ignores order: logistic regression on a bag of words, or of characters."""

import warnings
from typing import Any

from posexp import storage
from posexp.data import writing
from posexp.data.splits import Rows
from posexp.status import doing

RECIPE = "binary words as models read them, or counts of characters, L2, C=1, F1 of classes seen"


def bag_of_words(splits: dict[str, Rows], characters: bool = False) -> dict[str, dict[str, float]]:
  """Fit a logistic regression on `train`, and return its `accuracy` and `macro_f1` on other splits.

  A feature says whether a text holds a lower-cased word or punctuation mark, or how often it holds
  one of the `characters`. Texts are not cut, the vocabulary is not limited, and nothing is tuned.
  The result is cached by content.
  """
  options: dict[str, Any] = {"analyzer": "char", "lowercase": False}
  if not characters:
    options = {"binary": True, "analyzer": lambda text: writing.words(text.lower())}
  parts = RECIPE, characters, sorted(splits.items())
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
