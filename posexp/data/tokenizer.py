"""Tokenizers: words or byte-level BPE, trained on the training split and kept as JSON."""

from collections.abc import Iterable

PAD, UNK, CLS = range(3)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]"]  # in the order of their ids
KINDS = {"word": len(SPECIAL) + 1, "bpe": len(SPECIAL) + 256}  # the smallest vocabulary of each


def train(texts: Iterable[str], kind: str, vocab_size: int, min_count: int, cls: bool) -> str:
  """The JSON of a tokenizer; the same texts always give the same one.

  `word` lower-cases and parts words from punctuation, `bpe` is byte-level and keeps case. Tokens
  (of BPE: merges) seen fewer than `min_count` times are left out. `cls` puts [CLS] before a text.
  """
  from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

  common = {
    "vocab_size": vocab_size,
    "min_frequency": min_count,
    "special_tokens": SPECIAL,
    "show_progress": False,
  }
  if kind == "word":
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL[UNK]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(**common)
  else:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **common)
  tokenizer.train_from_iterator(texts, trainer)
  if cls:
    tokenizer.post_processor = processors.TemplateProcessing(
      single=f"{SPECIAL[CLS]} $A", special_tokens=[(SPECIAL[CLS], CLS)]
    )
  return tokenizer.to_str()


class Tokenizer:
  """A trained tokenizer, opened from its JSON."""

  def __init__(self, json: str):
    from tokenizers import Tokenizer

    self._tokenizer = Tokenizer.from_str(json)
    self._tokenizer.encode_special_tokens = True  # a "[PAD]" in a text is five characters
    self.vocab_size: int = self._tokenizer.get_vocab_size()
    self._prefix: list[int] = self._tokenizer.encode("").ids  # [CLS] or nothing

  def encode(
    self, texts: list[str], max_length: int | None = None
  ) -> tuple[list[list[int]], int, int]:
    """Token ids by text, how many texts were empty and how many were cut to `max_length`.

    An empty text becomes one [UNK], so that every text has a token.
    """
    ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
    empty = [i for i, tokens in enumerate(ids) if len(tokens) == len(self._prefix)]
    for i in empty:
      ids[i] = [*self._prefix, UNK]
    long = [i for i, tokens in enumerate(ids) if max_length and len(tokens) > max_length]
    for i in long:
      ids[i] = ids[i][:max_length]
    return ids, len(empty), len(long)
