"""Tokenizers: what they keep of a text, and how writing decides."""

import json

import numpy as np
import pytest

from posexp.data import tokenizer, writing

CORPUS = ["The cat sat.", "the cat ran!", "a Dog sat", "the dog's café"]


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
@pytest.mark.parametrize("cls", [False, True])
def test_tokenizers_are_deterministic_and_begin_with_the_special_tokens(kind, cls):
  trained = [tokenizer.train(CORPUS, kind, 300, min_count=1, cls=cls) for _ in range(2)]
  assert trained[0] == trained[1]
  opened = tokenizer.Tokenizer(trained[0])
  found, empty, cut = opened.encode(["the cat", "", "  ", "[PAD] [CLS]", "the cat sat the cat"], 3)
  ids = [tokens.tolist() for tokens in found]
  first = [tokenizer.CLS] if cls else []
  assert all(tokens[: len(first)] == first for tokens in ids)
  assert ids[1] == [*first, tokenizer.UNK]
  assert all(0 < len(tokens) <= 3 for tokens in ids)
  assert not {tokenizer.PAD, tokenizer.CLS} & {i for tokens in ids for i in tokens[len(first) :]}
  assert (empty, cut) == ((2, 2) if kind == "word" else (empty, cut))
  assert opened.vocab_size == max(json.loads(trained[0])["model"]["vocab"].values()) + 1 <= 300


@pytest.mark.parametrize("known", [0, tokenizer.KNOWN])
@pytest.mark.parametrize("kind", ["word", "char", "bpe", "exact", "unmarked"])
def test_a_text_has_the_tokens_that_the_library_gives_to_all_of_it(kind, known, monkeypatch):
  monkeypatch.setattr(tokenizer, "KNOWN", known)
  parts = [
    *" '\t\n\r\v\f\x1c\x85\u00a0\u2028\u3000aZ7,.-é漢\U0001f600\u0301Σ",
    "the",
    " cat",
    "'s",
    "  ",
  ]
  draw = np.random.default_rng(0).choice
  texts = ["".join(draw(parts, size)) for size in range(60) for _ in range(5)]
  trained_on = texts
  if kind == "unmarked":
    trained_on = [text.replace("\u0301", "") for text in texts]
  bpe = kind not in ("word", "char")
  trained = tokenizer.train(trained_on, "bpe" if bpe else kind, 400, prefix=kind != "exact")
  encoder = tokenizer.Tokenizer(trained)
  for found in (encoder.ids(texts[:150]), encoder.ids(texts)):
    whole = encoder.library.encode_batch(texts[: len(found)])
    assert [each.tolist() for each in found] == [each.ids for each in whole]


def test_words_are_lower_cased_parted_from_punctuation_and_cut_off():
  opened = tokenizer.Tokenizer(tokenizer.train(CORPUS, "word", 100))
  assert opened.vocab_size == 3 + len({"the", "cat", "sat", "dog"})
  ids, other, rare = (each.tolist() for each in opened.ids(["THE cat,", "the cat ;", "zebra café"]))
  assert ids == other
  assert ids[2] == tokenizer.UNK
  assert rare == [tokenizer.UNK] * 2
  assert tokenizer.Tokenizer(tokenizer.train(CORPUS, "word", 5, min_count=1)).vocab_size == 5


@pytest.mark.parametrize(("most", "step"), [(600, 1), (599, 2), (300, 2), (299, 4), (1, 100)])
def test_a_bpe_is_trained_on_rows_from_all_of_a_large_text(monkeypatch, most, step):
  monkeypatch.setattr(tokenizer, "TRAINED_ON", most)
  rows = [(f"{number:03d}", "abc") for number in range(100)]
  assert tokenizer.evenly(iter(rows)) == rows[::step]


def test_bytes_know_every_character():
  opened = tokenizer.Tokenizer(tokenizer.train(CORPUS, "bpe", 280))
  text = "Ünseen 漢字 \U0001f600"
  unseen, lower, upper = (each.tolist() for each in opened.ids([text, "a", "A"]))
  written = "".join(opened.words[token] for token in unseen)  # in a letter for each byte
  assert len(written) == len(f" {text}".encode())
  assert lower != upper


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("शाम पिता गाड़ी", ["शाम", "पिता", "गाड़ी"]),
    ("e\u0301te\u0301, a\u0300", ["e\u0301te\u0301", ",", "a\u0300"]),
    ("می\u200cخواهم", ["می\u200cخواهم"]),
    ("don't 12 _x!? ( )", ["don", "'", "t", "12", "_x", "!?", "(", ")"]),
  ],
)
def test_marks_belong_to_their_letters(text, words):
  assert writing.words(text) == words
  assert writing.longest_word(text.replace(" ", "\n")) == max(map(len, words))


@pytest.mark.parametrize("prefix", [False, True])
def test_a_bpe_merges_across_marks_and_is_as_ever_without_them(prefix, monkeypatch):
  marked = ["जीजा कुकौनिरु खाटिसीजो", "كَتَبَ الوَلَدُ الدَّرْسَ", "e\u0301te\u0301 de\u0301ja\u0300"] * 9
  plain = [*CORPUS, *["It's 2_000 K.\n", " x²  y—z 漢字 한국어 ½ 😀!"]]

  def trained(texts, size, **options):
    text = tokenizer.train(texts, "bpe", size, ["[END]"], prefix=prefix, **options)
    return tokenizer.Tokenizer(text)

  assert [*map(len, trained(marked, 900).ids(marked[:3]))] == [3, 3, 2]  # a token a word
  monkeypatch.setattr(writing, "has_marks", lambda texts: True)
  always = trained(plain, 330, min_count=1)
  monkeypatch.setattr(writing, "has_marks", lambda texts: False)
  never = trained(plain, 330, min_count=1)
  for one, other in zip(always.ids(plain), never.ids(plain), strict=True):
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
  ("texts", "parted"),
  [
    (["the cat sat on the mat", "playing"], True),
    (["epäjärjestelmällisesti hän meni kauppaan"], True),
    (["오늘 날씨가 정말 좋네요"], True),
    (["这 款 游戏 特别 的 坏 。", "这款 游戏 特别 好 。"], True),
    (["https://a.example.com/b?c=d", "3+4-5*2", "f(x)=x+1"], True),
    (["( ( ) )", "😀 😂"], True),
    ([""], True),
    (["今天,王伟追了小狗。"], False),
    (["วันนี้อากาศดีมาก แล้วกลับบ้าน"], False),
    (["我觉得这个 camera 非常好用，推荐购买"], False),
    (["ACGTTGCAACGTTAGC", "MKTAYIAKQRQISFVKSHFSRQ"], False),
  ],
)
def test_text_without_blanks_is_noticed(texts, parted):
  assert writing.parts_words(texts * 3) is parted
