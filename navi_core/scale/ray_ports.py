"""Ray clients (proxies) of replay shards and parameter hub: named actors, looked up again after a failure."""

import logging
import os
import socket
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from navi_core.errors import ConfigError, NaviError, install_command
from navi_core.machine import usable_cores
from navi_core.scale.messages import ActorCommand, ExperienceBatch, ShardLostError
from navi_core.scale.sharded_replay import ShardPort

HUB = "navi-hub"
"""Name of the parameter hub's Ray actor."""
_PATIENCE = 120.0
_PAUSE = 0.05
_STARTS = 3
_ANSWERS_IN = 5.0
"""Timeout of the TCP probe of a Ray address [s]."""
_ATTEMPTS = "3"
"""Attempts to join a running Ray, up to 40 s each; Ray's default of 20 takes a quarter of an hour."""
_LOG = logging.getLogger("navi.scale")


def import_ray() -> ModuleType:
    """Import the optional Ray package, without usage statistics; return the module.

    Raises:
        ConfigError: Ray is not installed.
    """
    # No usage statistics leave this machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Every line of a job is shown once per process.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"actors and shards in processes of their own need Ray: {install_command('ray')}; or add --in-process"
        ) from None
    module: ModuleType = ray
    return module


def join_ray(address: str | None, namespace: str | None, *, actors: int = 1) -> ModuleType:
    """Connect to a running Ray cluster or start a local one; return the Ray module.

    Ray's processes listen on all interfaces. A Ray started here requires a token (`~/.ray/auth_token`, created on first
    use) unless RAY_AUTH_MODE disables it.

    Args:
        address: host:port of a running Ray, or auto; None starts one.
        namespace: Namespace of the run.
        actors: Processes that a Ray started here must run at once.

    Raises:
        ConfigError: Ray is not installed, or does not answer.
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
            except Exception as error:  # Ray raises a bare Exception after its half minute
                if not left or "timed out" not in str(error):
                    raise
                _LOG.warning("Ray did not start within its time and is started again: %s", str(error).splitlines()[0])
                ray.shutdown()
    except Exception as error:  # Ray raises bare exceptions
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _no_ray(address or "this machine", reason) from None
    return ray


def _require_listener(address: str) -> None:
    """Check that an address is well-formed and accepts connections; Ray itself would retry for many minutes.

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


class NamedActor:
    """Proxy of a named Ray actor; looks the name up again after a failure.

    Args:
        ray: The Ray module.
        name: Name of the actor in this connection's namespace.
    """

    def __init__(self, ray: ModuleType, name: str) -> None:
        self.ray, self.name = ray, name
        self._handle: Any = None

    def call(self, method: str, *args: object) -> Any:  # noqa: ANN401 (result of the actor's method)
        """Call a remote method synchronously and return its result.

        Raises:
            ShardLostError: The actor is dead or unknown.
        """
        return self.later(method, *args)()

    def later(self, method: str, *args: object) -> Callable[[], Any]:
        """Call a remote method asynchronously; the returned callable waits for the result and raises as `call`."""
        ray = self.ray
        try:
            if self._handle is None:
                self._handle = ray.get_actor(self.name)
            reference = getattr(self._handle, method).remote(*args)
        except (ValueError, ray.exceptions.RayError) as error:
            raise self._lost(error) from None

        def answer() -> Any:  # noqa: ANN401 (result of the actor's method)
            try:
                return ray.get(reference, timeout=_PATIENCE)
            except ray.exceptions.RayTaskError as error:
                # Errors of the actor's own code pass through.
                raise error.cause if isinstance(error.cause, NaviError) else error from None
            except ray.exceptions.RayError as error:
                raise self._lost(error) from None

        return answer

    def forget(self) -> None:
        """Drop the cached Ray handle; the next call looks the name up again."""
        self._handle = None

    def _lost(self, error: Exception) -> ShardLostError:
        self.forget()
        return ShardLostError(f"{self.name} does not answer ({type(error).__name__})")


class RayShard(ShardPort):
    """Client of a replay shard on Ray.

    Args:
        named: Handle of the shard.
        number: Index of the shard.
        make: Starts an empty shard unless one runs; None leaves the replacement to another process.
    """

    def __init__(self, named: NamedActor, number: int, make: Callable[[], bool] | None = None) -> None:
        self.number, self._named, self._make = number, named, make

    def later(self, method: str, *args: object) -> Callable[[], Any]:
        """Call a shard method asynchronously; the returned callable waits for the result."""
        return self._named.later(method, *args)

    def add(self, experience: ExperienceBatch) -> bool:
        """Send a rollout's items to the shard; False (retry later) also while the shard is replaced."""
        try:
            return super().add(experience)
        except ShardLostError:
            if self._make is None:
                return False
            raise

    def revive(self) -> bool:
        """Restart a lost replay shard empty; return whether one was started."""
        self._named.forget()
        return self._make is not None and self._make()


class RayHub:
    """Client of the parameter hub on Ray; a hub that does not answer counts as no new command.

    Args:
        named: Handle of the hub.
    """

    def __init__(self, named: NamedActor) -> None:
        self._named = named
        self._silent: float | None = None

    def command(self, version: int) -> ActorCommand:
        """Poll the hub for newer weights and the stop signal; a hub silent for two minutes ends the run."""
        try:
            command: ActorCommand = self._named.call("command", version)
        except ShardLostError:
            self._silent = self._silent if self._silent is not None else time.monotonic()
            time.sleep(_PAUSE)
            return ActorCommand(None, "the run does not answer" if time.monotonic() - self._silent > _PATIENCE else "")
        self._silent = None
        return command


def shard_name(number: int) -> str:
    """Return the Ray actor name of a replay shard."""
    return f"navi-shard-{number}"
