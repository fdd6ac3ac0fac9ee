"""The page as people use it, in a real headless browser."""

from __future__ import annotations

import math
import re
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from navi_core.config import ContinuousTrainingConfig, EnvConfig, GateConfig
from navi_core.demos import load_demonstration
from navi_core.record.events import UpdateMade
from navi_core.service.explorer.session import ExplorerSession, SceneChoice
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.web.app import served_page
from navi_core.service.web.explore import ExploreShow
from navi_core.service.web.live import LiveShow
from navi_core.world import Field, NavigationEnv
from tests.browser import headless_browser
from tests.service.conftest import SMALL as TINY_ENV
from tests.service.conftest import tiny_model
from tests.service.web.test_explorer import SMALL
from tests.service.web.test_watching import until

pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844}


def metres_text(metres):
    return f"{metres:.2f} m" if metres < 10 else f"{metres:.1f} m"


@contextmanager
def explorer_page(scenes, folder):
    """Yield an explorer's session, a browser's empty page, and the address that it is to open."""
    choices = [SceneChoice(scene.name, lambda scene=scene: scene) for scene in scenes]
    session = ExplorerSession(choices, SMALL, folder / "flights")
    with served_page(ExploreShow(session)) as address, headless_browser() as browser:
        yield session, browser.new_page(), address


