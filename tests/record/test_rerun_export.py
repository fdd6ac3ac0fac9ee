"""Export for Rerun: what is logged of each moment, read from the logged entities."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest

from navi_core.errors import RecordError
from navi_core.record.rerun import EpisodeTrace, _colours, _log, write_rrd

rr = pytest.importorskip("rerun", reason="Rerun is not installed (pip install -e '.[rerun]')")
AHEAD, LEFT, BACK, RIGHT = (0.0, 0.0, -1.0), (-1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)
DOWN = (0.0, -1.0, 0.0)


def trace(**changes) -> EpisodeTrace:
    """Return a flight of two moments that turns left by a right angle; azimuths run clockwise, two elevations."""
    depth = np.arange(1, 17, dtype=np.float32).reshape(2, 4, 2)
    given = {
        "name": "a flight",
        "positions": np.array([[0, 1, 0], [0, 1, -1]], np.float32),
        "yaws": np.array([0, math.pi / 2], np.float32),
        "depth": depth,
        "semantic": np.array([[[0, 1]] * 4] * 2, np.uint16),
        "valid": depth != 4,
        "directions": np.array([each for way in (AHEAD, RIGHT, BACK, LEFT) for each in (way, DOWN)], np.float32),
        "seconds": np.array([0.0, 0.5]),
        "scalars": {"reward": np.array([1.5, np.nan])},
    }
    return EpisodeTrace(**given | changes)


class Stream:
    """Stream that keeps what is logged, by moment and path."""

    def __init__(self) -> None:
        self.logged, self.moment, self.times = {}, None, []

    def send_recording_name(self, name: str) -> None:
        self.name = name

    def set_time(self, timeline: str, **values: float) -> None:
        self.times.append((timeline, *values.items()))
        self.moment = int(values.get("sequence", self.moment or 0))

    def log(self, path: str, entity: object, *, static: bool = False) -> None:
        self.logged[None if static else self.moment, path] = entity


def logged(flown: EpisodeTrace) -> Stream:
    stream = Stream()
    _log(rr, stream, flown)
    return stream


def values(batch) -> list:
    return batch.as_arrow_array().to_pylist()


def test_points_lie_where_their_rays_end():
    points, semantic = trace().points(1)
    # It faces -X: ahead is -X, right is -Z, down stays down.
    ends = [(-9, 1, -1), (0, -9, -1), (0, 1, -12), (0, -11, -1), (13, 1, -1), (0, -13, -1), (0, 1, 14), (0, -15, -1)]
    assert np.allclose(points, ends, atol=1e-5) and semantic.tolist() == [0, 1] * 4
    points, semantic = trace().points(0)
    assert len(points) == 7 and semantic.tolist() == [0, 1, 0, 0, 1, 0, 1], "an invalid ray has no point"


def test_a_moment_is_logged_with_its_picture_its_points_and_its_heading():
    stream = logged(trace())
    assert stream.name == "a flight"
    assert stream.times[2:] == [("decision", ("sequence", 1)), ("flight", ("duration", 0.5))]
    picture = np.frombuffer(bytes(values(stream.logged[0, "panorama/depth"].buffer)[0]), np.float32).reshape(2, 4)
    # Back, left, ahead and right; what is not measured is 0.
    assert picture.tolist() == [[5, 7, 1, 3], [6, 8, 2, 0]]
    assert values(stream.logged[0, "panorama/depth"].meter) == [1.0]
    cloud = stream.logged[1, "world/points"]
    assert np.allclose(values(cloud.positions), trace().points(1)[0]) and values(cloud.radii) == [pytest.approx(0.03)]
    red, other = (int(colour) for colour in values(cloud.colors)[:2])
    assert red == int.from_bytes((242, 89, 89, 255), "big") and other == int.from_bytes((89, 133, 242, 255), "big")
    ((here, ahead),) = values(stream.logged[1, "world/drone"].strips)
    assert here == [0, 1, -1] and np.allclose(ahead, (-0.4, 1, -1), atol=1e-6)


def test_neighbouring_ids_have_distant_hues():
    hues = [colorsys.rgb_to_hsv(*colour)[0] for colour in _colours(np.arange(40, dtype=np.uint16)) / 255]
    turns = np.abs(np.diff(hues))
    assert (np.minimum(turns, 1 - turns) > 0.35).all()


def test_curves_have_no_value_where_it_is_not_finite():
    stream = logged(trace())
    assert values(stream.logged[0, "curves/reward"].scalars) == [1.5]
    assert (1, "curves/reward") not in stream.logged


def test_a_finer_path_is_drawn_where_it_is_known():
    assert len(values(logged(trace()).logged[None, "world/path"].strips)[0]) == 2
    fine = np.zeros((9, 3), np.float32)
    assert len(values(logged(trace(path=fine)).logged[None, "world/path"].strips)[0]) == 9


@pytest.mark.parametrize("name", ["yaws", "depth", "semantic", "valid", "directions", "seconds", "positions"])
def test_arrays_that_do_not_fit_are_refused_by_name(name):
    with pytest.raises(RecordError, match="has shape"):
        trace(**{name: getattr(trace(), name)[:-1]})
    with pytest.raises(RecordError, match="curve of an episode"):
        trace(scalars={"curve": np.zeros(3)})


def test_the_file_has_its_name_when_it_is_whole(tmp_path):
    folder = tmp_path / "new" / "newer"
    write_rrd(folder / "flight.rrd", trace())
    assert [file.name for file in folder.iterdir()] == ["flight.rrd"]
    assert (folder / "flight.rrd").read_bytes().startswith(b"RRF2")
