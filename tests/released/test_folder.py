"""Folders of released checkpoints: read by tensor, and refused in one sentence if damaged."""

import json
import pickle

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from posexp.errors import UserError
from posexp.released.folder import open_folder

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


@pytest.mark.parametrize(
  ("name", "said"), [("c", "stored as I8.*before it was quantized"), ("d", "no tensor d.*a, b, c")]
)
def test_a_tensor_of_no_use_is_refused(folder, name, said):
  with pytest.raises(UserError, match=said):
    open_folder(str(folder)).tensor(name)


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


@pytest.mark.parametrize(
  ("damage", "said"),
  [
    (cut, r"\w+\.safetensors is cut off or damaged \(.*\); copy or download it again"),
    (pickled, r"a pickle \(pytorch_model.bin\), .* never opened; give them as model.safetensors"),
    (indexed({"a": "gone.safetensors"}), "gone.safetensors is missing, which .* names"),
    (indexed({"a": "../a.safetensors"}), "gives no file by tensor"),
    (indexed(None), "gives no file by tensor"),
    (lambda folder: (folder / "config.json").unlink(), "no config.json in it; give a folder"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json is no JSON"),
    (lambda folder: (folder / "config.json").write_text("[]"), "config.json holds no JSON object"),
  ],
)
def test_a_damaged_folder_gets_one_sentence(folder, damage, said):
  damage(folder)
  with pytest.raises(UserError, match=said):
    open_folder(str(folder))


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
