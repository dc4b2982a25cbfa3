"""An encoding in numbers: tables on the terminal, and vectors for Python."""

import functools

import matplotlib.image
import numpy as np
import pytest

from posexp import UserError, inspect, vectors
from posexp.analysis import plotting, values
from posexp.encodings import encoding

pytestmark = pytest.mark.usefixtures("few_positions")


def test_few_positions_are_shown_in_numbers():
  shown = values.of_positions(vectors("sinusoidal", positions=3, width=4, base=100), "012")
  assert shown[1:] == [
    "        0        1       2       3", "0  0.0000   1.0000  0.0000  1.0000",
    "1  0.8415   0.5403  0.0998  0.9950", "2  0.9093  -0.4161  0.1987  0.9801",
  ]  # fmt: skip
  shown = values.of_pairs(encoding("rpr", k=1), False, values.tokens("小狗追了"))
  assert shown[1:] == [
    "    小  狗  追  了", "小   0   1   1   1", "狗  -1   0   1   1", "追  -1  -1   0   1",
    "了  -1  -1  -1   0",
  ]  # fmt: skip
  shown = values.of_pairs(encoding("t5", buckets=4, max_distance=3), True, values.tokens("a b c"))
  assert shown[1:] == ["   a  b  c", "a  0", "b  1  0", "c  2  1  0"]


def test_figures_are_drawn_and_words_stand_beside_numbers_and_the_first_channels_of_wide_vectors(
  tmp_path, monkeypatch, capsys
):
  save = functools.partial(plotting.save, kinds=("png", "svg"))
  monkeypatch.setattr(plotting, "save", save)
  argv = ["encoding=sinusoidal", "text=he =saw her", "model=tiny", f"out={tmp_path}"]
  files = inspect.inspect(argv)
  names = ("vectors", "products-by-offset", "share-of-offset")
  kinds = ("png", "svg", "csv")
  assert {path.name for path in files} == {f"{name}.{kind}" for name in names for kind in kinds}
  for name in names:
    pixels = matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3]
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels @ [1, 256, 256**2])) > 20  # a number for each color
  said = capsys.readouterr().out
  assert said.startswith("sinusoidal\n")
  assert "permuting words" in said
  assert "\nvectors of positions, the first 8 of 64 channels\n" in said
  assert "\nsuits            encoder, decoder; not memory: --all says why\n" in said
  assert len(said.partition("\n\nvectors")[0].splitlines()) == 11  # a blank line among them
  header, *rows = (tmp_path / "vectors.csv").read_text().splitlines()
  assert header == "panel,series,x,y,value,x token,y token"
  assert rows[0] == "0,,0,0,0,,he"
  assert "1,,1,0," in rows[-15] + rows[-14]
  assert [row.split(",")[-2:] for row in rows[-4:]][:2] == [["he", "her"], ["'=", "her"]]
  assert ">saw</text>" in (tmp_path / "vectors.svg").read_text()


def test_vectors_are_those_of_the_formula():
  with pytest.raises(UserError, match="positions=0: give a whole number from 1 on"):
    vectors("index", positions=0, width=1)
  found = vectors("binary", positions=3, width=4, bits=2)
  assert (np.sign(found) == [[-1, -1, 0, 0], [1, -1, 0, 0], [-1, 1, 0, 0]]).all()
  with pytest.raises(UserError, match="rope has no vectors of positions: it acts in attention"):
    vectors("rope", positions=3, width=4)
  with pytest.raises(UserError, match="binary: bits=10 are more than the 4 channels"):
    vectors("binary", positions=3, width=4)


def test_layers_that_differ_are_each_described(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(plotting, "save", lambda *figure: [])  # their numbers are written even so
  model = ["model.d_model=16", "model.num_heads=2", "model.num_layers=4", f"out={tmp_path}"]
  pattern = "by_layer.pattern=[none,rpr k=4,alibi window=8]"
  files = inspect.inspect(["encoding=by_layer", pattern, *model, "positions=12", "--all"])
  said = " ".join(capsys.readouterr().out.split())
  assert "covers layers 0, 3: nothing; layer 1: offsets to 4 back and 4 ahead; layer 2: off" in said
  assert "layer 2: what lies outside of the window or chunk is not seen" in said
  assert "unique layers 0, 3: no: nothing tells" in said
  assert "nothing in numbers: no vectors of positions, and no rows of a table" in said
  drawn = {path.stem for path in files}
  assert {f"logits-by-offset-layer-{layer}" for layer in (0, 1, 2)} < drawn
