"""The explorer's orders as a page sends them, without a browser."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.demos import import_minari, load_demonstration
from navi_core.service.explorer import ExplorerSession, SceneChoice
from navi_core.service.web import served_page
from navi_core.service.web.explore import ExploreShow
from tests.service.page_client import page_client
from tests.service.test_explorer import SMALL


@pytest.fixture
def page(apartments, tmp_path):
    """An open page of an explorer of two scenes; its session is `page.session`."""
    choices = [SceneChoice(scene.name, lambda scene=scene: scene) for scene in apartments]
    session = ExplorerSession(choices, SMALL, tmp_path / "flights")
    with served_page(ExploreShow(session)) as address, page_client(address) as client:
        client.session = session
        yield client


def test_a_flight_is_recorded_saved_and_exported_as_minari(page, tmp_path):
    pytest.importorskip("minari", reason="Minari is not installed (pip install 'navi[minari]')")
    page.order(do="record")
    page.order(do="command", axes=[0.3, 0.0, 0.0, 0.2])
    page.until("flight", lambda m: m["recorded"] >= 3)
    page.order(do="finish")
    assert "saved" in page.until("flight", lambda m: not m["recording"])["notice"]
    page.order(do="export")
    page.until("flight", lambda m: "Minari" in m["notice"])
    (episode,) = import_minari(tmp_path / "flights-minari")
    demo = load_demonstration(page.session.saved[0])
    np.testing.assert_array_equal(episode.observations, demo.observations)
    np.testing.assert_array_equal(episode.actions, demo.actions)


def test_scenes_are_walked_and_the_drone_hovers_when_the_page_falls_silent(page):
    first = page.until("hello")["title"]
    page.order(do="command", axes=[0.0, 0.0, 0.0, 1.0])
    page.order(do="next")
    assert page.until("hello", lambda m: m["title"] != first)["mode"] == "explorer"
    # Nothing is said any more: a turn that went on for ever would never give the same yaw twice.
    yaws = []
    page.until("frame", lambda m: yaws.append(m["pose"][3]) or (len(yaws) > 2 and yaws[-1] == yaws[-2]))
    page.order(do="view", sharp=True)
    assert page.until("frame", lambda m: m["sharp"])["depth"].shape == SMALL.sharp_bins


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"do": "command", "axes": [1, 2, 3]}, "four finite numbers"),
        ({"do": "command", "axes": [1, 2, 3, "x"]}, "four finite numbers"),
        ({"do": "undo", "decisions": -1}, "whole number"),
        ({"do": "scene", "number": "last"}, "whole number"),
        ({"do": "land"}, "unknown order"),
        ({"do": "export"}, "no flight was saved yet"),
    ],
)
def test_orders_that_make_no_sense_are_refused(page, order, reason):
    page.order(**order)
    assert reason in page.until("refused")["reason"]
