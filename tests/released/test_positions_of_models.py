"""Positions of released models, of which nothing else is read."""

import csv
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from posexp import inspect
from posexp.encodings import make_encoding
from posexp.errors import UserError
from posexp.released.folder import open_folder
from posexp.released.positions import positions

TABLE = np.random.default_rng(0).normal(size=(34, 8)).astype(np.float32)
BIAS = TABLE[:32, :2].copy()
BLOCK = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 4}


def folder(path, kind, tensors=None, **config):
  path.mkdir(exist_ok=True)
  (path / "config.json").write_text(json.dumps({"model_type": kind} | config))
  if tensors:
    save_file(tensors, path / "model.safetensors")
  return path


@pytest.mark.parametrize(
  ("kind", "name", "config", "first"),
  [
    ("bert", "bert.embeddings.position_embeddings.weight", {"max_position_embeddings": 34}, 0),
    ("roberta", "embeddings.position_embeddings.weight", {"max_position_embeddings": 34}, 2),
    ("gpt2", "wpe.weight", {"n_positions": 34, "n_embd": 8, "n_head": 2, "n_layer": 4}, 0),
    ("opt", "model.decoder.embed_positions.weight", {"max_position_embeddings": 32}, 2),
  ],
)
def test_a_table_begins_with_the_row_of_position_0(tmp_path, kind, name, config, first):
  sizes = {} if kind == "gpt2" else SIZES
  others = {"unread": np.zeros(3, np.int8)}  # of a type that is refused where it is read
  found = positions(
    open_folder(str(folder(tmp_path, kind, {name: TABLE} | others, **sizes, **config)))
  )
  np.testing.assert_array_equal(found.tables["embed/vector"], TABLE[first:])
  assert make_encoding(found.encoding).limit == len(TABLE) - first
  assert found.read == (name,)


ROPE = {"rope_theta": 100.0, "max_position_embeddings": 64, "head_dim": 8}
GPT_OSS = {"num_key_value_heads": 1, "sliding_window": 3}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
  ("kind", "config", "pattern"),
  [
    ("llama", ROPE, [(100.0, None)] * 4),
    ("phi", ROPE | {"partial_rotary_factor": 0.5}, [(100.0, None)] * 4),
    (
      "gpt_oss",
      ROPE | {"rope_parameters": None, "sliding_window": 3},
      [(100.0, 3), (100.0, None)] * 2,
    ),
    (
      "gpt_oss",
      {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
      [(50.0, 128), (50.0, None)] * 2,
    ),
    (
      "gemma3_text",
      {"sliding_window": 5, "sliding_window_pattern": 2},
      [(1e4, 5), (1e6, None)] * 2,
    ),
    ("smollm3", ROPE, [(100.0, None)] * 3 + [(None, None)]),
    ("phi3", ROPE | {"sliding_window": 7}, [(100.0, 7)] * 4),
  ],
)
def test_layers_have_the_bases_and_windows_of_the_config(tmp_path, kind, config, pattern):
  found = positions(open_folder(str(folder(tmp_path, kind, **SIZES, **config))))
  layers = make_encoding(found.encoding).layers(4)
  assert [(getattr(layer.encoding, "base", None), layer.window) for layer in layers] == pattern
  assert found.read == ()  # not even a file of weights is there


@pytest.mark.parametrize(
  ("kind", "config", "said"),
  [
    ("llama9", {}, "model_type='llama9', and posexp reads positions of llama, .*gpt_oss"),
    ("llama", {"rope_scaling": {"rope_type": "warp"}}, "rope_type='warp', and posexp has default,"),
    (
      "llama",
      {"rope_scaling": {"type": "linear", "factor": 2, "warp": 1}},
      "has warp=1, which posexp does not know for rope_type=linear",
    ),
    ("bert", {"position_embedding_type": "relative_key"}, "posexp has 'absolute' alone"),
    ("bert", {}, "no weights in it"),
    ("mpt", {"attn_config": {"alibi_bias_max": 4}}, "alibi_bias_max=8 alone"),
  ],
)
def test_positions_that_posexp_does_not_have_are_refused(tmp_path, kind, config, said):
  with pytest.raises(UserError, match=said):
    positions(open_folder(str(folder(tmp_path, kind, **config))))


def test_models_are_drawn_side_by_side(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  bias = {f"{stack}.{BLOCK}": BIAS for stack in ("encoder", "decoder")}
  folder(tmp_path / "t5", "t5", bias, d_model=8, num_heads=2, d_kv=4, num_layers=2)
  sizes = {"n_embed": 8, "num_attention_heads": 4, "num_hidden_layers": 3}  # as files have them
  folder(tmp_path / "bloom", "bloom", **sizes, position_new=1)
  folder(tmp_path / "gpt-oss", "gpt_oss", **SIZES, **ROPE, rope_scaling=YARN, **GPT_OSS)
  files = inspect.inspect(["hf:t5", "hf:bloom", "hf:./gpt-oss", "out=figures", "positions=20"])
  names = {file.stem for file in files}
  assert names == {"stack", "bias-by-offset", "bias-by-bucket", "wavelengths"}
  with open(tmp_path / "figures/bias-by-offset.csv", encoding="utf-8") as file:
    drawn = {(row["panel"], row["series"], row["x"]): row["y"] for row in csv.DictReader(file)}
  for offset, bucket in ((-19, 17), (-3, 3), (0, 0)):  # of a decoder, whose 16 first are exact
    assert float(drawn["t5, decoder", "head 1", f"{offset}"]) == pytest.approx(
      BIAS[bucket, 1], 1e-5
    )
  assert float(drawn["bloom", "head 0", "-19"]) == -19 / 4
  text = capsys.readouterr().out
  assert "slopes           0.25 0.0625 0.01562 0.003906" in text
  assert "hf:bloom (bloom): 3 layers, d_model 8, 4 heads of width 2" in text
  assert "not read         position_new" in text
  factor = 0.1 * np.log(4) + 1
  assert f"temperature      {factor:.6g} on queries and keys, {factor**2:.6g} on logits" in text
  with pytest.raises(UserError, match="beside hf:t5 give other models, runs"):
    inspect.inspect(["hf:t5", "encoding=rope"])
