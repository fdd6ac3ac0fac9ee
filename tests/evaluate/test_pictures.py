"""Maps of evaluated flights: geometry, paths and legend of the drawn figure."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from navi_core.evaluate import top_down_map
from navi_core.world import Field, FloorMap
from navi_core.world.floor.overhead import COLOURS


@pytest.fixture
def draw(monkeypatch):
    """Draw a map; return its figure."""
    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: kept.append(figure) or save(figure, *a, **k))

    def drawn(*arguments):
        assert top_down_map(*arguments).startswith(b"\x89PNG")
        return kept[-1]

    return drawn


def colour(axes, x, z):
    """Name of the colour that a panel shows at a point."""
    left, right, bottom, top = axes.images[0].get_extent()
    picture = axes.images[0].get_array()
    row, column = (z - top) / (bottom - top) * picture.shape[0], (x - left) / (right - left) * picture.shape[1]
    shown = tuple(int(value) for value in picture[int(row), int(column)])
    return next(name for name, value in COLOURS.items() if value == shown)


@pytest.fixture(scope="module")
def door(door_room):
    """The parted room and its floor, whose left half was seen."""
    field = Field([door_room])
    floor = FloorMap(field, 0, 0.1, 0.2)
    seen = np.zeros(floor.storeys.shape, bool)
    seen[:, : int(4.0 / floor.cell)] = True
    return field, floor, seen


def test_map_shows_walls_and_seen_floor_where_they_are_and_names_their_colours(door, draw):
    field, floor, seen = door
    for given, left, names in (
        ((), "floor", ["floor", "furniture", "wall"]),
        ((floor, seen), "seen", ["floor", "seen", "furniture", "wall", "out of reach"]),
    ):
        figure = draw(field, 0, {}, *given)
        (axes,), (legend,) = figure.axes, figure.legends
        assert [text.get_text() for text in legend.get_texts()] == names
        # The wall's left face at x = 3.9, and the door in it.
        assert [colour(axes, 3.9, z) for z in (0.8, 2.0, 3.2)] == ["wall", left, "wall"]
        assert [colour(axes, x, 3.3) for x in (0.5, 2.0, 6.0, 7.5)] == [left, left, "floor", "floor"]


def test_a_path_runs_from_its_circle_to_its_square(door, draw):
    path = np.array([(1.0, 1.2, 0.5), (4.0, 1.2, 2.0), (7.0, 1.2, 3.5)])
    (axes,) = draw(door[0], 0, {"a": path, "b": [path[::-1]]}).axes
    marked = [(line.get_marker(), *line.get_xydata().ravel()) for line in axes.lines]
    assert marked[:3] == [("None", 1, 0.5, 4, 2, 7, 3.5), ("o", 1, 0.5), ("s", 7, 3.5)]
    assert marked[4:] == [("o", 7, 3.5), ("s", 1, 0.5)]
    assert len({line.get_color() for line in axes.lines[:3]}) == 1 != len({line.get_color() for line in axes.lines})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_the_map_fills_its_figure_and_no_text_is_cut_off(door, draw):
    figure = draw(door[0], 0, {"a": np.array([(1.0, 1.2, 0.5), (7.0, 1.2, 3.5)])})
    (axes,), (width, height) = figure.axes, figure.bbox.size
    panel = axes.get_window_extent()
    assert panel.width * panel.height > 0.5 * width * height
    legends = figure.legends[0].get_texts(), axes.get_legend().get_texts()
    texts = (axes.title, axes.xaxis.label, axes.yaxis.label, *legends[0], *legends[1])
    boxes = [text.get_window_extent() for text in texts]
    assert all(figure.bbox.count_contains(box.corners()) == 4 for box in (panel, *boxes))
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in (panel, *boxes[:n]))
