"""Models written as folders: the bytes that they were read from, or the option in the way."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from seed import some
from small_models import MODELS
from tokenizers import Tokenizer

import posexp
from posexp.config.command_line import compose
from posexp.encodings import encoding
from posexp.errors import UserError
from posexp.language.vocabulary import Vocabulary, trained
from posexp.models.backbones import make_size
from posexp.models.classifier import ClassifierSpec
from posexp.models.language_model import LanguageModelSpec
from posexp.models.size import Size
from posexp.released.export import Exported, Tokens, config_of, export, tokens_of
from posexp.released.families import FAMILIES
from posexp.released.weights import Released

LLAMA = {"norm_kind": "rms", "feed_forward": "swiglu", "bias": "none", "embed_scale": "none"}
NOTHING = Tokens(None, {})
WRITTEN = {name: family.architecture for name, family in FAMILIES.items() if family.architecture}
DECODERS = [name for name in WRITTEN if FAMILIES[name].causal]


def written(source: Path, folder: Path) -> dict[str, bytes]:
  """Read a model and write it; return the content of the files."""
  released = Released.open(f"hf:{source}")
  spec = released.spec()
  params = nnx.state(posexp.load(f"hf:{source}").model, nnx.Param)
  model = Exported(spec.encoding, spec.size, spec.vocab_size, released.longest, params, NOTHING)
  return {file.name: file.read_bytes() for file in export(model, folder, "# ARCHITECTURE\n")}


@pytest.mark.parametrize("name", some(DECODERS, 1))
def test_what_is_written_is_what_was_read(name, tmp_path):
  first = written(MODELS / name, tmp_path / "first")
  assert first == written(tmp_path / "first", tmp_path / "second")
  assert json.loads(first["config.json"])["architectures"] == [WRITTEN[name]]
  assert first["README.md"] == f"# {WRITTEN[name]}\n".encode()
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
    ("rope", {}, {}, "llama"),  # planes of neighbors are written as halves
    ("rope", {"layout": "half", "scaling": "linear", "factor": 2}, {"num_kv_heads": 1}, "llama"),
    ("by_layer", {"pattern": ["rope layout=half window=8"]}, {}, "mistral"),
    ("by_layer", {"pattern": ["2 rope layout=half window=8", "none"]}, {}, "smollm3"),
    ("rope", {"layout": "half"}, {"qk_norm": True, "tie_embeddings": True}, "qwen3"),
    ("rope", {"layout": "half"}, {"bias": "qkv"}, "qwen2"),
  ],
)
def test_the_plainest_architecture_that_has_the_options_is_chosen(name, options, model, kind):
  assert config_of(made(name, options, LLAMA | model))[0].name == kind


@pytest.mark.parametrize(
  ("kind", "name", "labels"), [("llama", "rope", ()), ("bert", "learned", ("no", "yes"))]
)
def test_a_preset_is_the_family_of_its_name(kind, name, labels):
  size = make_size(compose([f"model={kind}"]))
  model = Exported(encoding(name), size, 11, 64, None, NOTHING, labels)
  assert config_of(model)[0].name == kind


@pytest.mark.parametrize(
  ("name", "options", "model", "said"),
  [
    ("rope", {"layout": "half"}, {"norm": "post"}, "has model.norm=post; .* has model.norm=pre: "),
    ("rope", {"layout": "half", "p": 0.5}, {}, "has rope.p=0.5; .* has rope.p=1.0: train with"),
    ("rope", {"layout": "half"}, {"embed_scale": "sqrt"}, "; .* has model.embed_scale=none: train"),
    (
      "rpr",
      {},
      {},
      "has encoding=rpr in layer 0; .* has encoding=rope there: train with that, or with model=",
    ),
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
  own = Vocabulary.opened(kept)
  library = Tokenizer.from_str(tokens_of(json.loads(kept), own.as_library()).tokenizer)
  ids = library.encode(text).ids
  assert ids == own.encode(text)
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


BIASED = {"bias": "qkv+out+feed_forward"}
PLAIN = {"embed_scale": "none", "feed_forward": "gelu"} | BIASED
BERT = PLAIN | {"norm": "post", "embed_norm": True}
DRAWN = {
  "neighbors": ("rope", {}, LLAMA | {"num_kv_heads": 1}),
  "norms of neighbors": ("rope", {}, LLAMA | {"qk_norm": True}),
  "biases of neighbors": ("rope", {"scaling": "linear", "factor": 2}, LLAMA | {"bias": "qkv"}),
  "by layer": ("by_layer", {"pattern": ["2 rope base=50 window=4", "none"]}, LLAMA),
  "experts": (
    "by_layer",
    {"pattern": ["rope base=50 window=4", "2 rope base=50"]},
    LLAMA | {"sinks": "head", "experts": 3, "feed_forward": "swiglu_clipped"} | BIASED,
  ),
  "half of the channels": ("rope", {"share": 0.5}, PLAIN | {"norm": "parallel"}),
  "a table": ("learned", {"length": 32}, PLAIN | {"feed_forward": "gelu_tanh"}),
  "a classifier": ("learned", {"length": 32}, BERT),
  "a classifier with types": ("learned", {"length": 32}, BERT | {"token_types": 2, "bias": "all"}),
}
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 12))


def drawn(name: str, options: dict, model: dict, folder: Path) -> tuple[str, np.ndarray]:
  """Writes a model with random weights; returns its architecture and its logits."""
  size = Size(d_model=16, num_heads=2, num_layers=3, d_ff=24, dropout=0.0, **model)
  labels = ("no", "maybe", "yes") if size.norm == "post" else ()
  made, random = encoding(name, **options), np.random.default_rng(0)
  spec = LanguageModelSpec(11, made, size)
  spec = ClassifierSpec(11, 3, made, size, first=True) if labels else spec
  module = spec.build(nnx.Rngs(0))
  params = nnx.state(module, nnx.Param)
  params = jax.tree.map(lambda x: x + random.normal(0, 0.3, x.shape).astype("float32"), params)
  nnx.update(module, params)
  export(Exported(made, size, 11, 32, params, NOTHING, labels), folder, "")
  kind = json.loads((folder / "config.json").read_text())["architectures"][0]
  return kind, np.asarray(module(TOKENS, TOKENS >= 0) if labels else module(TOKENS))


@pytest.mark.parametrize("name", some(DRAWN, 1))
def test_what_is_written_is_the_same_model(name, tmp_path):
  _, logits = drawn(*DRAWN[name], tmp_path)
  found = np.asarray(posexp.load(f"hf:{tmp_path}")(TOKENS))
  if name.startswith("a classifier"):  # of which the encoder is read
    held = load_file(tmp_path / "model.safetensors")
    found = found[:, 0] @ held["classifier.weight"].T + held["classifier.bias"]
  np.testing.assert_allclose(found, logits, atol=1e-5 * np.abs(logits).max())


@pytest.mark.live
@pytest.mark.parametrize("name", DRAWN)
def test_transformers_loads_what_is_written(name, tmp_path):
  torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
  kind, logits = drawn(*DRAWN[name], tmp_path)
  model = getattr(transformers, kind).from_pretrained(tmp_path)
  with torch.no_grad():
    found = model.eval()(torch.tensor(TOKENS)).logits.numpy()
  found = found[:, 0] if name.startswith("a classifier") else found
  np.testing.assert_allclose(found, logits, atol=1e-5 * np.abs(logits).max())
