"""Names in pictures: every script and every sign, never an empty box, and nothing taken for a formula."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from navi_core.evaluate import pictures, top_down_map
from navi_core.evaluate.pictures import draw_name
from navi_core.world import Field

NAMES = ["台所", "مطبخ", "Büro", "$x^$", r"$\frac$ and $5", "a\nb", "nul\0", "x" * 3000, "\U0010ffff", "_hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_of_any_name_is_drawn_without_a_warning(door_room, name):
    field = Field([replace(door_room, name=name)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = top_down_map(field, 0, {name: np.array([[1.0, 1.0, 1.0], [2.0, 1.0, 2.0]])})
    assert picture.startswith(b"\x89PNG")


def drawn(printed: str):
    figure = Figure()
    FigureCanvasAgg(figure)
    text = figure.suptitle(printed)
    draw_name(text)
    return text


def test_letters_without_a_font_are_drawn_as_code_points(monkeypatch):
    """Of a machine with one font."""
    from matplotlib.font_manager import fontManager

    monkeypatch.setattr(fontManager, "ttflist", [one for one in fontManager.ttflist if one.name == "DejaVu Sans"])
    pictures._families.cache_clear()
    text = drawn("台所 Büro")
    pictures._families.cache_clear()
    assert text.get_text() == r"\u53f0\u6240 Büro" and text.get_fontfamily() == ["DejaVu Sans"]


def test_a_font_that_has_the_letters_is_found(monkeypatch):
    """Installed fonts differ, so one of them is declared to have the missing letters."""
    from matplotlib import font_manager

    real = font_manager.get_font

    class Rich:
        def get_char_index(self, code: int) -> int:
            return 1

    monkeypatch.setattr(font_manager, "get_font", lambda path: Rich() if "Serif" in str(path) else real(path))
    pictures._families.cache_clear()
    text = drawn("台所")
    pictures._families.cache_clear()
    assert text.get_text() == "台所" and text.get_fontfamily()[1:] == ["DejaVu Serif"]


@pytest.mark.parametrize("content", [None, b"junk"])
def test_missing_or_broken_font_is_skipped(monkeypatch, tmp_path, content):
    """matplotlib caches its list of fonts in a file, which may list removed ones."""
    from matplotlib.font_manager import FontEntry, fontManager

    file = tmp_path / "gone.ttf"
    if content is not None:
        file.write_bytes(content)
    gone = FontEntry(fname=str(file), name="A Font", style="normal", weight=400)
    plain = [one for one in fontManager.ttflist if one.name == "DejaVu Sans"]
    monkeypatch.setattr(fontManager, "ttflist", [gone, *plain])
    pictures._families.cache_clear()
    text = drawn("台所")
    pictures._families.cache_clear()
    assert text.get_text() == r"\u53f0\u6240"
