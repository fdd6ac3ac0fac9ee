"""Environment and actor over loopback fly exactly as the environment alone."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch

from navi_core.config import EnvironmentConfig
from navi_core.service.server import HealthPages, ServiceMetrics, host_and_port
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import Feed
from navi_core.service.wire import (
    Action,
    BatchStepRequest,
    BatchStepResult,
    DescribeRequest,
    Fault,
    StepRequest,
    StepResult,
    TelemetryEvent,
    decode,
    encode,
)
from navi_core.service.wire.sockets import Subscriber
from navi_core.world import NavigationEnv
from tests.conftest import fly_ahead
from tests.service.conftest import SMALL, TINY, requester, tiny_model, until


def command(env_id: int, step_id: int, values=(0.5, 0.0, 0.1, 0.2)) -> Action:
    linear, angular = np.array([values[:3]], np.float32), np.array([[0, 0, values[3]]], np.float32)
    return Action(np.array([env_id], np.int32), linear, angular, "test", step_id, time.time())


def ask(socket, message):
    socket.send_multipart(encode(message))
    return decode(socket.recv_multipart())


def test_stepping_client_receives_the_environment_results(stage) -> None:
    server = stage.environment(sessions=2, seed=4)
    twin = NavigationEnv(stage.field, 2, SMALL.model_copy(update={"stagger": False}), seed=4)
    reader = Subscriber([server.publisher.endpoint], ["distance_matrix_v2"])
    until(lambda: reader.receive() is not None)
    with requester(server.answer_endpoint) as socket:
        for step in range(1, 15):
            result = ask(socket, StepRequest(command(1, step), step, time.time()))
            expected = twin.step_rows(torch.tensor([1]), torch.tensor([[0.5, 0.0, 0.1, 0.2]]))
            assert isinstance(result, StepResult) and result.step_id == step and result.env_id == 1
            assert result.reward == float(expected.reward) and result.truncated == bool(expected.truncated)
            assert result.episode_return == float(expected.info["episode_return"])
            seen = reader.receive(5.0)
            while seen is not None and (seen.step_id, seen.env_ids[0]) != (step, 1):
                seen = reader.receive(5.0)
            assert np.array_equal(seen.depth[0], expected.obs[0, 0].numpy())
            assert np.array_equal(seen.semantic[0], expected.obs[0, 1].numpy().astype(np.int32))
            if step == 12:  # the limit of decisions: another episode has begun
                assert result.truncated and not seen.delta_depth.any() and seen.episode_id == result.episode_id + 1
    reader.close()


def test_repeated_step_id_is_answered_without_flying(stage) -> None:
    server = stage.environment()
    with requester(server.answer_endpoint) as socket:
        first = ask(socket, StepRequest(command(0, 1), 1, time.time()))
        again = ask(socket, StepRequest(command(0, 1), 1, time.time()))
        assert again.to_map() == first.to_map() and server.steps == 1


def test_environment_describes_itself_to_clients_that_ask(stage) -> None:
    server = stage.environment(sessions=2, first_env_id=10)
    with requester(server.answer_endpoint) as socket:
        about = ask(socket, DescribeRequest(time.time()))
        assert about.env_ids.tolist() == [10, 11] and about.max_distance == server.env.config.max_distance
        assert about.limits.tolist() == [5.0, 2.0, 3.0, 3.0] and about.decision_hz == pytest.approx(10.0)
        names = dict(zip(about.semantic_ids.tolist(), about.semantic_names, strict=True))
        assert names == dict(server.env.field.semantic_names) and len(names) > 3
        socket.send_multipart([b"describe_request_v2", b"\x80"])
        assert decode(socket.recv_multipart()).code == "malformed"


def test_refused_requests_are_answered_with_the_reason(stage) -> None:
    server = stage.environment(sessions=2, first_env_id=10)
    with requester(server.answer_endpoint) as socket:
        unknown = ask(socket, StepRequest(command(3, 1), 1, time.time()))
        assert isinstance(unknown, Fault) and unknown.code == "unknown_env" and "10 to 11" in unknown.message
        twice = ask(socket, BatchStepRequest((command(10, 1), command(10, 2)), 1, time.time()))
        assert "named twice" in twice.message
        socket.send_multipart([b"step_request_v1", b"\x80"])
        assert decode(socket.recv_multipart()).code == "version"
        socket.send_multipart([b"step_request_v2", b"rubbish"])
        assert decode(socket.recv_multipart()).code == "malformed"
        assert isinstance(ask(socket, StepRequest(command(11, 1), 1, time.time())), StepResult)


def test_batch_step_returns_results_and_observations(stage) -> None:
    server = stage.environment(sessions=3)
    with requester(server.answer_endpoint) as socket:
        reply = ask(socket, BatchStepRequest((command(2, 1), command(0, 1)), 1, time.time()))
    assert isinstance(reply, BatchStepResult)
    assert [r.env_id for r in reply.results] == [2, 0] == [int(m.env_ids[0]) for m in reply.observations]
    assert server.env.counters["length"].tolist() == [1, 0, 1]


def test_served_policy_matches_the_local_one(stage) -> None:
    """Recurrent state, resets at episode ends and the batch of the wire change no bit."""
    server = stage.environment(sessions=3, seed=2)
    rewards: dict[int, list[float]] = {0: [], 1: [], 2: []}
    step = server._step

    def recorded(rows, *commands):
        step(rows, *commands)
        for row in rows:
            rewards[row].append(server._results[row].reward)

    server._step = recorded
    actor = stage.actor(server)
    until(lambda: min(map(len, rewards.values())) >= 30)
    actor.stop()
    actor.thread.join(5)
    env = NavigationEnv(stage.field, 3, SMALL.model_copy(update={"stagger": False}), seed=2)
    policy = tiny_model().runner.policy
    obs, state, reset = env.reset(), policy.initial_state(3), torch.ones(3, dtype=torch.bool)
    for number in range(30):
        with torch.no_grad():
            out = policy.act(obs, torch.zeros(3, 3), state, reset, None)
        batch = env.step(out.action)
        obs, state, reset = batch.obs, out.state, batch.truncated
        for row in range(3):
            assert abs(rewards[row][number] - float(batch.reward[row])) < 1e-4, (number, row)


def test_streaming_drones_fly_at_their_rate_and_hover_without_an_actor(stage) -> None:
    fast = SMALL.model_copy(update={"dynamics": SMALL.dynamics.model_copy(update={"substep": 0.004})})  # 50 Hz
    actor = stage.actor(mode="stream", subscribe=("tcp://127.0.0.1:1",))
    server = stage.environment(fast, mode="stream", sessions=2, actions=(actor.publisher.endpoint,))
    actor._subscriber.socket.connect(server.publisher.endpoint)
    start, before = time.monotonic(), server.steps
    until(lambda: actor.decisions >= 20)
    rate = (server.steps - before) / 2 / (time.monotonic() - start)
    assert 20 < rate < 60
    actor.stop()
    actor.thread.join(5)
    hovered = server.metrics.counter("hovered_total")
    until(lambda: server.metrics.counter("hovered_total") > hovered + 10)


def test_successor_keeps_every_session(stage) -> None:
    server = stage.environment(sessions=4)
    waiting = [tiny_model(1, "v002")]
    ready: list = []
    actor = stage.actor(server, successor=lambda: ready.pop() if ready else None)
    until(lambda: actor.decisions > 40)
    unread = torch.zeros(4, 3, 1, 1)
    before = actor.sessions.gather(list(actor.sessions), unread)[0]
    ready.extend(waiting)
    until(lambda: actor.model.name == "v002")
    after = actor.decisions
    until(lambda: actor.decisions > after + 40)
    now = actor.sessions.gather(list(actor.sessions), unread)[0]
    assert len(actor.sessions) == 4 and before[0].shape == now[0].shape
    other = TINY.model_copy(update={"core": "mamba2"})
    ready.append(tiny_model(name="v003", config=other))
    until(lambda: actor.model.name == "v003")
    after = actor.decisions
    until(lambda: actor.decisions > after + 40)
    assert len(actor.sessions) == 4


def test_memoryless_and_recurrent_policies_replace_each_other(stage) -> None:
    bare, ready = TINY.model_copy(update={"core": "none"}), []
    server = stage.environment(sessions=10)
    actor = stage.actor(server, tiny_model(config=bare), successor=lambda: ready.pop() if ready else None)
    until(lambda: len(actor.sessions) == 10 and actor.decisions > 40)

    def taken_over(name: str, config) -> None:
        after = actor.decisions
        ready.append(tiny_model(name=name, config=config))
        until(lambda: actor.model.name == name and actor.decisions > after + 40)

    taken_over("v002", TINY)
    taken_over("v003", bare)
    assert len(actor.sessions) == 10


def test_pages_show_health_and_metrics(stage) -> None:
    server = stage.environment(http="127.0.0.1:0")
    actor = stage.actor(server, http="0")
    until(lambda: actor.decisions > 3)
    text = urllib.request.urlopen(actor.url + "/metrics").read().decode()
    assert "# TYPE navi_actor_decisions_total counter" in text and "navi_actor_inference_ms_bucket{le=" in text
    health = json.loads(urllib.request.urlopen(server.url + "/health").read())
    assert health["healthy"] and health["metrics"]["steps_total"] >= 3
    status = json.loads(urllib.request.urlopen(actor.url + "/status").read())
    assert status["sessions"] == 1 and status["model"] == "v001"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(actor.url + "/nothing")


def test_disconnected_client_leaves_no_traceback(capfd) -> None:
    """A scrape that took too long, every ten seconds for weeks."""
    gone = threading.Event()

    def status():
        assert gone.wait(5)
        return {"healthy": True, "much": "x" * 10_000_000}

    pages = HealthPages("0", ServiceMetrics("navi_test"), status)
    before = set(threading.enumerate())
    with socket.create_connection(host_and_port(pages.url.removeprefix("http://"))) as asking:
        asking.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        until(lambda: set(threading.enumerate()) - before)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.set()
    until(lambda: not set(threading.enumerate()) - before)
    pages.close()
    assert "Traceback" not in capfd.readouterr().err


def test_clock_set_back_changes_no_uptime_or_episode_id(stage, monkeypatch) -> None:
    """A machine without a clock of its own starts at the same second every day."""
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    first, second = (stage.environment() for _ in range(2))
    monkeypatch.setattr(time, "time", lambda: 1.6e9)
    assert first._episode(0) != second._episode(0) and 0 <= first.status()["uptime_seconds"] < 60


def test_stop_answers_waiting_requests_only(stage) -> None:
    server = stage.environment()
    with requester(server.answer_endpoint) as socket:
        socket.send_multipart(encode(StepRequest(command(0, 1), 1, time.time())))
        time.sleep(0.05)
        server.stop()
        assert isinstance(decode(socket.recv_multipart()), StepResult)
    server.thread.join(5)
    assert not server.thread.is_alive()


def test_defaults_bind_loopback_alone() -> None:
    config = EnvironmentConfig()
    assert all("127.0.0.1" in endpoint for endpoint in (config.publish, config.answer, *config.actions))


def test_viewers_of_step_mode_receive_rewards_and_returns(stage) -> None:
    actor = stage.actor(stage.environment(sessions=2))
    heard, digest = [], Digest()

    def take(batch) -> None:
        for message in batch:
            heard.append(message)
            digest.update(message)

    feed = Feed([actor.publisher.endpoint], take)
    try:
        until(lambda: len(heard) > 200 and len(digest.recent_sessions()) == 2)
    finally:
        feed.close()
    returns: dict[tuple[int, int], tuple[int, float]] = {}
    compared = 0
    for event in heard:
        if getattr(event, "event_type", "") != "actor.inference.step":
            continue
        reward, total, _ = event.payload.tolist()
        step, before = returns.get((event.env_id, event.episode_id), (0, 0.0))
        if step and step == event.step_id - 1:
            assert total == pytest.approx(before + reward, abs=1e-4)
            compared += 1
        returns[event.env_id, event.episode_id] = (event.step_id, total)
    assert compared > 10
    assert all(np.isfinite([row["reward"], row["episode_return"]]).all() for row in digest.recent_sessions())


def test_subscribers_receive_episodes_features_and_performance(stage) -> None:
    environment = stage.environment(sessions=2)
    actor = stage.actor(environment)
    heard, digest = {}, Digest()

    def take(batch) -> None:
        for message in batch:
            digest.update(message)
            if isinstance(message, TelemetryEvent):
                heard.setdefault(message.event_type, []).append(message)

    until(lambda: actor.decisions > 30)
    assert actor._features_due == 0.0, "features were built for nobody"
    feed = Feed([actor.publisher.endpoint, environment.publisher.endpoint], take)
    try:
        wanted = ("actor.inference.episode", "actor.inference.features", "environment.sdfdag.perf")
        until(lambda: all(len(heard.get(kind, [])) > 2 for kind in wanted))
        feed.select(1)
        until(lambda: heard["actor.inference.features"][-1].env_id == 1)
    finally:
        feed.close()
    for event in heard["actor.inference.episode"][2:]:
        total, length, done = event.payload.tolist()
        # The time limit truncates; nothing else ends an episode here.
        assert (length, done) == (SMALL.max_steps, 0.0) and np.isfinite(total) and event.env_id in (0, 1)
    assert all(len(event.payload) == TINY.width for event in heard["actor.inference.features"])
    p50, p99, rays, rows = heard["environment.sdfdag.perf"][-1].payload.tolist()
    assert 0 < p50 <= p99 and rays > 1000 and 1 <= rows <= 2
    assert "rays_per_second" in digest.recent_others()["environment.sdfdag.perf"]
    assert "actor.inference.features" not in digest.recent_others()


def test_viewers_of_a_service_receive_the_overhead_picture(stage) -> None:
    environment = stage.environment(sessions=2)
    stage.actor(environment)
    digest = Digest(row=1)
    feed = Feed([environment.publisher.endpoint], lambda batch: [digest.update(m) for m in batch], watching=True)
    feed.select(1)
    try:
        until(lambda: digest.picture is not None and "metres_per_pixel" in digest.scene)
    finally:
        feed.close()
    low, high = environment.env.field.bounds(0)
    np.testing.assert_allclose([digest.scene[f"{end}_x"] for end in ("low", "high")], [low[0], high[0]], rtol=1e-6)
    assert digest.picture is not None and digest.picture.shape == (256, 256, 3) and digest.picture.std() > 0
    assert digest.scene["rows"] == 2 and digest.scene["corner_x"] <= low[0]


@pytest.mark.parametrize(
    ("trained", "asked"),
    [
        pytest.param(True, None, marks=pytest.mark.slow),
        pytest.param(False, None, marks=pytest.mark.slow),
        (True, False),
        (False, True),
    ],
)
def test_stuck_drone_is_freed_by_policy_or_service_setting(stage, trained, asked) -> None:
    """A policy that always flies ahead comes to a wall; only with recovery does it leave it."""
    recovery = trained if asked is None else asked
    model = tiny_model(config=TINY.model_copy(update={"recovery": trained}))
    fly_ahead(model.runner.policy)
    server = stage.environment(SMALL.model_copy(update={"max_steps": 400}), sessions=2, seed=4)
    actor = stage.actor(server, model, recovery=asked)
    until(lambda: actor.decisions >= 300, 30.0)
    assert (actor.metrics.as_dict().get("recovered_total", 0) > 0) == recovery
