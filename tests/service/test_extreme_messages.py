"""Extreme but valid messages: nothing hangs, stops or grows by them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time

import msgpack
import numpy as np
import pytest
import torch

from navi_core.config import ContinuousTrainingConfig, EnvConfig
from navi_core.errors import ConfigError, RecordError, WireError
from navi_core.service import recordings
from navi_core.service.learning.admission import Admission
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.observations import distance_matrix
from navi_core.service.recordings import Recording, RecordingWriter
from navi_core.service.viewing.digest import LAYOUTS, Digest, payload
from navi_core.service.web import explore
from navi_core.service.web.live import LiveShow
from navi_core.service.web.replay import ReplayShow
from navi_core.service.wire import (
    MOST_STEP_ID,
    Action,
    BatchStepResult,
    DistanceMatrix,
    StepRequest,
    StepResult,
    TelemetryEvent,
    decode,
    encode,
)
from navi_core.service.wire.sockets import Publisher, Subscriber
from tests.service.conftest import ANY, BRISK, SMALL, requester, tiny_model, until


def seen(env_id: int, *, episode: int = 1, step_id: int = 0, size: tuple[int, int] = (32, 8)) -> DistanceMatrix:
    blank = torch.full((3, *size), 0.4)
    return distance_matrix(blank, env_id=env_id, episode_id=episode, step_id=step_id, position=torch.zeros(3), yaw=0.0)


def nobody() -> DistanceMatrix:
    """Return an observation of no drone."""
    one = seen(0)
    fields = {name: getattr(one, name) for name in DistanceMatrix.checks()}
    none = {name: fields[name][:0] for name in ("env_ids", "depth", "delta_depth", "semantic", "valid_mask")}
    return DistanceMatrix(**fields | none)


def telemetry(kind: str, numbers: np.ndarray) -> TelemetryEvent:
    return TelemetryEvent(kind, 1, 0, 0, numbers, 0.0)


def test_unflyable_drone_blocks_no_other(stage) -> None:
    """It stands in the batch of the others, which is refused as a whole; afterwards each is asked for alone."""
    server = stage.environment(EnvConfig(**SMALL.model_dump() | {"max_steps": 500}), sessions=4)
    strangers = Publisher(ANY, BRISK)
    actor = stage.actor(server, subscribe=(strangers.endpoint,))
    asked, ask = [], actor._requests.send
    actor._requests.send = lambda group: (asked.append([session.env_id for session in group]), ask(group))
    until(lambda: strangers.watched("distance_matrix_v2"))
    # Of five that are heard of at once one is not there.
    group = [actor.sessions.open(seen(number), time.monotonic()) for number in (0, 1, 2, 3, 90)]
    server._flown_at = [time.monotonic() + 60.0] * 4
    actor._ready |= {session.env_id: session for session in group}
    until(lambda: all(step > 50 for step in server._step_ids))
    assert sorted(asked[0]) == [0, 1, 2, 3, 90] and actor.metrics.counter("faults_total") > 0
    assert [90] in asked and all(90 not in several for several in asked[1:] if len(several) > 1)
    strangers.close()


def test_step_id_wraps_after_the_last(stage) -> None:
    server = stage.environment(sessions=1)
    still = np.zeros((1, 3), np.float32)
    last = MOST_STEP_ID - 1
    with requester(server.answer_endpoint) as socket:
        socket.send_multipart(
            encode(StepRequest(Action(np.zeros(1, np.int32), still, still, "x", last, 0.0), last, 0.0))
        )
        assert decode(socket.recv_multipart()).step_id == last
    actor = stage.actor(server)
    until(lambda: actor.decisions > 5)
    assert 0 < server._step_ids[0] < 1000
    with pytest.raises(WireError, match="step_id is 4611686018427387904"):
        seen(7, step_id=MOST_STEP_ID)


@pytest.mark.parametrize("depth", [np.nan, np.inf, 1e38, 70_000.0])
def test_non_finite_depth_is_refused(depth: float) -> None:
    fields = {name: getattr(seen(0), name) for name in DistanceMatrix.checks()}
    with pytest.raises(WireError, match=r"depth holds numbers (beyond 10|that are not finite)"):
        DistanceMatrix(**fields | {"depth": np.full((1, 32, 8), depth, np.float32)})


@pytest.mark.parametrize("reward", [1e308, 1e39, -1.1e12])
def test_non_finite_reward_is_refused(reward: float) -> None:
    with pytest.raises(WireError, match="reward is"):
        StepResult(0, 0, 0, False, False, reward, 0.0, 0.0)


def test_non_finite_rewards_do_not_count_for_a_version() -> None:
    policy = tiny_model().runner.policy
    for last in (np.inf, -np.inf, np.nan, 1e308):
        admission = Admission(policy, 40)
        for _ in range(20):
            admission.observe(0, 1.0, 0, True)
        admission.admit(1, policy)
        with np.errstate(all="ignore"):
            for number in range(20):
                admission.observe(1, last if number > 17 else 1.0, 0, True)
            assert admission.roll_back() is None and admission.serving.version == 1


def test_pending_state_of_a_departed_drone_is_dropped(stage, tmp_path) -> None:
    learning = FlightLearning(tiny_model(), ContinuousTrainingConfig(), None, outbox=tmp_path)
    learning.trainer.admission = Admission(learning.trainer.serving.policy, 40)
    actor = stage.actor(None, learning=learning, sample=True, idle_seconds=0.3, max_sessions=4, mode="stream")
    strangers = Publisher(ANY, BRISK)
    actor._subscriber.socket.connect(strangers.endpoint)
    until(lambda: strangers.watched("distance_matrix_v2"))
    for number in range(12):
        strangers.publish(seen(100 + number))
        time.sleep(0.12)
    until(lambda: actor.decisions >= 8)
    # A late stranger opens its session after the others have left.
    until(lambda: not (actor.sessions or learning._awaited or learning.buffer._open or learning.buffer._pending))
    assert not learning.trainer.admission._current
    strangers.close()


def test_subscriptions_to_no_topic_are_dropped() -> None:
    publisher = Publisher(ANY, BRISK)
    subscriber = Subscriber([publisher.endpoint], ["distance_matrix_v2", *(f"x{n}" for n in range(30))], BRISK)
    until(lambda: publisher.watched("distance_matrix_v2"))
    assert publisher._watching == {b"distance_matrix_v2"}
    subscriber.socket.raw.unsubscribe(b"distance_matrix_v2")
    until(lambda: not publisher.watched("distance_matrix_v2"))
    assert not publisher._watching
    subscriber.close()
    publisher.close()


def test_nested_empty_lists_are_refused_early() -> None:
    maps: dict = {}
    for _ in range(3):
        maps = {str(n): maps for n in range(64)}
    for nothing in ([[{}] * 4096] * 512, maps):
        body = msgpack.packb({"_type": "StepResult", "step_id": nothing})
        with pytest.raises(WireError, match="more than 262,144 elements"):
            decode([b"step_result_v2", body])


def test_the_largest_batch_travels() -> None:
    one, result = seen(0, size=(8, 4)), StepResult(1, 0, 1, False, False, 0.0, 0.0, 0.0)
    batch = decode(encode(BatchStepResult((result,) * 4096, (one,) * 4096)))
    assert len(batch.results) == len(batch.observations) == 4096


def test_repeated_drone_in_one_action_flies_the_last_command(stage) -> None:
    sender, many, flown = Publisher(ANY, BRISK), 4096, []
    server = stage.environment(mode="stream", sessions=2, actions=(sender.endpoint,))
    step = server._step
    server._step = lambda rows, commands, step_ids: (flown.append(commands), step(rows, commands, step_ids))
    linear, angular = np.zeros((many, 3), np.float32), np.zeros((many, 3), np.float32)
    linear[-1, 0] = 0.5
    action = Action(np.zeros(many, np.int32), linear, angular, "x", 3, 0.0)
    until(lambda: sender.watched("action_v2"))
    sender.publish(action)
    until(lambda: any(commands[0, 0] == 0.5 for commands in flown))
    assert all(commands[0].tolist() in ([0.5, 0.0, 0.0, 0.0], [0.0] * 4) for commands in flown)
    assert not any(commands[1].any() for commands in flown)
    sender.close()


SCENE = dict.fromkeys(LAYOUTS["scene"], 1.0)
ODD = {
    "no drone": [nobody()],
    "a range below zero": [telemetry("actor.scene", payload("scene", SCENE | {"max_distance": -5.0})), seen(0)],
    "rows that are none": [telemetry("actor.scene", payload("scene", SCENE | {"rows": np.nan}))],
    "rows without end": [telemetry("actor.scene", payload("scene", SCENE | {"rows": np.inf}))],
    "half a scene": [telemetry("actor.scene", np.ones(14, np.float32)), seen(0)],
    "no numbers": [telemetry(kind, np.zeros(0, np.float32)) for kind in ("actor.scene", "actor.training.ppo.update")],
}


@pytest.mark.parametrize("name", ODD)
def test_dashboard_survives_malformed_messages(name: str) -> None:
    async def watched() -> None:
        show = LiveShow(["tcp://127.0.0.1:1"], discover=False)
        show.hub.join()
        task = asyncio.create_task(show.run())
        await asyncio.sleep(0.1)
        show._inbox.append(ODD[name])
        show.digest.changed |= {"map", "frame", "sources"}
        await asyncio.sleep(0.2)
        show._select_source()
        assert not task.done()
        show._inbox.append([seen(0, step_id=9)])
        await asyncio.sleep(0.2)
        assert show.digest.matrix.step_id == 9 and not task.done()
        task.cancel()

    asyncio.run(watched())


def test_silent_sessions_make_room_on_the_page(monkeypatch) -> None:
    digest, now = Digest(), [0.0]
    monkeypatch.setattr("navi_core.service.viewing.digest.time.monotonic", lambda: now[0])
    for number in range(300):
        digest.update(StepResult(1, number, 1, False, False, 0.0, 0.0, 0.0))
    assert len(digest.sessions) == 256
    now[0] = 60.0
    digest.update(StepResult(1, 1000, 1, False, False, 0.0, 0.0, 0.0))
    assert [row["session"] for row in digest.recent_sessions()] == [1000]


@pytest.mark.parametrize(
    ("axes", "flown"), [([10**30, -(10**30), 0, 0.5], (1.0, -1.0, 0.0, 0.5)), ([1e300, 0, 0, 0], (1.0, 0.0, 0.0, 0.0))]
)
def test_command_is_clamped(axes: list, flown: tuple) -> None:
    assert explore._axes({"axes": axes}) == flown


def test_non_finite_axis_is_refused() -> None:
    for wrong in (json.loads("NaN"), json.loads("Infinity")):
        with pytest.raises(ConfigError, match="four finite numbers"):
            explore._axes({"axes": [wrong, 0, 0, 0]})


def test_endless_status_page_delays_only_its_own_numbers(monkeypatch) -> None:
    monkeypatch.setattr("navi_core.service.web.live._LOOK_SECONDS", 0.05)
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def drip() -> None:
        peer, _ = listener.accept()
        while not done.wait(0.2):
            peer.send(b"x")
        peer.close()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()

    async def watched() -> None:
        show = LiveShow(["tcp://127.0.0.1:1"], status=[f"http://127.0.0.1:{listener.getsockname()[1]}"], discover=False)
        show.hub.join()
        task = asyncio.create_task(show.run())
        await asyncio.sleep(0.3)
        (reading,) = show._reading.values()
        show._inbox.append([seen(0, step_id=3)])
        await asyncio.sleep(0.3)
        assert show.digest.matrix is not None and not task.done()
        # It is asked once, however often it is looked at.
        assert [*show._reading.values()] == [reading] and reading.is_alive()
        task.cancel()

    asyncio.run(watched())
    done.set()
    thread.join(5)
    listener.close()


def test_note_with_invalid_endpoint_leaves_the_page_running(caplog) -> None:
    async def watched() -> None:
        show = LiveShow(["tcp://-:1"], discover=False)
        task = asyncio.create_task(show.run())
        await asyncio.sleep(0.3)
        assert not task.done() and "cannot be watched" in caplog.text
        with pytest.raises(ConfigError, match="no source"):
            await show.order({"do": "source", "key": []})
        task.cancel()

    asyncio.run(watched())


@pytest.fixture
def recorded(tmp_path) -> Recording:
    """Five observations, one of no drone, and one that the wire refuses since it has bounds."""
    spoiled = seen(0, step_id=9)
    spoiled.depth[:] = np.nan  # past the check, as before there was one
    with RecordingWriter(tmp_path / "old.navi") as writer:
        for number, message in enumerate([nobody(), spoiled, *(seen(0, step_id=n) for n in range(5))]):
            writer.append(*encode(message), when=100.0 + 0.001 * number)
    with Recording(tmp_path / "old.navi") as recording:
        yield recording


def test_an_episode_of_more_rays_than_memory_is_refused(recorded, monkeypatch) -> None:
    (episode,) = recordings.list_episodes(recorded)
    assert episode.frames == 5 and len(recordings.trace_episode(recorded, episode).depth) == 5
    monkeypatch.setattr(recordings, "MOST_RAYS", 1000)
    with pytest.raises(RecordError, match="more rays than are shown, 1,000"):
        recordings.trace_episode(recorded, episode)


def test_invalid_recorded_message_is_skipped_in_replay(recorded) -> None:
    known = [recorded.readable_message(frame) for frame in recorded.frames]
    assert [message is None for message in known] == [False, True, *[False] * 5]
    with pytest.raises(WireError, match="not finite"):
        recorded.message(recorded.frames[1])
    show = ReplayShow(recorded, "old")
    show._seek(show._length)
    assert show._next == 7 and show.digest.matrix.step_id == 4
