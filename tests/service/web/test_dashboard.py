"""The dashboard without a browser: what it sends to a page, how it follows restarts, what it refuses."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError, ServiceError
from navi_core.record.events import UpdateMade
from navi_core.service.recordings import Recording, record_session
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import Feed
from navi_core.service.web.app import listen, served_page
from navi_core.service.web.hub import Viewer, pack_message
from navi_core.service.web.live import LiveShow
from navi_core.service.wire import DistanceMatrix, RobotPose, StepResult
from navi_core.world import Field, NavigationEnv, denormalise_depth
from tests.service.web.page_client import page_client, unpacked
from tests.service.web.test_watching import until


@pytest.fixture
def env(apartments):
    settings = EnvConfig(azimuth_bins=16, elevation_bins=8, stagger=False)
    return NavigationEnv(Field(apartments), 3, settings, seed=1)


@pytest.fixture
def dashboard():
    with served_page(LiveShow()) as address:
        yield address


def flown(env, broadcast, decisions=4):
    """Fly while a viewer watches; return the environment and the last batch."""
    watched = broadcast.watch(env)
    until(lambda: broadcast.watched)
    for _ in range(decisions):
        batch = watched.step(torch.rand(3, 4))
        time.sleep(0.12)
    return watched, batch


def test_page_receives_published_messages(env, dashboard):
    with TrainingBroadcast("run", "ppo") as broadcast, page_client(dashboard) as page:
        watched, batch = flown(env, broadcast)
        frame = page.until("frame", lambda m: m["step"] == watched.decisions)
        depth = denormalise_depth(batch.obs[0, 0], 100.0).numpy()
        np.testing.assert_allclose(frame["depth"], depth, rtol=1e-6)
        np.testing.assert_array_equal(frame["valid"], batch.obs[0, 2].numpy())
        assert frame["reward"] == pytest.approx(float(batch.reward[0]))
        assert frame["terms"]["view_gain"] == pytest.approx(float(batch.info["reward_terms"]["view_gain"][0]))
        assert page.until("map")["image"].shape == (256, 256, 3)
        stages = {"rollout": {"forward": 3.0}, "update": {"backward": 2.0, "backward/encoder": 1.0, "strange": 0.5}}
        broadcast.show_update(UpdateMade("run", 128, 1, None, {"entropy": 3.5, "sps": 200.0}, stages))
        training = page.until("training", lambda m: m["steps"] == [128.0] and m["stages"]["update"])
        assert training["series"]["entropy"] == [3.5] and training["series"]["nll"] == [None]
        assert training["stages"] == {"rollout": [["forward", 3.0]], "update": [["backward", 2.0], ["other", 0.5]]}
        page.order(do="drone", row=2)
        assert page.until("frame", lambda m: m["drone"] == 2)["step"] == watched.decisions


@pytest.mark.slow
def test_dashboard_follows_a_restarted_run(env, dashboard):
    with page_client(dashboard) as page:
        for attempt in range(2):
            with TrainingBroadcast("run", "ppo") as broadcast:
                watched, _ = flown(env, broadcast, decisions=3 + attempt)
                frame = page.until("frame", lambda m, last=watched.decisions: m["step"] == last)
                assert page.until("sources", lambda m: m["chosen"].startswith("run@")) and len(frame["depth"]) > 0


@pytest.mark.slow
def test_run_with_fewer_drones_is_shown_after_a_larger_one(apartments, env, dashboard, monkeypatch):
    monkeypatch.setattr("navi_core.service.web.live._LOOK_SECONDS", 0.1)
    with page_client(dashboard) as page:
        with TrainingBroadcast("many", "ppo") as broadcast:
            watched, _ = flown(env, broadcast)
            page.order(do="drone", row=3)
            assert "numbered from 0 to 2" in page.until("refused")["reason"]
            page.order(do="drone", row=2)
            page.until("frame", lambda m: m["drone"] == 2)
        page.until("sources", lambda m: m["sources"][-1]["name"] == "many (ended)")
        settings = EnvConfig(azimuth_bins=16, elevation_bins=8, stagger=False)
        with TrainingBroadcast("few", "ppo") as broadcast:
            watched = broadcast.watch(NavigationEnv(Field(apartments[:1]), 1, settings))
            page.until("hello", lambda m: m["title"] == "few")
            assert page.until("training")["steps"] == []
            until(lambda: broadcast.watched)
            watched.step(torch.rand(1, 4))
            assert page.until("frame", lambda m: m["step"] == 1)["drone"] == 0
            assert page.until("sources", lambda m: m["row"] == 0)["drones"] == [0, 0]


def test_page_opened_after_a_run_does_not_show_it_as_live(env, dashboard, monkeypatch):
    monkeypatch.setattr("navi_core.service.web.live._LOST_SECONDS", 0.3)
    with page_client(dashboard) as early:
        with TrainingBroadcast("run", "ppo") as broadcast:
            flown(env, broadcast)
            early.until("status", lambda m: m["phase"] == "live")
        early.until("status", lambda m: m["phase"] == "stale")
        with page_client(dashboard) as late:
            assert "phase" not in late.until("frame")
            late.until("status", lambda m: m["phase"] == "stale")


def test_page_keeps_showing_the_named_drone_of_a_service(stage):
    """A newcomer is greeted with every drone; after that one alone is published."""
    environment = stage.environment(sessions=3)
    actor = stage.actor(environment)
    endpoints = [environment.publisher.endpoint, actor.publisher.endpoint]
    with served_page(LiveShow(endpoints, discover=False)) as address, page_client(address) as page:
        first = page.until("frame")
        assert first["drone"] == 0
        frame = page.until("frame", lambda m: m["step"] > first["step"] + 20 and m["reward"] is not None)
        assert frame["episode_return"] is not None and frame["speed"] is None
        assert page.until("sources", lambda m: m["drones"] == [0, 2])["row"] == 0


@pytest.mark.parametrize("who", ["page", pytest.param("recording", marks=pytest.mark.slow)])
def test_selected_drone_stays_after_a_service_restart(stage, tmp_path, who):
    """A restarted server has no selection: the viewer or the recording sends its drone again."""
    server = stage.environment(sessions=3)
    actor = stage.actor(server)
    until(lambda: actor.decisions > 3)
    endpoint, heard, path, stop = server.publisher.endpoint, [], tmp_path / "a.navi", threading.Event()
    feed = Feed([endpoint], heard.extend, watching=True)
    if who == "page":
        feed.select(2)
    wanted = {"drone": 2 if who == "recording" else None, "stop": stop.is_set}
    recording = threading.Thread(target=record_session, args=([endpoint], path), kwargs=wanted, daemon=True)
    recording.start()

    def seen(messages):
        found = (one for one in messages if isinstance(one, DistanceMatrix) and one.env_ids[0] == 2)
        return {(one.episode_id, one.step_id) for one in found}

    until(lambda: len(seen(list(heard))) > 3)
    server.stop()
    server.thread.join(10)
    heard.clear()
    stage.environment(sessions=3, publish=endpoint, answer=server.answer_endpoint)
    until(lambda: len(seen(list(heard))) > 10)
    stop.set()
    recording.join(10)
    feed.close()
    with Recording(path) as recorded:
        assert len(seen(list(heard)) & seen(message for _, message in recorded.messages())) > 5


def test_silent_sessions_are_left_out(stage, monkeypatch):
    monkeypatch.setattr("navi_core.service.viewing.digest._FORGET_SECONDS", 0.5)
    environment = stage.environment(sessions=2)
    actor = stage.actor(environment)
    show = LiveShow([actor.publisher.endpoint], discover=False)
    with served_page(show) as address, page_client(address) as page:
        page.until("service", lambda m: len(m["sessions"]) == 2 and m["groups"])
        actor.stop()
        silent = page.until("service", lambda m: not m["sessions"] and not m["groups"])
        assert silent["sessions"] == []


def test_no_observation_is_requested_without_an_open_page(env, dashboard):
    with TrainingBroadcast("run", "ppo") as broadcast:
        watched = broadcast.watch(env)
        until(lambda: broadcast._telemetry_watched)
        for _ in range(20):
            watched.step(torch.rand(3, 4))
            time.sleep(0.01)
        assert watched.shown == 0
        with page_client(dashboard):
            until(lambda: broadcast.watched)
        until(lambda: not broadcast.watched)


def test_invalid_order_is_refused_with_a_message(dashboard):
    with page_client(dashboard) as page:
        for text in ("", "[]", "{", '{"do": 3}', "[" * 3000, "x" * 5000):
            page._socket.send(text)
            assert "JSON object" in page.until("refused")["reason"]
        page.order(do="dance")
        assert "allowed: source, drone" in page.until("refused")["reason"]
        for row in (-1, True, "2", 2**40):
            page.order(do="drone", row=row)
            assert "no drone" in page.until("refused")["reason"]


def test_other_origin_is_refused(dashboard):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus, match="403"):
        connect(dashboard.replace("http", "ws") + "/ws", origin="http://elsewhere.example")


@pytest.mark.parametrize("name", ["elsewhere.example", "127.0.0.1.elsewhere.example", "[elsewhere", ""])
def test_foreign_host_name_is_refused(dashboard, name):
    """Both the page and its stream: to a browser such a site would be the same as this page."""
    import http.client

    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    port = int(dashboard.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/", headers={"Host": f"{name}:{port}"})
    assert connection.getresponse().status == 400
    if name and "[" not in name:
        with pytest.raises(InvalidStatus, match="403"), socket.create_connection(("127.0.0.1", port)) as plain:
            connect(f"ws://{name}:{port}/ws", sock=plain, origin=f"http://{name}:{port}")


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "[::1]", "192.168.0.7", socket.gethostname(), "run.localhost", "LOCALHOST."]
)
def test_local_names_and_addresses_are_accepted(dashboard, name):
    request = urllib.request.Request(dashboard, headers={"Host": f"{name}:80"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_page_has_no_external_resources(dashboard):
    for name, kind in (("", "text/html"), ("main.js", "javascript"), ("style.css", "text/css")):
        with urllib.request.urlopen(f"{dashboard}/{name}") as answer:
            assert kind in answer.headers["Content-Type"]
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            text = answer.read().decode()
            assert "http://" not in text and "https://" not in text
    with urllib.request.urlopen(f"{dashboard}/healthz") as answer:
        assert json.load(answer) == {"status": "ok"}


def test_port_in_use_is_reported_with_the_next_step():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServiceError, match="choose another --port"):
            listen("127.0.0.1", other.getsockname()[1])


def test_invalid_address_is_refused():
    with pytest.raises(ConfigError, match="status page"):
        LiveShow(status=("localhost:9100",))


def test_page_receives_a_beat_when_idle(monkeypatch):
    """By its silence it knows that a connection is dead."""
    monkeypatch.setattr("navi_core.service.web.app._BEAT_SECONDS", 0.05)
    with served_page(LiveShow(discover=False)) as address, page_client(address) as page:
        for _ in range(3):
            page.until("beat", seconds=3.0)
        assert "frame" not in page.messages


def test_stalled_page_is_disconnected(monkeypatch):
    """A viewer's machine sleeps; its connection would request observations for another 15 minutes."""
    import asyncio

    from navi_core.service.web.app import _send
    from navi_core.service.web.hub import Hub

    monkeypatch.setattr("navi_core.service.web.app._PATIENCE_SECONDS", 0.05)
    hub = Hub()

    async def stuck(_: bytes) -> None:
        await asyncio.sleep(60)

    async def serve():
        viewer = hub.join()
        viewer.put("frame", b"frame")
        await asyncio.wait_for(_send(SimpleNamespace(send_bytes=stuck), viewer, hub, lambda: True), 5.0)

    asyncio.run(serve())
    assert hub.viewers == 0


