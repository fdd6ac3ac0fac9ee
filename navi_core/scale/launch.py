"""Launcher of Ape-X runs and of external actors, and the Ray cluster with supervision that they run on.

A Ray cluster has actors and shards as named Ray actors, each in a process of its own. A dead actor or shard is detected
when it does not answer or its process ends, and is replaced under the same name; its clients look the name up again.
Without an address Ray starts here and ends with the run. Ray unpickles what it receives, so any peer can run code: a
Ray started here requires its token, a given one must do the same or stay within a trusted network.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig, parse_config
from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError, NaviError, RunError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.run.process import StopFlag
from navi_core.learn.run.records import TrainResult
from navi_core.models import corpus_of
from navi_core.record import MetricLog, RunDirectory
from navi_core.record.events import EventBus
from navi_core.scale.apex import train_apex
from navi_core.scale.cluster import ApexActor, Cluster, LocalCluster, actor_count, of_learner
from navi_core.scale.messages import ParameterHub, Parameters, ShardLostError
from navi_core.scale.ray_ports import HUB, NamedActor, RayHub, RayShard, import_ray, join_ray, shard_name
from navi_core.scale.sharded_replay import ReplayShard
from navi_core.scenes import CompiledScene
from navi_core.tasks import reference_task
from navi_core.world import Field

_LOG = logging.getLogger("navi.scale")
_SPACE = "navi-"
_PATIENCE = 120.0
_PAUSE = 0.05
_MOMENT = 0.002
_HUB_CHECKED = 1.0
_FAREWELL = 10.0


class _RemoteActor:
    """Ray actor class: process wrapper of one Ape-X actor."""

    def __init__(self, config: TrainConfig, number: int, life: int, shard: int, scenes: Sequence[str]) -> None:
        ray = import_ray()
        port = RayShard(NamedActor(ray, shard_name(shard)), shard)
        self._actor = ApexActor(config, number, life, port, RayHub(NamedActor(ray, HUB)), scenes)

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def run(self) -> str:
        """Run the actor's rollout loop until the run is over; return the reason."""
        return self._actor.run()


def join_run(address: str, run_id: str | None) -> tuple[Any, dict[str, Any]]:
    """Connect to a run of another process on Ray; return the Ray module and the run's description.

    Args:
        address: host:port of its Ray, or auto.
        run_id: Id of the run; None where there is only one.

    Raises:
        ConfigError: The run does not exist, or several do and none was named.
    """
    ray = join_ray(address, None)
    spaces = [entry["namespace"] for entry in ray.util.list_named_actors(all_namespaces=True) if entry["name"] == HUB]
    wanted = [x for x in spaces if run_id is None or x == f"{_SPACE}{run_id}"]
    if len(wanted) != 1:
        known = ", ".join(sorted(x.removeprefix(_SPACE) for x in spaces)) or "none; start one with `navi train apex`"
        raise ConfigError(f"which run? --run names it; runs at {address}: {known}")
    ray.shutdown()
    ray = join_ray(address, wanted[0])
    return ray, NamedActor(ray, HUB).call("describe")


def fly_for_run(address: str, run_id: str | None, shard: int, number: int | None) -> tuple[str, int]:
    """Run an external actor for another process's run until it is over; return the reason and the rollouts sent.

    Args:
        address: host:port of its Ray, or auto.
        run_id: Id of the run; None where there is only one.
        shard: Shard that receives the rollouts.
        number: Index of the actor, which fixes its ε; by default that of the shard.

    Raises:
        ConfigError: There is no such run or shard.
    """
    ray, description = join_run(address, run_id)
    if not 0 <= shard < description["shards"]:
        raise ConfigError(
            f"shard {shard} of a run with {description['shards']}; allowed: 0 … {description['shards'] - 1}"
        )
    config = parse_config(TrainConfig, description["config"])
    port, hub = RayShard(NamedActor(ray, shard_name(shard)), shard), NamedActor(ray, HUB)
    # Restart numbers of external actors are random and negative, apart from those that a learner counts.
    life = -1 - secrets.randbits(40)
    with StopFlag() as flag:
        actor = ApexActor(config, shard if number is None else number, life, port, RayHub(hub), description["scenes"])
        hub.call("join")
        reason = actor.run(flag)
        with suppress(ShardLostError):
            hub.call("leave")
    ray.shutdown()
    return flag.signal_name or reason, actor.shipped


