"""Sentences in which order alone says who acts: the dog chased Wang Wei, or Wang Wei the dog."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from posexp.config.checks import Count, Name, between
from posexp.data.splits import HELD_OUT, Rows, draw, key
from posexp.tasks.text_classification import LabeledTexts


class Language(NamedTuple):
  """Lists of words for sentences; a list has as many words in every language."""

  animals: str
  persons: str
  verbs: str
  settings: str  # one of which, or none, stands in front, so that no place is always the actor's
  blank: str  # between words


LANGUAGES = {
  "en": Language(
    "the dog, the cat, the horse, the sheep, the pig, the rabbit, the bird, the hen, the calf, "
    "the bear",
    "Wang Wei, Li Na, Zhang Min, Liu Yang, Chen Jing, Yang Guang, Zhao Lei, Huang Li, Zhou Jie, "
    "Wu Fang",
    "chased, saw, heard, found, followed, met, helped, liked, remembered, startled",
    ", yesterday, this morning, in the park, at the station",
    " ",
  ),
  "zh": Language(
    "小狗, 小猫, 小马, 小羊, 小猪, 小兔, 小鸟, 小鸡, 小牛, 小熊",
    "王伟, 李娜, 张敏, 刘洋, 陈静, 杨光, 赵磊, 黄丽, 周杰, 吴芳",
    "追了, 看见了, 听见了, 找到了, 跟着, 遇见了, 帮了, 喜欢, 记得, 吓了",
    ", 昨天, 今天早上, 在公园里, 在车站",
    "",
  ),
}


@dataclasses.dataclass(frozen=True)
class WhoActs(LabeledTexts):
  """Sentences about an animal and a person, labeled by which of them acts.

  Each stands there in both orders, which share a split: a bag of words is right for one of the two.
  """

  name: Name = "who_acts"
  language: Literal["en", "zh"] = "en"
  min_count: Count = 1
  examples: Annotated[int, between(200, 10_000)] = 10_000

  def given(self):
    rows = sentences(self.language, self.examples)
    return {split: functools.partial(iter, own) for split, own in rows.items()}, []


def sentences(language: str, examples: int) -> Mapping[str, Rows]:
  """Return sentences with their labels by split; a tenth each is for validation and test.

  A hash of who does what to whom decides, alike in every language, on the split of a sentence, and
  on which are left out if fewer `examples` than all 10,000 are wanted.
  """
  *lists, blank = LANGUAGES[language]
  words = [each.split(", ") for each in lists]
  wanted = [*itertools.product(*(range(len(kind)) for kind in words))]
  wanted.sort(key=lambda each: draw(key(str(each)), "order"))
  splits: dict[str, Rows] = {"train": [], "validation": [], "test": []}
  for numbers in wanted[: examples // 2]:
    drawn = draw(key(str(numbers)), "split")
    split = "test" if drawn < HELD_OUT else "validation" if drawn < 2 * HELD_OUT else "train"
    animal, person, verb, setting = (word[n] for word, n in zip(words, numbers, strict=True))
    for label, actor, other in (("animal", animal, person), ("person", person, animal)):
      parts = [part for part in (setting, actor, verb, other) if part]
      splits[split].append((blank.join(parts), label))
  return splits