def test_a_slow_viewer_gets_the_newest_of_each_kind():
    import asyncio

    async def take():
        viewer = Viewer()
        for number in range(1000):
            viewer.put("frame", b"frame %d" % number)
            viewer.put("map", b"map %d" % number)
        return [await viewer.take(), await viewer.take()], viewer._waiting

    assert asyncio.run(take()) == ([b"frame 999", b"map 999"], {})


def test_missing_reward_is_not_zero():
    digest = Digest()
    pose = RobotPose(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    rays = np.ones((1, 4, 3), np.float32)
    seen = (rays, rays, rays.astype(np.int32), rays > 0, np.zeros((0, 0, 3), np.uint8))
    digest.update(DistanceMatrix(1, np.array([3], np.int32), (4, 3), *seen, pose, 7, 1.0))
    assert math.isnan(digest.frame()[0]["reward"])
    digest.update(StepResult(7, 3, 1, False, False, -0.25, 1.5, 1.0))
    facts = digest.frame()[0]
    assert (facts["drone"], facts["reward"], facts["episode_return"]) == (3, -0.25, 1.5)


def test_page_messages_round_trip_without_nan():
    arrays = {"depth": np.arange(6, dtype=np.float32).reshape(2, 3), "valid": np.ones(3, np.uint8)}
    found = unpacked(pack_message("frame", {"reward": float("nan"), "pose": [1.0, float("inf")]}, arrays))
    assert found["reward"] is None and found["pose"] == [1.0, None] and found["kind"] == "frame"
    np.testing.assert_array_equal(found["depth"], arrays["depth"])
    np.testing.assert_array_equal(found["valid"], arrays["valid"])
    with pytest.raises(TypeError, match="float64"):
        pack_message("frame", {}, {"depth": np.zeros(2)})


def test_page_of_a_comparison_loads_nothing_and_errors_are_texts():
    def render(names):
        if names == ["a"]:
            raise ConfigError("one run cannot be compared")
        return f"<!doctype html><style>p{{}}</style><p>{' '.join(names)}</p>"

    for comparison, path, status, text in (
        (render, "compare?run=a&run=b", 200, "a b"),
        (render, "compare?run=a", 404, "one run cannot be compared"),
        (None, "compare?run=a&run=b", 404, "next: navi runs compare"),
    ):
        with served_page(LiveShow(discover=False, comparison=comparison)) as address:
            try:
                answer = urllib.request.urlopen(f"{address}/{path}")
            except urllib.error.HTTPError as error:
                answer = error
            assert answer.status == status and text in answer.read().decode()
            assert (status == 404) or answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
