"""Top-down pictures: where a scene is cut, and colours that are told apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image

from navi_core.evaluate.pictures import PATHS
from navi_core.record.home import load_scenes
from navi_core.service.web.app import STATIC
from navi_core.world import Field
from navi_core.world.floor.overhead import COLOURS, OverheadMaps, cut_height, tint_seen
from navi_core.world.floor.reachable import FloorMap


def linear(colour):
    shares = np.asarray(colour, float) / 255.0
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Contrast of two RGB colours by WCAG 2.2, 1 to 21."""
    dark, light = sorted(float(linear(colour) @ (0.2126, 0.7152, 0.0722)) + 0.05 for colour in (one, other))
    return light / dark


# Viénot, Brettel and Mollon 1999, for linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


def lab(colour, blindness):
    """CIELAB (D65) of an RGB colour as a person with a colour vision deficiency sees it."""
    rgb = np.clip(np.asarray(BLINDNESS[blindness]) @ linear(colour), 0.0, 1.0)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    f = np.cbrt(xyz / (0.9505, 1.0, 1.089))
    return np.array([116.0 * f[1] - 16.0, 500.0 * (f[0] - f[1]), 200.0 * (f[1] - f[2])])


def rgb(text):
    return tuple(bytes.fromhex(text.removeprefix("#")))


def test_floor_seen_floor_walls_and_paths_are_told_apart():
    floor, seen = COLOURS["floor"], COLOURS["seen"]
    assert contrast(floor, seen) >= 3.0
    assert contrast(floor, COLOURS["wall"]) >= 3.0 and contrast(seen, COLOURS["wall"]) >= 3.0
    # A path has a white casing: the line stands out against it, and the casing against seen floor.
    assert contrast((255, 255, 255), seen) >= 3.0
    for path in PATHS[:4]:
        assert contrast(rgb(path), (255, 255, 255)) >= 3.0, path
    for path in PATHS[:3]:
        assert contrast(rgb(path), floor) >= 3.0, path


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_paths_are_told_apart_by_people_with_a_colour_vision_deficiency(blindness):
    for one, other in itertools.combinations(PATHS[:4], 2):
        assert np.linalg.norm(lab(rgb(one), blindness) - lab(rgb(other), blindness)) >= 15.0, (one, other)


def test_legend_of_the_page_has_the_colours_of_the_picture():
    style = (STATIC / "style.css").read_text()
    meanings = {"floor": "floor", "seen": "seen", "furniture": "furniture", "wall": "wall", "out": "out of reach"}
    for name, meaning in meanings.items():
        assert f".m-{name} {{ --swatch: rgb({' '.join(map(str, COLOURS[meaning]))}); }}" in style


def test_picture_of_the_readme_has_the_colours_of_the_map():
    picture = np.asarray(Image.open(STATIC.parents[3] / "docs" / "img" / "flights.png").convert("RGB"))
    for colour in (COLOURS["floor"], COLOURS["wall"], rgb(PATHS[0]), rgb(PATHS[1])):
        assert (picture == colour).all(axis=-1).sum() > 100, colour


def black_shares(scenes, heights):
    field = Field(scenes)
    for index in range(len(scenes)):
        floor = FloorMap(field, index, 0.25, 0.25)
        maps = OverheadMaps(field, [floor] * len(scenes))
        for height in heights or np.arange(floor.height[0], floor.height[1] + 1e-6, 0.25):
            view = maps.at(index, float(height))
            inside = view.floor >= 0
            yield float((view.image[inside] == COLOURS["wall"]).all(axis=-1).mean())


def test_map_is_never_black_under_a_ceiling(apartments):
    assert max(black_shares(load_scenes(["apartment:0"], 128), None)) < 0.4


@pytest.mark.slow
def test_maps_of_sixteen_apartments_are_never_black():
    assert max(black_shares(load_scenes(["apartment:0-15"], 512), None)) < 0.4


def test_cut_is_above_the_drone_and_below_the_ceiling(apartments):
    field = Field(apartments[:1])
    floor = FloorMap(field, 0, 0.25, 0.25)
    top = float(field.bounds(0)[1][1])
    assert cut_height(field, 0, 1.0, floor) == pytest.approx(1.3)
    assert top - 0.75 < cut_height(field, 0, top - 0.3, floor) <= top - 0.3


def test_seen_floor_is_tinted_and_furniture_is_not(apartments):
    field = Field(apartments[:1])
    floor = FloorMap(field, 0, 0.25, 0.25)
    view = OverheadMaps(field, [floor]).at(0, 1.2)
    tinted = tint_seen(view, np.ones(floor.storeys.size, bool))
    was = (view.image == COLOURS["floor"]).all(axis=-1) & (view.floor >= 0)
    assert was.any() and (tinted[was] == COLOURS["seen"]).all()
    np.testing.assert_array_equal(tinted[~was], view.image[~was])
