"""Released models against the arrays that scripts/released_models.py made with transformers."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import released_models
from flax import nnx
from safetensors.numpy import load_file
from seed import some
from small_models import MODELS, changed

import posexp
from posexp import inspect
from posexp.config import plugins
from posexp.errors import UserError
from posexp.released.loaded import Loaded
from posexp.released.weights import Released

GUIDE = Path(__file__).parents[2] / "docs" / "own.md"
LOGITS, GRADIENTS = 1e-5, 2e-5  # of the largest


def off(found, expected, real=None) -> float:
  """Return the largest difference over the largest value, where `real` is not 0."""
  real = np.ones(expected.shape[:2]) if real is None else real
  keep = slice(None) if real.shape != expected.shape[:2] else real > 0
  return np.abs(np.asarray(found) - expected)[keep].max() / np.abs(expected[keep]).max()


def check(folder: Path) -> None:
  """Logits, loss and gradients of a model are its arrays; greedy tokens are equal."""
  expected = dict(np.load(folder / "expected.npz"))
  tokens, mask = expected["tokens"], expected["mask"]
  model = posexp.load(f"hf:{folder}")
  found = {
    "logits": off(model(tokens, mask), expected["logits"], mask),
    "long": off(model(expected["long"]), expected["long_logits"]),
  }
  causal = "greedy" in expected
  if causal:
    greedy = model.greedy(expected["long"], expected["greedy"].shape[1])
    assert (np.asarray(greedy) == expected["greedy"]).all()

  def loss(module):
    logits = Loaded(module, None)(tokens, mask)
    labels, counts = tokens, mask
    if causal:
      logits, labels, counts = logits[:, :-1], tokens[:, 1:], mask[:, 1:]
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return ((jax.nn.logsumexp(logits, -1) - of_label) * counts).sum() / counts.sum()

  value, gradients = nnx.jit(nnx.value_and_grad(loss))(model.model)
  found["loss"] = abs(value / expected["loss"] - 1)
  named = model.tensors(gradients)
  scale = max(np.abs(each).max() for key, each in expected.items() if key.startswith("grad/"))
  for key in (key for key in expected if key.startswith("grad/")):
    name = key.removeprefix("grad/")
    if name not in named or name.endswith(
      ("key.bias", "key_proj.bias")
    ):  # softmax sees no such bias
      continue
    difference = np.abs(named[name] - expected[key])
    found[key] = difference.max() / max(np.abs(expected[key]).max(), 1e-3 * scale)
  bounds = {key: GRADIENTS if key.startswith("grad/") else LOGITS for key in found}
  assert {key: each for key, each in found.items() if not each <= bounds[key]} == {}
  assert any(key.startswith("grad/") for key in found)


@pytest.fixture(autouse=True, scope="module")
def phi3(tmp_path_factory):
  """The family of the guide is known, from its plugin."""
  found = re.search(r'^```python title="phi3.py"\n(.*?)^```', GUIDE.read_text(), re.M | re.S)
  file = tmp_path_factory.mktemp("plugin") / "phi3.py"
  file.write_text(found[1])
  before = dict(plugins._found)
  plugins.load([file])
  yield
  plugins._found.clear()
  plugins._found.update(before)


@pytest.mark.parametrize("name", some(released_models.CASES, 1))
def test_a_family_computes_what_the_reference_computes(name):
  check(MODELS / name)


# What positions alone refuse, too, is in test_positions_of_models.py.
REFUSED = {
  "unknown key": ("llama", {"attn_temperature": 2}, "attn_temperature=2, which posexp does not"),
  "activation": ("llama", {"hidden_act": "mish"}, "hidden_act='mish', and posexp has silu"),
  "no factor": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "has no factor for"),
  "scaled": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "posexp has False alone"),
  "convolution": ("deberta", {"conv_kernel_size": 3}, "conv_kernel_size=3"),
  "a table beside": ("deberta", {"position_biased_input": True}, "no table of positions"),
  "both sides": ("gemma3", {"use_bidirectional_attention": True}, "posexp has False alone"),
  "decoder": ("bert", {"is_decoder": True}, "is_decoder=True"),
  "layer types": ("qwen2", {"layer_types": ["full_attention"]}, "must be 2 of full_attention"),
  "odd": ("gpt_neox", {"rope_parameters": None, "rotary_pct": 0.8}, "3 channels of a head turn"),
  "width": ("llama", {"intermediate_size": 11}, r"mlp.down_proj.weight is \[12, 10\].* \[12, 11"),
  "no number": ("llama", {"hidden_size": "12"}, "hidden_size='12', which must be a number"),
  "layers": ("gemma2", {"num_hidden_layers": 10**10}, "num_hidden_layers=10{10}, and posexp"),
  "fewer layers": ("qwen2", {"num_hidden_layers": 900}, "=900, and its weights have 2;"),
  "no layers": ("llama", {"num_hidden_layers": None}, "must be a whole number from 1 up"),
  "few experts": ("gpt_oss", {"num_experts_per_tok": 9}, "experts_used=9 are more than"),
  "a limit": ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit=5.0, posexp has 7.0 alone"),
}
OTHER = {
  "missing": ({"model.norm.weight": None}, "no tensor norm.weight in it"),
  "extra": ({"model.extra.weight": np.ones(2)}, "model.extra.weight is none of the"),
  "infinite": ({"model.norm.weight": np.full(12, np.inf, "f4")}, "norm.weight has numbers that"),
  "twice": ({"norm.weight": np.ones(2)}, "model.norm.weight and norm.weight are two names of one"),
}


@pytest.mark.parametrize("what", [*REFUSED, *OTHER])
def test_what_a_model_does_not_have_is_refused_by_name(what, tmp_path):
  if what in REFUSED:
    *changes, message = REFUSED[what]
    model = changed(tmp_path, *changes)
  else:
    tensors, message = OTHER[what]
    model = changed(tmp_path, "llama", **tensors)
  with pytest.raises(UserError, match=message):
    posexp.load(model)


def test_other_spellings_are_the_same_model(tmp_path):
  held = load_file(MODELS / "llama" / "model.safetensors")
  bare = {key.removeprefix("model."): each for key, each in held.items()}
  scaling = {key: each for key, each in released_models.LLAMA3.items() if key != "rope_theta"}
  old = {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": 100.0}
  old |= {"rope_interleaved": False, "is_llama_config": True, "num_beam_groups": 1}  # left over
  gone = dict.fromkeys(key for key in held if key.startswith("model."))
  other = Released.open(changed(tmp_path, "llama", old, **gone, **bare))
  one = Released.open(f"hf:{MODELS / 'llama'}")
  assert one.encoding == other.encoding
  assert one.model == other.model
  assert one.files.keys() == other.files.keys()


def test_the_encoder_of_a_classifier_is_read(tmp_path):
  tensors = {"classifier.weight": np.ones((2, 16), np.float32), "decoder.bias": None}
  released = Released.open(changed(tmp_path, "modernbert", **tensors))
  assert released.pieces(released.spec())
  assert not released.spec().head


def test_tied_words_count_unless_the_file_has_another_head(tmp_path):
  held = load_file(MODELS / "qwen3" / "model.safetensors")["model.embed_tokens.weight"]
  for tied, head in ((True, held), (False, held + 1)):
    model = changed(tmp_path / str(tied), "qwen3", **{"lm_head.weight": head})
    assert Released.open(model).model["tie_embeddings"] is tied


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gpt_oss", "modernbert", "bert"])
def test_joining_gives_back_the_bytes_of_the_file(name):
  released = Released.open(f"hf:{MODELS / name}")
  for piece in released.pieces(released.spec()):
    tensor = released.folder.tensor(released.files[piece.name])
    assert piece.join(piece.split(tensor)).tobytes() == tensor.tobytes()


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}


@pytest.mark.parametrize("name", ["gemma2", *some(["dynamic", "phi3"], 1)])
def test_padding_packing_and_other_calls_change_nothing(name, tmp_path):
  called = f"hf:{MODELS / name}"
  if name == "dynamic":
    config = {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}
    called = changed(tmp_path, "llama", config)
  model, random = posexp.load(called), np.random.default_rng(0)
  words = model.model.reader.logits(jnp.zeros((1, 1, model.model.stack.size.d_model))).shape[-1]
  short, long = (random.integers(3, words, (1, length)) for length in (12, 40))
  alone, text, at = model(short), np.pad(short, [(0, 0), (0, 8)]), np.arange(20)[None]
  for count in range(12, 20):  # across the length of training
    text[0, count] = np.asarray(model(text, at < count))[0, count - 1].argmax()
  model(long)
  np.testing.assert_array_equal(model(short), alone)
  np.testing.assert_array_equal(model.greedy(short, 8), text[:, 12:])
  mask = np.repeat([0, 1], [30, 12])[None]
  left = model(np.pad(short, [(0, 0), (30, 0)]), mask)[:, 30:]
  right = model(np.pad(short, [(0, 0), (0, 30)]), mask[:, ::-1])[:, :12]
  given = model(np.tile(short, 2), positions=np.tile(np.arange(12), 2)[None])[:, 12:]
  for found in (left, right, given):
    np.testing.assert_allclose(found, alone, atol=2e-5)
  if name == "dynamic":  # the base that the formula gives for 40 tokens
    base = 100 * (1 + 2 * (40 - 16) / 16) ** (6 / 4)
    plain = posexp.load(called, "rope.scaling=none", f"rope.base={base!r}")
    np.testing.assert_allclose(model(long), plain(long), atol=2e-5)


@pytest.mark.parametrize(
  ("name", "given", "said"),
  [
    ("llama", {"tokens": [[1, 23]]}, "token 23: .* from 0 to 22"),
    ("llama", {"tokens": [[1, 2**32]]}, f"token {2**32}: "),
    ("llama", {"tokens": [[1.5]]}, "must be a whole number"),
    ("llama", {"tokens": [1, 2]}, r"tokens must be \[B,L\]"),
    ("gpt2", {"tokens": [[1, 2]], "positions": [[-1, 0]]}, "position -1: "),
    ("bert", {"tokens": [[1, 2]], "types": [[0, 2]]}, "token type 2: .* from 0 to 1"),
    ("roberta", {"tokens": [[4, 5]], "positions": [[0, 600]]}, "position 600: "),
  ],
)
def test_what_no_table_has_is_refused(name, given, said):
  model = posexp.load(f"hf:{MODELS / name}")
  with pytest.raises(ValueError, match=said):
    model(**{key: np.array(each) for key, each in given.items()})
  if len(given) == 1 and name == "llama":
    with pytest.raises(ValueError, match=said):
      model.greedy(np.array(given["tokens"]), 1)


def test_padding_has_positions_of_no_row():
  model = posexp.load(f"hf:{MODELS / 'roberta'}")
  tokens = np.array([[4, 5, 6, 1]])
  given = model(tokens, tokens != 1, positions=np.array([[0, 1, 2, -1]]))
  np.testing.assert_allclose(given[:, :3], model(tokens, tokens != 1)[:, :3], atol=1e-5)


LIVE = [(name, {}) for name in released_models.CASES] + released_models.CHANGED


@pytest.mark.live
@pytest.mark.parametrize("number", range(len(LIVE)))
def test_transformers_itself_computes_the_same(number, tmp_path):
  pytest.importorskip("torch")
  pytest.importorskip("transformers")
  name, more = LIVE[number]
  case = released_models.CASES[name]
  released_models.make(case._replace(config=case.config | more), tmp_path, seed=number)
  check(tmp_path)


RELEASED = (Path(__file__).parents[2] / "docs/released.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```$", RELEASED, re.MULTILINE | re.DOTALL)


def test_the_guide_does_and_prints_what_it_says(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  done = []
  for kind, block in BLOCKS:
    done.append(kind)
    if kind == "python":
      exec(compile(block, "released.md", "exec"), {})
      continue
    typed, _, printed = block.partition("\n")
    python, flag, module, *argv = shlex.split(typed.removeprefix("$ "))
    assert (python, flag, module) == ("python", "-m", "posexp.inspect")
    with contextlib.redirect_stdout(io.StringIO()) as out:
      inspect.inspect(argv)
    assert out.getvalue().startswith(printed)
  assert done == ["python", "console", "python"]
