"""Folders of released checkpoints: read by tensor, also of four bits, or refused if damaged."""

import json
import pickle

import ml_dtypes
import numpy as np
import pytest
from huggingface_hub.errors import EntryNotFoundError
from safetensors.numpy import load_file, save_file
from small_models import MODELS, changed

import posexp
from posexp.errors import UserError
from posexp.released.folder import _fetched, open_folder
from posexp.released.mxfp4 import unpacked

TENSORS = {
  "a": np.arange(6, dtype=np.float32).reshape(2, 3),
  "b": np.array([1.5, -2], ml_dtypes.bfloat16),
  "c": np.array([1, 2], np.int8),
}


@pytest.fixture(params=["one file", "shards"])
def folder(tmp_path, request):
  (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
  if request.param == "one file":
    save_file(TENSORS, tmp_path / "model.safetensors")
  else:
    files = {name: f"{name}.safetensors" for name in TENSORS}
    for name, tensor in TENSORS.items():
      save_file({name: tensor}, tmp_path / files[name])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
  return tmp_path


def test_tensors_are_read_when_asked_for(folder):
  opened = open_folder(f"hf:{folder}")
  assert opened.config == {"model_type": "gpt2"}
  assert opened.names() == ["a", "b", "c"]
  assert (opened.shape("a"), opened.dtype("b")) == ((2, 3), "bfloat16")
  for name in "ab":
    assert opened.tensor(name).dtype == TENSORS[name].dtype
    np.testing.assert_array_equal(opened.tensor(name), TENSORS[name])


class Trap:
  def __reduce__(self):
    return exit, ("unpickled",)


def cut(folder):
  file = max(folder.glob("*.safetensors"))
  file.write_bytes(file.read_bytes()[:-1])


def pickled(folder):
  for file in folder.glob("model*"):
    file.unlink()
  (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))


def indexed(weight_map):
  def write(folder):
    for file in folder.glob("*.safetensors"):
      file.unlink()
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)

  return write


def config(text):
  return lambda folder: (folder / "config.json").write_text(text)


def nothing(folder):
  pass


@pytest.mark.parametrize(
  ("damage", "tensor", "said"),
  [
    (nothing, "c", "stored as I8.*before it was quantized"),
    (nothing, "d", "no tensor d.*a, b, c"),
    (cut, "a", r"\w+\.safetensors is cut off or damaged \(.*\); copy or download it again"),
    (pickled, "a", r"a pickle \(pytorch_model.bin\), .* never opened; give them as model.safete"),
    (indexed({"a": "gone.safetensors"}), "a", "gone.safetensors is missing, which .* names"),
    (indexed({"a": "../a.safetensors"}), "a", "gives no file by tensor"),
    (indexed(None), "a", "gives no file by tensor"),
    (lambda folder: (folder / "config.json").unlink(), "a", "no config.json in it; give a folder"),
    (config("{"), "a", "config.json is no JSON"),
    (config("[]"), "a", "config.json holds no JSON object"),
  ],
)
def test_a_damaged_folder_or_a_tensor_of_no_use_gets_one_sentence(folder, damage, tensor, said):
  damage(folder)
  with pytest.raises(UserError, match=said):
    open_folder(str(folder)).tensor(tensor)


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("hf:./nothing", "no such folder, and no name on the hub, which is OWNER/NAME"),
    ("hf:some/model", "no such folder here, and the Hugging Face hub does not give it"),
  ],
)
def test_a_name_without_a_folder_is_explained(tmp_path, monkeypatch, name, said):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  with pytest.raises(UserError, match=f"^{name}: {said}"):
    open_folder(name)


def value(code: int) -> float:
  """E2M1: a sign, two bits of exponent with bias 1, and one of mantissa; no exponent: subnormal."""
  sign, exponent, mantissa = 1 - 2 * (code >> 3), code >> 1 & 3, code & 1
  return sign * (mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def test_a_repository_of_pickles_is_explained(monkeypatch):
  def refuses(*_, **__):
    raise EntryNotFoundError("404")

  monkeypatch.setattr("huggingface_hub.hf_hub_download", refuses)
  with pytest.raises(UserError, match=r"a/b: its repository has no model.safetensors, and pickles"):
    _fetched("hf:a/b", "a/b", "main", "model.safetensors")


def test_every_byte_is_two_numbers_times_a_power_of_two():
  blocks = np.arange(256, dtype=np.uint8).reshape(2, 4, 2, 16)
  scales = np.array([120, 127, 128, 140] * 4, np.uint8).reshape(2, 4, 2)
  found = unpacked(blocks, scales).astype(float)
  assert found.shape == (2, 64, 4)
  for (expert, out, group, byte), code in np.ndenumerate(blocks):
    scale = 2.0 ** (int(scales[expert, out, group]) - 127)
    pair = found[expert, 32 * group + 2 * byte :, out][:2]
    assert [*pair] == [value(int(code) & 15) * scale, value(int(code) >> 4) * scale]


WIDE = {12: 32, 10: 32, 20: 64}  # what is packed comes in groups of 32
CONFIG = {"hidden_size": 32, "intermediate_size": 32}


def drawn():
  """Return the tensors of a model with experts of 16 bits, and with packed ones."""
  draw, held = np.random.default_rng(0), load_file(MODELS / "gpt_oss" / "model.safetensors")
  whole = {key: np.resize(each, [WIDE.get(n, n) for n in each.shape]) for key, each in held.items()}
  packed = dict(whole)
  for name in [key for key in whole if key.endswith(("gate_up_proj", "down_proj"))]:
    experts, width, out = whole[name].shape
    blocks = draw.integers(0, 256, (experts, out, width // 32, 16), dtype=np.uint8)
    scales = draw.integers(123, 127, (experts, out, width // 32), dtype=np.uint8)
    whole[name] = unpacked(blocks, scales).astype(np.float32)
    packed |= {name: None, f"{name}_blocks": blocks, f"{name}_scales": scales}
  return whole, packed


def test_a_model_with_packed_experts_is_that_of_their_values(tmp_path):
  whole, packed = drawn()
  names = [
    changed(tmp_path / which, "gpt_oss", CONFIG, **tensors)
    for which, tensors in (("whole", whole), ("packed", packed))
  ]
  assert {*open_folder(names[1]).names()} == {*whole}
  one, other = (np.asarray(posexp.load(name)(np.arange(11)[None])) for name in names)
  np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
  ("part", "made", "said"),
  [
    ("scales", lambda x: x[:1], r"down_proj is \[\], and its config.json asks for \[4, 32, 32\]"),
    ("blocks", lambda x: x.astype(np.float32), r"down_proj is \[\], and"),
    ("scales", lambda x: None, "no tensor layers.0.mlp.experts.down_proj in it"),
  ],
)
def test_parts_that_do_not_fit_are_refused(part, made, said, tmp_path):
  _, packed = drawn()
  name = f"model.layers.0.mlp.experts.down_proj_{part}"
  packed[name] = made(packed[name])
  with pytest.raises(UserError, match=said):
    posexp.load(changed(tmp_path, "gpt_oss", CONFIG, **packed))
