"""Tokenizers of released models: the library's tokens and bytes, and what begins a text."""

import json
import shutil
from pathlib import Path

import fuzz
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import CHINESE, ENGLISH, byte_level, decoder, trained
from tokenizers import (
  AddedToken,
  Regex,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

from posexp.data import library
from posexp.data.tokenizer import Given
from posexp.errors import UserError
from posexp.language import parts, vocabulary
from posexp.language.vocabulary import Vocabulary
from posexp.released.source import folder_of
from posexp.released.weights import Released

LONG = {
  "words": ENGLISH * 80,
  "no blanks": CHINESE * 80,
  "a run": "the cat " + "a" * 3000 + " sat",
  "blanks": "the cat" + " " * 3000 + "sat ",
  "both": (ENGLISH + CHINESE + "\n\n   😀") * 40,
}


def bpe(special=("<unk>", "</s>"), unknown="<unk>", **parts) -> Tokenizer:
  trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=[*special], show_progress=False)
  return trained(models.BPE(unk_token=unknown), trainer, **parts)


def unigram() -> Tokenizer:
  trainer = trainers.UnigramTrainer(
    vocab_size=99, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
  )
  parts = {"pre_tokenizer": pre_tokenizers.Metaspace(), "decoder": decoders.Metaspace()}
  return trained(models.Unigram(), trainer, normalizer=normalizers.NFKC(), **parts)


def word_piece() -> Tokenizer:
  trainer = trainers.WordPieceTrainer(
    vocab_size=150, special_tokens=["[UNK]", "</s>"], show_progress=False
  )
  parts = {"pre_tokenizer": pre_tokenizers.BertPreTokenizer(), "decoder": decoders.WordPiece()}
  normalizer = normalizers.BertNormalizer()
  return trained(models.WordPiece(unk_token="[UNK]"), trainer, normalizer=normalizer, **parts)


def prepended() -> Tokenizer:
  """Returns one that puts a blank before each text, and writes by bytes, as that of Llama 2."""
  blanks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
  spelled = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
  letters = [f"<0x{value:02X}>" for value in range(256)]
  found = bpe(
    ("<unk>", "</s>", *letters),
    normalizer=normalizers.Sequence(blanks),
    decoder=decoders.Sequence(spelled),
  )
  content = json.loads(found.to_str())
  content["model"]["byte_fallback"] = True
  return Tokenizer.from_str(json.dumps(content))


def other_blank() -> Tokenizer:
  given = {"replacement": "_", "prepend_scheme": "never"}
  parts = {"pre_tokenizer": pre_tokenizers.Metaspace(**given)}
  return bpe(**parts, decoder=decoders.Metaspace(**given))


KINDS = {
  "byte level": byte_level,
  "byte level with a blank": lambda: byte_level(prefix=True),
  "Unigram": unigram,
  "WordPiece": word_piece,
  "prepended": prepended,
  "another letter for blanks": other_blank,
}


def opened(name: str) -> Vocabulary:
  return Vocabulary.opened(Released.open(name).tokens())