def check_panorama(page, depth, valid):
    """Point at rays of the panorama and compare what the page reads with the observation, (Az, El) each."""
    azimuths, elevations = depth.shape
    box = page.locator("#panorama-over").bounding_box()
    for column, row in ((0, 1), (azimuths // 2, elevations // 2), (azimuths - 1, elevations - 2)):
        x, y = (column + 0.5) * box["width"] / azimuths, (row + 0.5) * box["height"] / elevations
        page.hover("#panorama-over", position={"x": x, "y": y})
        ray = (column - azimuths // 2) % azimuths
        metres = float(np.expm1(np.float64(depth[ray, row]) * np.log1p(100.0)))
        expected = metres_text(metres) if valid[ray, row] else "nothing within range"
        page.wait_for_function("text => document.getElementById('reading-value')?.textContent === text", arg=expected)


def test_a_flight_by_key_presses_makes_a_demonstration(apartments, tmp_path):
    """Record, fly ahead, turn, take back, save; on a phone nothing is wider than the screen."""
    from playwright.sync_api import expect

    with explorer_page(apartments, tmp_path) as (session, page, address):
        foreign = []
        page.on("request", lambda request: foreign.append(request.url) if address[7:] not in request.url else None)
        page.goto(address)
        expect(page.locator("#phase")).to_have_text("flying")
        page.keyboard.press("Enter")
        expect(page.locator("#do-record")).to_have_text("Recording")
        page.keyboard.down("w")
        page.wait_for_timeout(600)
        page.keyboard.up("w")
        page.keyboard.down("ArrowLeft")
        page.wait_for_timeout(500)
        page.keyboard.up("ArrowLeft")
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("paused")
        check_panorama(page, session.observation[0], session.observation[2])
        page.wait_for_timeout(150)
        shown = page.locator("#recorded").inner_text()
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("saved")
        expect(page.locator("#scenes tr.here td").nth(1)).to_have_text("1")
        page.set_viewport_size(PHONE)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert foreign == []
    demo = load_demonstration(session.saved[0])
    assert shown.startswith(f"{len(demo.actions)} of at most 6,000 decisions")
    assert demo.actions[:, 0].max() == np.float32(0.35) and demo.actions[:, 3].max() == np.float32(0.35)
    assert not demo.actions[:, 1:3].any()


@pytest.mark.slow
def test_released_keys_stop_and_focused_controls_keep_keys(apartments, tmp_path):
    """A key released under Ctrl stops its motion; Enter and Space press the control that has the focus."""
    from playwright.sync_api import expect

    with explorer_page(apartments, tmp_path) as (session, page, address):
        sent = []
        take = lambda text: None if '"seen"' in text else sent.append(text)  # noqa: E731
        page.on("websocket", lambda socket: socket.on("framesent", take))
        page.goto(address)
        expect(page.locator("#phase")).to_have_text("flying")
        page.keyboard.down("w")
        page.wait_for_timeout(150)
        page.keyboard.down("Control")
        page.keyboard.up("w")
        page.keyboard.up("Control")
        page.wait_for_timeout(300)
        assert '"axes":[0.35,0,0,0]' in sent[-2] and '"axes":[0,0,0,0]' in sent[-1]
        # An idle page sends nothing: another tab may be flying.
        before = len(sent)
        page.wait_for_timeout(300)
        assert len(sent) == before
        for control, key, order in (("#do-undo", "Enter", "undo"), ("#do-pause", "Space", "pause")):
            page.focus(control)
            page.keyboard.press(key)
            page.wait_for_timeout(100)
            assert sent[-1] == f'{{"do":"{order}"}}'
        expect(page.locator("#phase")).to_have_text("paused")
        page.focus("#sharp")
        page.keyboard.press("Space")
        expect(page.locator("#sharp")).to_be_checked()
        page.focus("#throttle")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#throttle-value")).to_have_text("40\u00a0%")
        # Whoever points goes on by keys.
        page.click("#do-pause")
        expect(page.locator("#phase")).to_have_text("flying")
        page.click("#sharp")
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("paused")
        assert session.recording is None


def test_page_reconnects_after_a_dead_connection(apartments, tmp_path):
    """As after a laptop slept: no message arrives, and the connection is not closed."""
    from playwright.sync_api import expect

    with explorer_page(apartments[:1], tmp_path) as (_, page, address):
        dead = []

        def pipe(socket):
            server = socket.connect_to_server()
            cut = not dead
            dead.append(cut)
            count = []

            def pass_on(message):
                count.append(1)
                if not cut or len(count) < 20:
                    socket.send(message)

            server.on_message(pass_on)

        page.route_web_socket("**/ws*", pipe)
        page.clock.install()
        page.goto(address)
        expect(page.locator("#phase")).to_have_text("flying")
        flown = "least => Number(document.getElementById('step').dataset.value) > least"
        page.wait_for_function(flown, arg=3)
        page.clock.fast_forward(7000)
        expect(page.locator("#phase")).to_have_text("server gone, trying again")
        page.clock.fast_forward(300)
        expect(page.locator("#phase")).to_have_text("flying")
        assert dead == [True, False]
        shown = int(page.locator("#step").get_attribute("data-value"))
        page.wait_for_function(flown, arg=shown)


@pytest.mark.slow
def test_open_page_reloads_after_a_server_upgrade(apartments, tmp_path, monkeypatch):
    flying = "() => document.getElementById('phase').textContent === 'flying'"
    with explorer_page(apartments[:1], tmp_path) as (session, page, _):
        with served_page(ExploreShow(session)) as address:
            page.goto(address)
            page.wait_for_function(flying)
            page.evaluate("window.before = true")
        monkeypatch.setattr("navi_core.service.web.app._page_version", lambda: "another")
        with served_page(ExploreShow(session), port=int(address.rsplit(":", 1)[1])):
            page.wait_for_function("() => window.before === undefined")
            page.wait_for_function(flying)
            assert page.evaluate("() => typeof window.before") == "undefined", "flies on in the page that was left open"


PAD = """
window.pad = { connected: true, axes: [0, 0, 0, 0], buttons: [0, 1, 2, 3].map(() => ({ pressed: false })) };
navigator.getGamepads = () => [window.pad];
"""


@pytest.mark.slow
def test_gamepad_flies_records_and_undoes(apartments, tmp_path):
    """Button A records and saves, the right stick flies ahead, button B undoes."""
    from playwright.sync_api import expect

    with explorer_page(apartments, tmp_path) as (session, page, address):
        page.add_init_script(PAD)
        page.goto(address)
        expect(page.locator("#phase")).to_have_text("flying")

        def press(button):
            page.evaluate(f"pad.buttons[{button}].pressed = true")
            page.wait_for_timeout(250)
            page.evaluate(f"pad.buttons[{button}].pressed = false")
            page.wait_for_timeout(250)

        press(0)
        expect(page.locator("#do-record")).to_have_text("Recording")
        page.evaluate("pad.axes[3] = -1")
        expect(page.locator("#input-kind")).to_have_text("gamepad")
        page.wait_for_timeout(4000)
        page.evaluate("pad.axes[3] = 0")
        press(1)
        page.wait_for_timeout(300)
        press(0)
        expect(page.locator("#notice")).to_contain_text("saved")
    demo = load_demonstration(session.saved[0])
    assert demo.actions[:, 0].max() == np.float32(0.35) and not demo.actions[:, 1:].any()
    # Three seconds were taken back, thirty decisions.
    assert 5 < len(demo.actions) < 40


@pytest.mark.slow
def test_dashboard_shows_the_status_page_of_a_gated_learning_service(stage, tmp_path):
    from playwright.sync_api import expect

    gate = RolloutGate(stage.field, TINY_ENV, GateConfig(), capacity=64)
    settings = ContinuousTrainingConfig(training_interval=0.05, batch_size=16, min_batch_size=4)
    learning = FlightLearning(tiny_model(), settings, gate, outbox=tmp_path)
    environment = stage.environment(sessions=4, seed=1)
    actor = stage.actor(environment, gate=gate, learning=learning, sample=True, http="0")
    show = LiveShow([actor.publisher.endpoint, environment.publisher.endpoint], [actor.url], discover=False)
    with served_page(show) as address, headless_browser() as browser:
        page = browser.new_page(viewport=PHONE)
        page.goto(address)
        expect(page.locator("#sessions table tbody tr")).to_have_count(4, timeout=20_000)
        expect(page.locator("#sessions .gate").first).to_have_text(re.compile("SEND|WAIT"), timeout=20_000)
        until(lambda: learning.trainer.model_version >= 3, 20.0)
        # Nothing is decided any more, and the numbers stand still.
        environment.stop()
        environment.thread.join(10)
        learning.trainer.stop()
        until(lambda: all(session.request is not None for session in actor.sessions), 20.0)
        time.sleep(0.5)
        status = actor.status()
        names = ("model_version", "total_samples_trained", "errors", "average_gate_agreement")
        shown = {f"training.{name}": status["training"][name] for name in names}
        shown |= {f"buffer.{name}": status["buffer"][name] for name in ("completed_count", "capacity", "utilization")}
        shown |= {f"metrics.{name}": status["metrics"][name] for name in ("decisions_total", "gate_send_total")}
        for name, value in shown.items():
            text = f"{value:,}" if float(value).is_integer() else f"{value:.4f}"
            expect(page.locator(f"[data-fact='{name}']")).to_have_text(text.removesuffix(".0"), timeout=20_000)
        expect(page.locator("[data-fact='training.is_running']")).to_have_text("false")
        # No card is empty, the gate's shares are those of its counters, and the title is a name.
        expect(page.locator("#title")).to_have_text(f"Service of {status['model']}")
        metrics = status["metrics"]
        judged = metrics["gate_send_total"] + metrics["gate_wait_total"]
        held = page.locator("[data-gate='held back']")
        expect(held).to_have_text(f"{100 * metrics['gate_wait_total'] / judged:.1f} %")
        assert "p99" in page.locator("#latency canvas").first.get_attribute("aria-label")
        for card in page.locator("main > .card:visible").all():
            assert len(card.inner_text().split()) > 3, card.get_attribute("id")
        rewards = page.evaluate("[...document.querySelectorAll('#sessions td:nth-child(4)')].map((c) => c.textContent)")
        assert any(float(reward) for reward in rewards)
        # The table and the shown drone's card have one source.
        shown = page.locator("#reward-facts").inner_text().split()[0]
        assert float(shown) == pytest.approx(float(rewards[int(page.locator("#drone").input_value())]), abs=1e-3)
        page.screenshot(path=tmp_path / "service.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.slow
def test_dashboard_shows_the_goal_of_a_training_drone(apartments, tmp_path):
    from playwright.sync_api import expect

    settings = EnvConfig(azimuth_bins=32, elevation_bins=12, stagger=False, task="point_goal",
                         reward={"preset": "point_goal"}, goal={"per_scene": 4})  # fmt: skip
    env = NavigationEnv(Field(apartments), 2, settings, seed=1)
    with served_page(LiveShow()) as address, headless_browser() as browser:
        page = browser.new_page(viewport={"width": 1366, "height": 820})
        page.goto(address)
        with TrainingBroadcast("goals", "ppo") as broadcast:
            watched = broadcast.watch(env)
            until(lambda: broadcast.watched, 20.0)
            for _ in range(3):
                batch = watched.step(torch.rand(2, 4))
                time.sleep(0.12)
            expect(page.locator("#step")).to_have_text(str(watched.decisions), timeout=20_000)
            goal, here = (place[0].tolist() for place in (env.goals.of(env.counters["scene"]), env.poses()["position"]))
            expect(page.locator("#goal")).to_contain_text(", ".join(f"{part:.2f}" for part in goal))
            expect(page.locator("#goal")).to_contain_text(f"{math.dist(goal, here):.2f} m away")
            for name in ("goal_progress", "goal_success"):
                shown = float(page.locator(f"[data-term={name}]").inner_text())
                assert shown == pytest.approx(float(batch.info["reward_terms"][name][0]), abs=6e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [{"width": 1366, "height": 820}, PHONE], ids=["laptop", "phone"])
def test_dashboard_shows_every_published_value(apartments, size):
    """Every pointed ray, reward term, metric and stage; nothing is wider than the screen."""
    from playwright.sync_api import expect

    settings = EnvConfig(azimuth_bins=32, elevation_bins=12, stagger=False)
    env = NavigationEnv(Field(apartments), 2, settings, seed=1)
    metrics = {"entropy": 3.675754, "reward_ema": -0.125, "sps": 1234.5}
    stages = {"rollout": {"forward": 30.0, "environment_step": 10.0}, "update": {"backward": 5.0}}
    with served_page(LiveShow()) as address, headless_browser() as browser:
        page = browser.new_page(viewport=size)
        faults = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(address)
        for attempt in range(2):
            # The second time it has been started again.
            with TrainingBroadcast("run", "ppo") as broadcast:
                watched = broadcast.watch(env)
                until(lambda broadcast=broadcast: broadcast.watched, 20.0)
                for _ in range(3 + attempt):
                    batch = watched.step(torch.rand(2, 4))
                    time.sleep(0.12)
                expect(page.locator("#step")).to_have_text(str(watched.decisions), timeout=20_000)
                check_panorama(page, batch.obs[0, 0].numpy(), batch.obs[0, 2].numpy())
                for name, value in batch.info["reward_terms"].items():
                    shown = float(page.locator(f"[data-term={name}]").inner_text())
                    assert shown == pytest.approx(float(value[0]), abs=6e-4)
                for updates in (1, 2):
                    broadcast.show_update(
                        UpdateMade("run", 100 * (updates + 2 * attempt), updates, None, metrics, stages)
                    )
                for name in ("entropy", "reward_ema"):
                    shown = page.locator(f"[data-metric={name}]")
                    expect(shown).to_have_attribute("data-value", re.compile(r"-?\d"))
                    assert float(shown.get_attribute("data-value")) == pytest.approx(metrics[name], rel=1e-6)
                shown = page.locator("[data-stage='rollout/forward']")
                expect(shown).to_have_text("75.0 %")
        expect(page.locator("#phase")).to_have_text(re.compile(r"no data for \d+ s"), timeout=20_000)
        expect(page.locator("#source")).to_contain_text("run (ended)")
        with TrainingBroadcast("another", "ppo") as broadcast:
            # Nothing of the run before stands under the name of this one.
            expect(page.locator("#title")).to_have_text("another", timeout=20_000)
            expect(page.locator("#step")).to_have_text("–")
            assert page.locator("[data-term], [data-metric], [data-stage]").count() == 0
            expect(page.locator("#stages-card")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert faults == []
