"""Models written as folders: the bytes that they were read from, or the option in the way."""

import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import posexp
from posexp.data.vocabulary import Vocabulary, trained
from posexp.encodings import encoding
from posexp.errors import UserError
from posexp.models.transformer import Size
from posexp.released.export import CLASSES, Exported, Tokens, config_of, export, tokens_of
from posexp.released.weights import Released

MODELS = Path(__file__).parent / "models"
LLAMA = {"norm_kind": "rms", "feed_forward": "swiglu", "bias": "none", "embed_scale": "none"}
NOTHING = Tokens(None, {})


def written(source: Path, folder: Path) -> dict[str, bytes]:
  """Read a model and write it; return the content of the files."""
  released = Released.open(f"hf:{source}")
  spec = released.spec()
  params = nnx.state(posexp.load(f"hf:{source}").model, nnx.Param)
  model = Exported(spec.encoding, spec.size, spec.vocab_size, released.longest, params, NOTHING)
  return {file.name: file.read_bytes() for file in export(model, folder, "# ARCHITECTURE\n")}


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_written_is_what_was_read(name, tmp_path):
  first = written(MODELS / name, tmp_path / "first")
  assert first == written(tmp_path / "first", tmp_path / "second")
  assert json.loads(first["config.json"])["architectures"] == [CLASSES[name]]
  assert first["README.md"] == f"# {CLASSES[name]}\n".encode()
  there, here = (
    load_file(each / "model.safetensors") for each in (MODELS / name, tmp_path / "first")
  )
  there.pop("lm_head.weight", None) if "lm_head.weight" not in here else None
  assert there.keys() == here.keys()
  for key, tensor in there.items():
    np.testing.assert_array_equal(here[key], tensor)


def made(name: str, options: dict, model: dict) -> Exported:
  size = Size(d_model=16, num_heads=2, num_layers=3, d_ff=24, **model)
  return Exported(encoding(name, **options), size, 11, 64, None, NOTHING)


@pytest.mark.parametrize(
  ("name", "options", "model", "kind"),
  [
    ("rope", {"layout": "half"}, {}, "llama"),
    ("rope", {"layout": "half", "scaling": "linear", "factor": 2}, {"num_kv_heads": 1}, "llama"),
    ("by_layer", {"pattern": ["rope layout=half window=8"]}, {}, "mistral"),
    ("by_layer", {"pattern": ["2 rope layout=half window=8", "none"]}, {}, "smollm3"),
    ("rope", {"layout": "half"}, {"qk_norm": True, "tie_embeddings": True}, "qwen3"),
    ("rope", {"layout": "half"}, {"bias": "qkv"}, "qwen2"),
  ],
)
def test_the_plainest_architecture_that_has_the_options_is_chosen(name, options, model, kind):
  assert config_of(made(name, options, LLAMA | model))[0] == kind


@pytest.mark.parametrize(
  ("name", "options", "model", "said"),
  [
    ("rope", {}, {}, r"has rope.layout=interleaved; .*LlamaForCausalLM, has rope.layout=half:"),
    ("rope", {"layout": "half"}, {"norm": "post"}, "has model.norm=post; .* has model.norm=pre: "),
    ("rope", {"layout": "half", "p": 0.5}, {}, "has rope.p=0.5; .* has rope.p=1.0: train with"),
    ("rope", {"layout": "half"}, {"embed_scale": "sqrt"}, "; .* has model.embed_scale=none: train"),
    ("rpr", {}, {}, "has encoding=rpr in layer 0; .* has encoding=rope there"),
    (
      "learned",
      {"length": 64},
      {"bias": "all"},
      "has model.bias=all, encoding=learned in layer 0; the",
    ),
  ],
)
def test_what_stands_in_the_way_is_named(name, options, model, said):
  with pytest.raises(UserError, match=said):
    config_of(made(name, options, LLAMA | model))


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_the_tokenizer_writes_what_the_vocabulary_does(kind):
  text = "the cat sat\non the mat, the cat.\n"
  kept = trained(kind, [text.encode()], 300)
  library = Tokenizer.from_str(tokens_of(json.loads(kept)).tokenizer)
  ids = library.encode(text).ids
  assert ids == Vocabulary.opened(kept).encode(text)
  assert library.decode(ids) == text


def test_words_change_places_as_the_tokenizer_has_them(tmp_path):
  released = Released.open(f"hf:{MODELS / 'llama'}")
  spec, params = released.spec(), nnx.state(posexp.load(f"hf:{MODELS / 'llama'}").model, nnx.Param)
  tokens = Tokens(None, {}, begin=2, ends=(2, 3))
  export(Exported(spec.encoding, spec.size, spec.vocab_size, 64, params, tokens), tmp_path, "")
  there, here = (load_file(each / "model.safetensors") for each in (MODELS / "llama", tmp_path))
  order = [2, 1, 0, *range(3, spec.vocab_size)]
  for key in there:
    words = key in ("model.embed_tokens.weight", "lm_head.weight")
    np.testing.assert_array_equal(here[key], there[key][order] if words else there[key])
  config = json.loads((tmp_path / "config.json").read_text())
  assert (config["bos_token_id"], config["eos_token_id"]) == (2, [2, 3])