def test_what_a_tokenizer_calls_unknown_is_counted_by_its_bytes(tmp_path):
  numbers = {"<unk>": 0, "</s>": 1, "a": 2, " ": 3}
  own = opened(decoder(tmp_path, Tokenizer(models.BPE(numbers, [], unk_token="<unk>"))))
  text = "a bé a".encode()
  assert own.unknown([text, b"a"]) == [b"b", "é".encode()]
  assert own.tokens([text])[0].tolist().count(own.unknown_token) == 2
  assert opened(decoder(tmp_path, byte_level())).unknown([text]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_has_the_tokens_of_the_library(kind, tmp_path, monkeypatch):
  for name, value in {"PIECE": 256, "CONTEXT": 200, "SEAM": 25}.items():
    monkeypatch.setattr(parts, name, value)
  monkeypatch.setattr(vocabulary, "PIECE", 256)
  tokenizer = KINDS[kind]()
  own = opened(decoder(tmp_path, tokenizer))
  for what, text in LONG.items():
    for cut in (len(text), 255, 256, 257):
      ids = np.array(tokenizer.encode(text[:cut], add_special_tokens=False).ids)
      assert own.encode(text[:cut]) == own._swapped(ids).tolist(), (what, cut)
  known = "the cat sat on the mat"
  ids = own.encode(known)
  assert own.decode(ids).decode().strip() == known
  assert own.bytes_of[ids].sum() == len(own.decode(ids))


@pytest.mark.parametrize("kind", ["byte level", "Unigram", "prepended"])
def test_tokens_that_were_added_stand_for_their_own_bytes(kind, tmp_path):
  words = ["café", "đem", "小狗", "Ġx", "▁q", "<pet>"]
  tokenizer = KINDS[kind]()
  tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
  own = opened(decoder(tmp_path, tokenizer))
  for word in words:
    assert own.decode([tokenizer.token_to_id(word)]) == word.encode()
  assert own.decode(own.encode("a <pet> sat")).decode().split() == ["a", "<pet>", "sat"]


def test_characters_that_were_exported_stand_for_themselves():
  kept = json.dumps({"kind": "char", "characters": " a▁é"})
  text = Vocabulary.opened(kept).as_library()
  spelled = library.spelling(library.opened(text), text)
  assert [*map(spelled, range(5))] == [b"", b" ", b"a", "▁".encode(), "é".encode()]


SPECIAL = ("<pad>", "<eos>", "<bos>", "<|eot|>")
BEGINS = {
  "the beginning of the config": ({"bos_token_id": 2}, {}, "<bos>", {1}),
  "the end without one": ({}, {}, "<eos>", {1}),
  "a beginning that is padding": ({"bos_token_id": 0, "pad_token_id": 0}, {}, "<eos>", {1}),
  "an end that is padding, too": ({"pad_token_id": 1}, {}, "<eos>", {1}),
  "the tokenizer's": ({}, {"tokenizer_config.json": {"bos_token": "<bos>"}}, "<bos>", {1}),
  "the tokenizer's in full": (
    {},
    {"special_tokens_map.json": {"bos_token": {"content": "<bos>"}}},
    "<bos>",
    {1},
  ),
  "ends of generation": (
    {"eos_token_id": None},
    {"generation_config.json": {"bos_token_id": 2, "eos_token_id": [1, 3]}},
    "<bos>",
    {1, 3},
  ),
  "ends of both": ({}, {"generation_config.json": {"eos_token_id": 3}}, "<eos>", {1, 3}),
  "an end of the tokenizer": ({}, {"tokenizer_config.json": {"eos_token": "<|eot|>"}}, "<eos>",
                              {1, 3}),
  "names alone": ({"eos_token_id": None}, {}, "<bos>", {1}),
  "put before a text": ({"bos_token_id": 2, "template": "<|eot|> $A"}, {}, "<|eot|>", {1}),
  "put behind it": ({"bos_token_id": 2, "template": "$A <eos>"}, {}, "<bos>", {1}),
}  # fmt: skip


def tokens(folder, config, files) -> str:
  """Writes a decoder with special tokens and other files; returns its tokens as they are kept."""
  config = {"special": SPECIAL, "template": None} | config
  tokenizer = byte_level(config.pop("special"))
  if template := config.pop("template"):
    ends = [("<eos>", 1), ("<|eot|>", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=ends)
  name = decoder(folder, tokenizer, **config)
  for file, content in files.items():
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
  return Released.open(name).tokens()


@pytest.mark.parametrize("what", BEGINS)
def test_a_text_begins_with_the_beginning_or_the_end_and_never_with_padding(what, tmp_path):
  config, files, begin, ends = BEGINS[what]
  content = json.loads(tokens(tmp_path, config, files))
  assert (SPECIAL[content["end"]], {*content["stops"]}) == (begin, ends)


WRONG = {
  "more tokens": ({"rows": 299}, {}, "has 300 tokens .* weights have rows for 299"),
  "an end of none": ({"eos_token_id": 300}, {}, "eos_token_id=300, and .* rows for 300 tokens"),
  "an end of text": ({"eos_token_id": "</s>"}, {}, "eos_token_id='</s>', which is no token"),
  "no end": (
    {"special": ("<pad>",), "eos_token_id": None, "pad_token_id": 0},
    {},
    "put its bos_token_id, or its eos_token_id, into config",
  ),
  "damaged": ({}, {"generation_config.json": "{"}, "generation_config.json is no JSON"),
  "a list": ({}, {"tokenizer_config.json": "[]"}, "tokenizer_config.json holds no JSON object"),
  "cut off": ({}, {"tokenizer.json": '{"model": '}, "its tokenizer.json fails here"),
  "words": ({"vocab_size": 10**12}, {}, "vocab_size=1000000000000, and posexp reads .* at most"),
}


@pytest.mark.parametrize("what", WRONG)
def test_tokens_that_do_not_fit_are_said_where_the_folder_is_opened(what, tmp_path):
  config, files, said = WRONG[what]
  with pytest.raises(UserError, match=said):
    tokens(tmp_path, config, files)


def test_a_kept_tokenizer_has_no_tokens_beyond_its_model(tmp_path):
  content = json.loads(Released.open(decoder(tmp_path, byte_level())).tokens())
  for other, said in (({"size": 10**12}, "this one has 10{12}"), ({"end": -1}, "number -1")):
    with pytest.raises(UserError, match=said):
      Vocabulary.opened(json.dumps(content | other))
  kept = json.dumps(content | {"size": 250})
  with pytest.raises(UserError, match=r"gives the token 2.*, and the model has 250 tokens"):
    Vocabulary.opened(kept).encode("the cat")
  with pytest.raises(UserError, match="the model has 250 tokens"):
    Given(kept).encode(["the cat"])


def test_a_pattern_that_searches_for_ever_is_said_in_one_sentence(tmp_path, monkeypatch, capfd):
  tokenizer = byte_level()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex("(a|a|aa)+$"), "isolated"),
    pre_tokenizers.ByteLevel(use_regex=False),
  ])  # fmt: skip
  name = decoder(tmp_path / "model", tokenizer)
  monkeypatch.chdir(tmp_path)
  assert "retry-limit-in-match" in fuzz.typed("generate", name, "a" * 40 + "b").refusal
  assert capfd.readouterr() == ("", "")
  monkeypatch.setattr(library, "PATIENCE", 0.2)
  with pytest.raises(UserError, match="takes more than 0 s for 4,500 characters"):
    opened(name).encode(("a" * 14 + "b") * 300)


