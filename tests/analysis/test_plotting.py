"""How figures look: the ticks of heat maps, and fonts for every script."""

import os
from xml.etree import ElementTree

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

from posexp.analysis import plotting
from posexp.config import arguments


def small_font(path, family, characters):
  """Writes a font in which each of some characters is a filled square."""
  build, pen = FontBuilder(1000, isTTF=True), TTGlyphPen(None)
  pen.moveTo((0, 0))
  for place in ((0, 900), (900, 900), (900, 0)):
    pen.lineTo(place)
  pen.closePath()
  names = {f"u{ord(character):X}": ord(character) for character in characters}
  build.setupGlyphOrder([".notdef", *names])
  build.setupCharacterMap({code: name for name, code in names.items()})
  build.setupGlyf(dict.fromkeys([".notdef", *names], pen.glyph()))
  build.setupHorizontalMetrics(dict.fromkeys([".notdef", *names], (1000, 0)))
  build.setupHorizontalHeader(ascent=900, descent=-100)
  build.setupNameTable({"familyName": family, "styleName": "Regular", "psName": family})
  build.setupOS2()
  build.setupPost()
  build.save(path)


@pytest.mark.parametrize("text", ["北京🦊", "\ue000\U000323b0"])
def test_text_is_drawn_in_a_font_that_has_it_or_that_is_said(tmp_path, monkeypatch, capsys, text):
  plotting._fonts_for.cache_clear()
  plotting._warn_of_boxes.cache_clear()
  installed = []
  monkeypatch.setattr(plotting.font_manager, "findSystemFonts", lambda: installed)
  monkeypatch.setattr(plotting.font_manager.fontManager, "ttflist", [
    each for each in plotting.font_manager.fontManager.ttflist if "DejaVu" in each.name
  ])  # fmt: skip

  def drawn(name):
    figure, _ = plotting.panels(1, 1, width=2, height=1, title=text)
    files = plotting.save(figure, tmp_path, name, kinds=("png", "svg", "pdf"))
    return [file.read_bytes() for file in files]

  boxes, *_ = drawn("without")
  drawn("again")
  (said,) = capsys.readouterr().err.splitlines()
  shown = " ".join(each if each.isprintable() else f"U+{ord(each):04X}" for each in sorted(text))
  assert said.startswith(f"note: no installed font has {shown}: PNG and PDF show boxes")
  family = f"Squares{ord(text[0])}"
  small_font(tmp_path / "a.ttf", family, text)
  installed.append(str(tmp_path / "a.ttf"))
  plotting._fonts_for.cache_clear()
  squares, svg, pdf = drawn("with")
  assert squares != boxes
  assert f"'{family}'" in svg.decode()
  assert family in pdf.decode("latin-1")
  assert not capsys.readouterr().err


def test_a_control_character_breaks_no_drawing(tmp_path):
  figure, _ = plotting.panels(1, 1, width=2, height=1, title="a\x01b\nc")
  (file,) = plotting.save(figure, tmp_path, "map", kinds=("svg",))
  assert "a�b" in "".join(ElementTree.parse(file).getroot().itertext())


def test_a_command_draws_where_a_notebook_has_named_what_is_not_installed(monkeypatch):
  monkeypatch.setenv("MPLBACKEND", "module://not_installed.backend_inline")
  arguments.status_of(lambda: 0)
  assert os.environ["MPLBACKEND"] == "agg"
