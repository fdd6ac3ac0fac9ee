"""What a person reads from dashboard, explorer and replay: sums, names, states, warnings, and a layout that stays."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.service.explorer.session import ExplorerSession, SceneChoice
from navi_core.service.recordings import Recording, record_session
from navi_core.service.viewing import meshes
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.web import explore
from navi_core.service.web.app import served_page
from navi_core.service.web.explore import ExploreShow
from navi_core.service.web.live import LiveShow
from navi_core.service.web.replay import ReplayShow
from navi_core.world import Field, NavigationEnv
from tests.browser import headless_browser
from tests.service.web.page_client import page_client
from tests.service.web.test_explorer import SMALL
from tests.service.web.test_watching import until

AT = re.compile(r"At (-?[\d.]+), (-?[\d.]+) m, height (-?[\d.]+) m")


@pytest.fixture
def explorer(apartments, tmp_path):
    """An explorer of one scene, without a page."""
    scene = apartments[0]
    return ExplorerSession([SceneChoice(scene.name, lambda: scene)], SMALL, tmp_path / "flights")


@pytest.mark.browser
def test_earnings_add_up_to_the_reward_and_short_updates_stay_live(apartments, tmp_path):
    settings = EnvConfig(azimuth_bins=16, elevation_bins=8, stagger=False)
    env, file = NavigationEnv(Field(apartments), 1, settings, seed=1), tmp_path / "session.navi"
    with TrainingBroadcast("run", "ppo") as broadcast, headless_browser() as browser:
        watched = broadcast.watch(env)
        with served_page(LiveShow()) as address:
            page = browser.new_page()
            page.goto(address)
            until(lambda: broadcast.watched, 20.0)
            recorder = threading.Thread(target=record_session, args=([broadcast.endpoint], file), kwargs={"seconds": 2})
            recorder.start()
            for _ in range(8):
                batch = watched.step(torch.tensor([[1.0, 0.0, 0.0, 0.3]]))
                time.sleep(0.12)
            page.wait_for_function(f"() => document.getElementById('step').dataset.value === '{watched.decisions}'")
            texts = page.locator("#terms tr:not(.total) td:nth-child(5)").all_inner_texts()
            earned = [float(text) for text in texts if text]
            shown = float(page.locator("#terms tr.total td:nth-child(5)").inner_text())
            assert sum(earned) == pytest.approx(shown, abs=2e-3) == pytest.approx(float(batch.reward[0]), abs=2e-3)
            # Caption and position are those of one decision.
            caption = AT.search(page.locator(".view3d-sentence").inner_text()).groups()
            position = page.locator("#pose").inner_text().replace(" m", "").split(", ")[:3]
            x, height, z = (float(part) for part in position)
            assert [float(part) for part in caption] == pytest.approx([x, z, height], abs=0.051)
            recorder.join()
            assert page.locator("#phase").inner_text() == "live"
        # The recording has no update, so the replay shows no empty card of a training.
        with Recording(file) as recording, served_page(ReplayShow(recording, file.name)) as address:
            page.goto(address)
            page.wait_for_function("() => Number(document.getElementById('step').dataset.value) > 1")
            assert not page.locator("#training-card").is_visible()


LABELS = """
async () => {
  const { Chart } = await import("/charts.js");
  const chart = new Chart({ title: "a small one" });
  document.body.append(chart.root);
  chart.show([{ name: "a", steps: [1, 2], values: [-0.00123, -0.00984] }]);
  const context = chart.canvas.getContext("2d");
  context.font = "11px system-ui, sans-serif";
  return chart.left - 5 - context.measureText("-0.00984").width;
}
"""
BOXES = """
() => ["#phase", "#do-finish", "#do-undo", "#view-card", "header"].map((name) => {
  const { left, top, width, height } = document.querySelector(name).getBoundingClientRect();
  return [left, top, width, height];
})
"""
NAMES = """
async () => {
  const { nameOf } = await import("/view3d_overlay.js");
  const names = { 1: "object_037", 2: "Sofa", 3: "mesh.001", 4: "wall 3" };
  return [1, 2, 3, 4, 5].map((id) => nameOf(names, id));
}
"""


@pytest.mark.browser
def test_explorer_has_key_help_a_still_layout_and_names_only_what_has_one(explorer):
    from playwright.sync_api import expect

    with served_page(ExploreShow(explorer)) as address, headless_browser() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(address)
        expect(page.locator("#phase")).to_have_text("flying")
        before = page.evaluate(BOXES)
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_contain_text("drop the recording")
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.press("Enter")
        expect(page.locator("#do-record")).to_have_text("Recording")
        expect(page.locator("#recorded")).to_contain_text(f"of at most {SMALL.max_decisions:,} decisions")
        assert page.evaluate(BOXES) == before
        page.evaluate("document.getElementById('phase').textContent = 'server gone, trying again'")
        assert page.evaluate(BOXES) == before
        assert page.evaluate(NAMES) == ["surface", "Sofa", "surface", "wall 3", "surface"]
        assert page.evaluate(LABELS) >= 0


def test_time_waits_for_a_page_that_shows_old_frames(explorer):
    with served_page(ExploreShow(explorer)) as address, page_client(address) as page:
        page.order(do="seen", at=page.until("frame")["at"])
        # Nothing more is reported as shown: the drone stands still soon.
        steps = []

        def stands():
            steps.append(len(explorer.trajectory))
            time.sleep(0.4)
            return len(explorer.trajectory) == steps[-1]

        until(stands)
        page.messages.clear()
        frame = page.until("frame", lambda m: m["step"] == steps[-1] - 1)
        page.order(do="seen", at=frame["at"])
        until(lambda: len(explorer.trajectory) > steps[-1], 5.0)
        page.order(do="seen", at=1e12)
        assert "no frame's time" in page.until("refused")["reason"]


def test_page_shows_that_the_flight_is_slower_than_real_time(explorer, monkeypatch):
    fly = explorer.fly
    monkeypatch.setattr(explorer, "fly", lambda axes: time.sleep(0.25) or fly(axes))
    with served_page(ExploreShow(explorer)) as address, page_client(address) as page:
        assert re.fullmatch(r"slow: 0\.\d of real time", page.until("status", lambda m: "slow" in m["text"])["text"])


def test_flight_near_its_limit_is_announced(explorer, monkeypatch):
    monkeypatch.setattr(explore, "_WARN_SHARE", 0.2)
    explorer.config = SMALL.model_copy(update={"max_decisions": 20})
    with served_page(ExploreShow(explorer)) as address, page_client(address) as page:
        page.order(do="record")
        notice = page.until("flight", lambda m: "are left" in m["notice"])["notice"]
        assert notice == "2 s are left: this flight is then saved and ended (hovering counts)"
        assert "at most 20 decisions" in page.until("flight", lambda m: not m["recording"])["notice"]


def test_stored_meshes_stay_within_their_bound(apartments, monkeypatch, tmp_path):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    first = meshes.store_mesh(apartments[0])
    path = tmp_path / "meshes" / f"{first}.mesh"
    monkeypatch.setattr(meshes, "MAX_BYTES", 2 * path.stat().st_size)
    for number in range(3):
        old = path.with_name(f"{number:024x}.mesh")
        old.write_bytes(path.read_bytes())
    # What was looked at last stays.
    for file, at in zip(sorted(path.parent.iterdir()), range(1000, 2000, 100)):
        os.utime(file, (at, at))
    assert meshes.stored_mesh(f"{0:024x}")
    second = meshes.store_mesh(apartments[1])
    assert {file.stem for file in path.parent.iterdir()} <= {second, f"{0:024x}"}
    assert meshes.stored_mesh(second)