def test_a_tokenizer_that_fills_the_memory_is_refused(tmp_path):
  tokenizer = byte_level()
  tokenizer.normalizer = normalizers.Replace(Regex("."), "z" * 10_000)
  with pytest.raises(UserError, match="writes more than 1,000 characters in place of one"):
    Released.open(decoder(tmp_path, tokenizer))
  tokenizer = byte_level()
  tokenizer.enable_padding(length=2**40)
  tokenizer.enable_truncation(1)
  name = decoder(tmp_path, tokenizer)
  assert len(Released.open(name).tokenizer().encode("the cat").ids) == len(
    opened(name).encode("the cat")
  )


def test_a_model_is_known_by_its_content(tmp_path):
  folder = tmp_path / "model"
  name = decoder(folder, byte_level(SPECIAL))
  seen = {Released.open(name).digest()}

  def other() -> bool:
    before = len(seen)
    seen.add(Released.open(name).digest())
    return len(seen) == before + 1

  for tensor in ("model.layers.1.self_attn.q_proj.weight", "model.norm.weight"):
    held = load_file(folder / "model.safetensors")
    held[tensor] = held[tensor].copy()
    held[tensor].flat[-1] += 1e-3
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    assert other()
  for file, content in (
    ("tokenizer.json", byte_level((*SPECIAL[:3], "<|eat|>")).to_str()),
    ("generation_config.json", '{"eos_token_id": 3}'),
    ("config.json", (folder / "config.json").read_text().replace(": 0.001", ": 0.002")),
  ):  # fmt: skip
    (folder / file).write_text(content)
    assert other(), file
  shutil.copytree(folder, tmp_path / "copy")
  assert Released.open(f"hf:{tmp_path / 'copy'}").digest() in seen


def test_what_is_kept_of_a_model_is_no_other_models(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  found = {}
  for path, tokenizer in (
    ("a/b", byte_level(SPECIAL)), ("a-b", byte_level(SPECIAL)), ("a/b", byte_level()),
  ):  # fmt: skip
    decoder(Path(path), tokenizer)
    model = Released.open(f"hf:{path}")
    folder = folder_of(model, "runs")
    assert (folder / "tokenizer.json").read_text() == model.tokens()
    found[folder] = model.tokens()
  assert len(found) == 3
  folder, text = found.popitem()
  (folder / "tokenizer.json").write_text("{}")
  assert folder_of(model, "runs") == folder
  assert (folder / "tokenizer.json").read_text() == text
