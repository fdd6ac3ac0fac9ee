"""Servers on free ports in threads of this process, and clients that wait with a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from navi_core.config import ActorConfig, EnvConfig, EnvironmentConfig, PolicyConfig, WireConfig
from navi_core.policy import build_policy
from navi_core.service.actor.server import ActorServer
from navi_core.service.environment.server import EnvironmentServer
from navi_core.service.policies.served_model import EagerRunner, ServedModel
from navi_core.world import Field

ANY = "tcp://127.0.0.1:0"
SMALL = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=12)
BRISK = WireConfig(heartbeat_seconds=0.2, peer_timeout_seconds=0.5)
TINY = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=32, elevation_bins=8, width=32)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition; fail where it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def tiny_model(seed: int = 0, name: str = "v001", config: PolicyConfig = TINY) -> ServedModel:
    return ServedModel(name, EagerRunner(build_policy(config, seed), name), None, Path(name))


class Stage:
    """Starts servers and ends them with the test."""

    def __init__(self, field: Field, stack: ExitStack) -> None:
        self.field, self._stack = field, stack

    def run(self, server):
        """Run a server in a thread until the test ends or `server.stop()`."""
        server.failures = []

        def guarded() -> None:
            try:
                server.run()
            except BaseException as error:
                server.failures.append(error)
                raise

        thread = threading.Thread(target=guarded, daemon=True)
        server.thread = thread
        thread.start()
        self._stack.callback(self._end, server)
        return server

    def environment(self, env: EnvConfig = SMALL, **settings) -> EnvironmentServer:
        config = EnvironmentConfig(**{"publish": ANY, "answer": ANY, "wire": BRISK, **settings})
        return self.run(EnvironmentServer(self.field, env, config))

    def actor(self, environment: EnvironmentServer | None = None, model: ServedModel | None = None, **settings):
        wired = {} if environment is None else environment_of(environment)
        extra = {key: settings.pop(key) for key in ("successor", "gate", "learning") if key in settings}
        config = ActorConfig(**{"publish": ANY, "wire": BRISK, "max_sessions": 64, **wired, **settings})
        return self.run(ActorServer(model or tiny_model(), config, **extra))

    @staticmethod
    def _end(server) -> None:
        server.stop()
        server.thread.join(10)
        assert not server.thread.is_alive(), "the server does not stop"
        assert not server.failures


def environment_of(server: EnvironmentServer) -> dict:
    """Return an actor's settings for an environment."""
    return {"subscribe": (server.publisher.endpoint,), "step_endpoint": server.answer_endpoint or ANY}


@pytest.fixture(scope="session")
def flown_field(apartments) -> Field:
    return Field(apartments[:1])


@pytest.fixture
def stage(flown_field) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(flown_field, stack)


@contextmanager
def requester(endpoint: str) -> Iterator:
    """Give a plain REQ socket whose waits end after five seconds."""
    import zmq

    socket = zmq.Context.instance().socket(zmq.REQ)
    socket.setsockopt(zmq.RCVTIMEO, 5000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close()