class RayCluster(Cluster):
    """Ray cluster: supervisor of one learner's actors and replay shards, each a named Ray actor.

    Args:
        config: The run's configuration.
        run_id: Id of the run, which names its namespace.
        scenes: Files of compiled scenes, readable on every machine with actors; none for a task.
        workers: Learner processes (ranks).
        address: Address of a running Ray; None starts one here.
        actors: Actors to start; None starts the configured number, 0 leaves them to `navi train actor`.

    Attributes:
        address: Address of the Ray for other processes.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_id: str,
        scenes: Sequence[str] = (),
        workers: Workers = ALONE,
        *,
        address: str | None = None,
        actors: int | None = None,
    ) -> None:
        count = actor_count(config) if actors is None else actors
        super().__init__(config, workers, count)
        self._scenes, self.prefetch = list(scenes), config.distributed.prefetch
        namespace = f"{_SPACE}{workers.share(run_id)}"
        if workers.first:
            self.ray = join_ray(address, namespace, actors=count + config.distributed.replay_shards)
            address = str(self.ray.get_runtime_context().gcs_address)
        self.address = str(workers.share(address))
        if not workers.first:
            self.ray = join_ray(self.address, namespace)
        self._kept: dict[str, Any] = {}
        self._hub = NamedActor(self.ray, HUB)
        self._published: Parameters | None = None
        if workers.first:
            self._make_hub()
        self.ports = [self._new_port(i) for i in of_learner(config.distributed.replay_shards, workers)]
        self._running: dict[Any, int] = {}
        self._handles: dict[int, Any] = {}
        self._checked = 0.0

    def pids(self) -> dict[int, int]:
        """Return the process ids of this learner's actors by actor index."""
        return {number: int(self.ray.get(handle.pid.remote())) for number, handle in self._handles.items()}

    def kill_shard(self, number: int) -> None:
        """Kill a replay shard's process, to simulate the failure of its machine."""
        self.ray.kill(self._kept[shard_name(number)])

    def drive(self, behind: bool) -> None:  # noqa: ARG002 (Ray runs the actors at their own pace)
        """Restart actors whose process has ended, and a parameter hub that does not answer."""
        if self._workers.first and time.monotonic() - self._checked > _HUB_CHECKED:
            self._checked = time.monotonic()
            try:
                self._hub.call("describe")
            except ShardLostError:
                self._make_hub()
        if not self._running:
            return
        ended, _ = self.ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        for reference in ended:
            number = self._running.pop(reference)
            try:
                reason = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                raise RunError(f"actor {number} failed: {error.cause or error}") from None
            except self.ray.exceptions.RayError as error:
                self.replaced.count("actor", number, type(error).__name__)
                self._launch(number)
            else:
                raise RunError(f"actor {number} left the run: {reason}")

    def publish(self, parameters: Parameters) -> None:
        """Publish a new version of the weights to the hub; rank 0 does so for all learners, whose weights are equal."""
        if not self._workers.first:
            return
        self._published = parameters
        try:
            self._hub.later("publish", parameters)
        except ShardLostError:
            self._make_hub()

    def wait(self) -> None:
        """Pause the learner loop briefly while no rollouts have arrived."""
        time.sleep(_MOMENT)

    def close(self, reason: str) -> None:
        """Stop the actors and disconnect from Ray; a Ray started here shuts down."""
        if not self.ray.is_initialized():
            return
        try:
            if self._workers.first:
                self._hub.call("stop", reason)
                # External actors receive the stop signal only while the hub runs.
                until = time.monotonic() + _FAREWELL
                while self._hub.call("guests") > 0 and time.monotonic() < until:
                    time.sleep(_PAUSE)
            if self._running:
                self.ray.wait(list(self._running), num_returns=len(self._running), timeout=10)
        except NaviError as error:
            _LOG.warning("the actors could not be stopped: %s", error)
        self.ray.shutdown()

    def _fly(self, number: int, life: int) -> None:
        shard = number % self.config.distributed.replay_shards
        made = self.ray.remote(_RemoteActor).options(num_cpus=1, max_concurrency=2)
        handle = made.remote(self.config, number, life, shard, self._scenes)
        self._handles[number] = handle
        self._running[handle.run.remote()] = number

    def _new_port(self, number: int) -> RayShard:
        make = partial(self._make, shard_name(number), ReplayShard, self.config, number)
        make()
        return RayShard(NamedActor(self.ray, shard_name(number)), number, make)

    def _make_hub(self) -> None:
        description = {
            "config": self.config.model_dump(mode="json"),
            "scenes": self._scenes,
            "shards": self.config.distributed.replay_shards,
        }
        self._hub.forget()
        if self._make(HUB, ParameterHub, description) and self._published is not None:
            _LOG.warning("the hub died and is replaced")
            self._hub.call("publish", self._published)

    def _make(self, name: str, kind: type, *args: object) -> bool:
        """Create a named Ray actor unless one of that name answers (get or create).

        The name of a dead actor may stay taken for a moment, so the start is retried.

        Returns:
            Whether it was started.
        """
        until = time.monotonic() + _PATIENCE
        while not self._answers(name):
            try:
                # Ray ends a named actor once its creating handle is dropped.
                self._kept[name] = self.ray.remote(kind).options(name=name, num_cpus=0).remote(*args)
                return True
            except (ValueError, self.ray.exceptions.RayError) as error:
                if time.monotonic() > until:
                    raise RunError(f"{name} cannot be started: {error}") from None
                time.sleep(_PAUSE)
        return False

    def _answers(self, name: str) -> bool:
        # Several pending calls report one death several times; the later ones find the replacement here.
        try:
            self.ray.get(self.ray.get_actor(name).__ray_ready__.remote(), timeout=_PATIENCE)
            return True
        except (ValueError, self.ray.exceptions.RayError):
            return False


