"""How a run's actors, shards and learners reach one another on Ray: by name, looked up again after a death."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from navi_core.errors import ConfigError, NaviError
from navi_core.machine import usable_cores
from navi_core.scale.messages import Drawn, News, ShardLostError, Shipment
from navi_core.scale.parameters import Orders

__all__ = ["HUB", "Named", "RayHub", "RayShard", "import_ray", "join_ray", "shard_name"]

HUB = "navi-hub"
"""Name of the actor that has the weights."""
_PATIENCE = 120.0
_PAUSE = 0.05
_STARTS = 3
_ANSWERS_IN = 5.0
"""A port where Ray listens takes a connection within this time [s]."""
_ATTEMPTS = "3"
"""Of joining a running Ray, each of which takes up to 40 s; Ray's own number is 20, a quarter of an hour."""
_LOG = logging.getLogger("navi.scale")


def import_ray() -> Any:
    """Return Ray.

    Raises:
        ConfigError: It is not installed.
    """
    # Nothing is told to anybody about the use of this machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A job has its own lines; those of Ray's daemons stay in its logs.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "actors and shards in processes of their own need Ray: pip install -e '.[ray]'; or add --in-process"
        ) from None
    return ray


def join_ray(address: str | None, namespace: str | None, *, actors: int = 1) -> Any:
    """Connect to the Ray of an address, or start one here; return the module.

    Ray's processes listen on all interfaces. One that is started here demands a token of everybody who connects (in
    `~/.ray/auth_token`, made when there is none), unless RAY_AUTH_MODE says otherwise.

    Args:
        address: host:port of a running Ray, or auto; None starts one.
        namespace: Of the run.
        actors: Processes that a Ray started here is to run at once.

    Raises:
        ConfigError: Ray is not installed, or does not answer there.
    """
    if address is not None:
        _require_listener(address)
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", _ATTEMPTS)
    ray = import_ray()
    options: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            ray.init(address, **options)
            return ray
        cores = max(usable_cores(), actors)
        for left in reversed(range(_STARTS)):
            try:
                ray.init("local", num_cpus=cores, include_dashboard=False, **options)
                break
            except Exception as error:  # a bare one, when a busy machine needs longer than Ray's half minute
                if not left or "timed out" not in str(error):
                    raise
                _LOG.warning("Ray did not start within its time and is started again: %s", str(error).splitlines()[0])
                ray.shutdown()
    except Exception as error:  # a Ray that cannot start raises anything, bare exceptions among it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _no_ray(address or "this machine", reason) from None
    return ray


def _require_listener(address: str) -> None:
    """Refuse an address where nothing listens, which Ray would ask for many minutes.

    Raises:
        ConfigError: It is neither host:port nor auto, or nothing answers there.
    """
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(f"--address {address!r} is neither host:port nor auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_IN).close()
    except OSError as error:
        raise _no_ray(address, error.strerror or str(error)) from None


def _no_ray(where: str, reason: str) -> ConfigError:
    return ConfigError(f"no Ray at {where} ({reason}); `ray start --head` starts one, or leave out --address")


class Named:
    """A named Ray actor, looked up again when it does not answer.

    Args:
        ray: The module.
        name: Its name in the namespace of this connection.
    """

    def __init__(self, ray: Any, name: str) -> None:
        self.ray, self.name = ray, name
        self._handle: Any = None

    def call(self, method: str, *args: Any) -> Any:
        """Return what a method answers.

        Raises:
            ShardLostError: The actor is dead, or there is none of that name.
        """
        return self.later(method, *args)()

    def later(self, method: str, *args: Any) -> Callable[[], Any]:
        """Call a method; what is returned waits for the answer, and raises as `call`."""
        ray = self.ray
        try:
            if self._handle is None:
                self._handle = ray.get_actor(self.name)
            reference = getattr(self._handle, method).remote(*args)
        except (ValueError, ray.exceptions.RayError) as error:
            raise self._lost(error) from None

        def answer() -> Any:
            try:
                return ray.get(reference, timeout=_PATIENCE)
            except ray.exceptions.RayTaskError as error:
                # What the actor's own code raised is as true here as there.
                raise error.cause if isinstance(error.cause, NaviError) else error from None
            except ray.exceptions.RayError as error:
                raise self._lost(error) from None

        return answer

    def forget(self) -> None:
        """Look the name up again at the next call."""
        self._handle = None

    def _lost(self, error: Exception) -> ShardLostError:
        self.forget()
        return ShardLostError(f"{self.name} does not answer ({type(error).__name__})")


class RayShard:
    """A shard by its name.

    Args:
        named: It.
        number: Which shard.
        make: Puts an empty one in its place, unless one is there; without, this side waits until another does.
    """

    def __init__(self, named: Named, number: int, make: Callable[[], bool] | None = None) -> None:
        self.number, self._named, self._make = number, named, make

    def add(self, shipment: Shipment) -> bool:
        """Ship to it; False also while it is being replaced."""
        try:
            return bool(self._named.call("add", shipment))
        except ShardLostError:
            if self._make is None:
                return False
            raise

    def ask(self, n: int) -> Callable[[], Drawn | None]:
        """Ask for n items."""
        return self._named.later("draw", n)

    def update(self, token: str, places: np.ndarray, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Give items new priorities; nothing waits for them."""
        self._named.later("update", token, places, serials, priorities)

    def news(self, token: str, cursor: int, debt: int) -> News:
        """Ask for reports."""
        told: News = self._named.call("news", token, cursor, debt)
        return told

    def save(self, folder: str, name: str) -> int:
        """Have it written, on its own machine."""
        return int(self._named.call("save", folder, name))

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Have it read."""
        return bool(self._named.call("load", folder, name, remembered))

    def revive(self) -> bool:
        """Put an empty one in its place; False where one is there already."""
        self._named.forget()
        return self._make is not None and self._make()


class RayHub:
    """The hub by its name; a moment without an answer is a moment without orders.

    Args:
        named: It.
    """

    def __init__(self, named: Named) -> None:
        self._named = named
        self._silent: float | None = None

    def orders(self, version: int) -> Orders:
        """Ask for weights, and whether to go on; a hub that is silent for two minutes has ended the run."""
        try:
            told: Orders = self._named.call("orders", version)
        except ShardLostError:
            self._silent = self._silent if self._silent is not None else time.monotonic()
            time.sleep(_PAUSE)
            return Orders(None, "the run does not answer" if time.monotonic() - self._silent > _PATIENCE else "")
        self._silent = None
        return told

    def join(self) -> None:
        """Say that an actor from outside flies."""
        self._named.call("join")

    def leave(self) -> None:
        """Say that it does not any more."""
        self._named.call("leave")

    def describe(self) -> dict[str, Any]:
        """Ask what run this is."""
        return dict(self._named.call("describe"))


def shard_name(number: int) -> str:
    """Return the name of a shard's actor."""
    return f"navi-shard-{number}"
