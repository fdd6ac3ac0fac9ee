"""Publishers and subscribers over loopback: subscriptions, slow readers, ports in use."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq

from navi_core.config import WireConfig
from navi_core.errors import ConfigError, ServiceError
from navi_core.service.observations import ObservationPublisher, distance_matrix, observation_of
from navi_core.service.wire import DistanceMatrix, TelemetryEvent
from navi_core.service.wire.sockets import Publisher, Subscriber, is_loopback
from tests.service.conftest import until
from tests.service.wire_samples import action, matrix

ANY = "tcp://127.0.0.1:0"
TOPIC = "distance_matrix_v2"


@pytest.fixture
def publisher():
    publisher = Publisher(ANY, WireConfig(queue_length=4))
    yield publisher
    publisher.close()


def subscriber(publisher: Publisher, topic: str = TOPIC) -> Subscriber:
    """Return a subscriber once the publisher knows of it."""
    reader = Subscriber([publisher.endpoint], [topic], WireConfig(queue_length=4))
    until = time.monotonic() + 5
    while not publisher.watched(topic):
        assert time.monotonic() < until
        time.sleep(0.005)
    return reader


def test_message_reaches_the_subscribers_of_its_topic(publisher: Publisher) -> None:
    assert not publisher.publish(matrix())
    reader = subscriber(publisher)
    assert publisher.publish(matrix()) and not publisher.publish(action())
    message = reader.receive(2.0)
    assert isinstance(message, DistanceMatrix) and message.step_id == 12
    reader.close()


def test_new_subscriber_is_reported_once(publisher: Publisher) -> None:
    reader = subscriber(publisher)
    assert publisher.newcomers(TOPIC) and not publisher.newcomers(TOPIC)
    reader.close()


def test_topic_is_unwatched_after_the_last_reader_left(publisher: Publisher) -> None:
    reader = subscriber(publisher)
    reader.close()
    until = time.monotonic() + 5
    while publisher.watched(TOPIC):
        assert time.monotonic() < until
        time.sleep(0.005)


def test_waiting_messages_are_read_in_order(publisher: Publisher) -> None:
    reader = subscriber(publisher)
    for step in range(3):
        publisher.publish(DistanceMatrix(**matrix().__dict__ | {"step_id": step}))
    time.sleep(0.1)
    assert [message.step_id for message in reader.waiting()] == [0, 1, 2]
    assert list(reader.waiting()) == []
    reader.close()


def test_slow_reader_has_a_bounded_queue_and_delays_no_other(publisher: Publisher) -> None:
    reader = subscriber(publisher)
    start = time.monotonic()
    for _ in range(300):
        publisher.publish(matrix(256, 48))
    assert time.monotonic() - start < 5.0
    reader.close()


def test_port_in_use_error_names_the_remedy(publisher: Publisher) -> None:
    with pytest.raises(ServiceError, match=r"taken by another process; stop it, or choose another port"):
        Publisher(publisher.endpoint)


@pytest.mark.parametrize("endpoint", ["5557", "tcp://", "udp://127.0.0.1:1", "tcp://127.0.0.1:99999"])
def test_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is no endpoint"):
        Publisher(endpoint)


def test_loopback_is_known_by_its_names() -> None:
    assert is_loopback("tcp://127.0.0.1:1") and is_loopback("ipc:///a") and not is_loopback("tcp://0.0.0.0:1")
    assert not is_loopback("tcp://*:1")


def test_published_observation_round_trips() -> None:
    obs = torch.rand(3, 16, 8)
    obs[1], obs[2] = (obs[1] * 300).floor(), (obs[2] > 0.5).float()
    message = distance_matrix(
        obs, env_id=4, episode_id=2, step_id=9, position=torch.tensor([1.0, 2.0, 3.0]), yaw=0.5, before=obs * 0
    )
    assert torch.equal(observation_of(message)[0], obs)
    assert torch.equal(torch.from_numpy(message.delta_depth[0].copy()), obs[0])
    assert (message.robot_pose.y, message.robot_pose.yaw) == (2.0, 0.5)


@pytest.mark.parametrize("hertz", [10, 40])
def test_viewers_get_observations_at_their_rate_or_heartbeats(publisher: Publisher, hertz: int) -> None:
    now = [0.0]
    offered = ObservationPublisher(publisher, WireConfig(observation_hz=hertz), clock=lambda: now[0])
    asked: list[int] = []

    def build(env_id: int) -> DistanceMatrix:
        asked.append(env_id)
        return matrix()

    for _ in range(1000):
        offered.offer(build)
        now[0] += 0.01
    assert asked == []  # without viewers none is built
    reader = subscriber(publisher)
    offered.selected = 5
    for _ in range(100):
        offered.offer(build)
        now[0] += 0.01
    assert hertz - 1 <= len(asked) <= hertz + 1 and set(asked) == {5}
    assert not offered.heartbeat()
    now[0] += 1.0
    assert offered.heartbeat() and not offered.heartbeat()
    reader.close()


def test_flood_of_subscriptions_is_hung_up_on_and_readers_come_again(publisher: Publisher, caplog) -> None:
    """ZeroMQ keeps every subscription: a hundred thousand took 300 MB."""
    reader = subscriber(publisher)
    flood = zmq.Context.instance().socket(zmq.SUB)
    flood.setsockopt(zmq.SNDHWM, 0)
    flood.connect(publisher.endpoint)
    for number in range(6000):
        flood.subscribe(b"%200d" % number)
    flood_ends = time.monotonic() + 20
    while "hung up on" not in caplog.text:
        assert time.monotonic() < flood_ends
        publisher.watched(TOPIC)
        time.sleep(0.002)
    flood.close(linger=0)
    while not (found := list(reader.waiting())):
        assert time.monotonic() < flood_ends
        publisher.publish(matrix())
        time.sleep(0.01)
    assert found[0].env_ids.tolist() == matrix().env_ids.tolist()
    reader.close()


def test_long_subscription_ends_its_connection_alone(publisher: Publisher) -> None:
    reader = subscriber(publisher)
    long = zmq.Context.instance().socket(zmq.SUB)
    long.connect(publisher.endpoint)
    long.subscribe(b"x" * 1000)  # 10 MB end ZeroMQ's own client with a crash
    time.sleep(0.2)
    assert publisher.watched(TOPIC) and publisher._strange == 0
    long.close(linger=0)
    reader.close()


def test_ipc_endpoint_opens_for_its_user_alone(tmp_path) -> None:
    path = tmp_path / "socket"
    before = os.umask(0)
    try:
        publisher = Publisher(f"ipc://{path}")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        publisher.socket.rebind(publisher.endpoint)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.umask(0) == 0, "the mask of the process is as before"
    finally:
        os.umask(before)
    subscriber = Subscriber([f"ipc://{path}"], ["telemetry_event_v2"])
    try:
        event = TelemetryEvent("x", 0, 0, 0, np.zeros(1, np.float32), 0.0)
        until(lambda: publisher.publish(event))
        assert subscriber.receive(5.0) is not None
    finally:
        subscriber.close()
        publisher.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
def test_ipc_endpoint_refuses_another_user() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    publisher = Publisher(f"ipc://{folder}/socket")
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            socket.socket(socket.AF_UNIX).connect(f"{folder}/socket")
            os._exit(0)
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
    finally:
        publisher.close()
        shutil.rmtree(folder)


def test_abstract_ipc_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="no endpoint"):
        Publisher("ipc://@navi")