# Longer than 60 lines: half of them document the arguments.
def launch_apex(
    config: TrainConfig,
    run: RunDirectory | None,
    *,
    scenes: Sequence[CompiledScene] = (),
    workers: Workers = ALONE,
    address: str | None = None,
    processes: int | None = None,
    in_process: bool = False,
    initial: Path | None = None,
    events: EventBus | None = None,
    log: MetricLog | None = None,
    made: Callable[[Cluster], None] | None = None,
) -> TrainResult:
    """Launch an Ape-X run, on Ray or in this process, and train until it ends.

    Args:
        config: The run's configuration, of algorithm dqn.
        run: Open run directory; None in all learners but the first.
        scenes: Compiled scenes to fly in; none for a task. Actors on Ray read their files.
        workers: Learner processes (ranks).
        address: Address of a running Ray; None starts one here.
        processes: Actors to start on Ray; None starts the configured number, 0 leaves them to `navi train actor`.
        in_process: Without Ray: actors and shards take turns here.
        initial: A checkpoint whose weights a new run starts from.
        events: Event bus of this process, to which the run publishes.
        log: Metric log; by default the run's.
        made: Called with the cluster once it exists.

    Raises:
        NaviError: As `train_apex` does, and where Ray is not installed or does not answer.
    """
    spaces: Spaces | None = None
    shape: tuple[int, ...] = (3, config.env.azimuth_bins, config.env.elevation_bins)
    corpus: dict[str, Any] = {}
    if config.task is not None:
        options: dict[str, Any] = dict(config.task_options)
        spaces = reference_task(config.task, 1, config.seed, **options).spaces
        assert spaces is not None
        shape = spaces.observed
    else:
        compiled = [item.scene for item in scenes]
        hashes, summary = corpus_of(compiled, Field(compiled, device="cpu").vocabulary)
        corpus = {"scene_hashes": hashes, "corpus_summary": summary}
    run_id = run.run_id if run is not None else ""

    def place(config: TrainConfig, workers: Workers) -> Cluster:
        here: Cluster
        if in_process:
            here = LocalCluster(config, [item.scene for item in scenes], workers)
        else:
            files = [str(item.path.absolute()) for item in scenes]
            here = ray = RayCluster(config, run_id, files, workers, address=address, actors=processes)
            if workers.first:
                last = config.distributed.replay_shards - 1
                _LOG.info(
                    "Ray at %s; further actors: navi train actor --shard 0 … %d --address %s --run %s",
                    ray.address, last, ray.address, run_id,
                )  # fmt: skip
        if made is not None:
            made(here)
        return here

    return train_apex(
        config, run, place, spaces=spaces, shape=shape, workers=workers, events=events, initial=initial, log=log,
        corpus=corpus,
    )  # fmt: skip
