"""Ape-X actors, and the cluster that supervises actors and replay shards: its base class and the in-process one."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError, RunError
from navi_core.learn.algorithms.dqn import batch_structure
from navi_core.learn.estimators.noise import epsilons
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.replay.q_batches import make_batches
from navi_core.learn.rollout.collector import Collector
from navi_core.learn.rollout.execution import use_precision
from navi_core.policy import RewardShaper, build_policy
from navi_core.policy.distributions import table_index
from navi_core.scale.messages import ExperienceBatch, ParameterHub, Parameters, Report, ShardLostError
from navi_core.scale.ray_ports import RayHub
from navi_core.scale.sharded_replay import ReplayShard, ShardPort
from navi_core.scenes import Scene, load_gmdag
from navi_core.tasks import reference_task
from navi_core.world import Environment, Field, NavigationEnv
from navi_core.world.counter_random import Purpose, words

_REFUSED_PAUSE = 0.02
_RND = "rnd."


def actor_count(config: TrainConfig) -> int:
    """Return the number of actors of a run: `actors_per_gpu` for every GPU, or for every learner where there is none.

    Raises:
        ConfigError: The rows cannot be shared out evenly.
    """
    wanted = config.distributed
    count = wanted.actors_per_gpu * max(torch.cuda.device_count() if config.device != "cpu" else 0, wanted.learners)
    if config.actors % count:
        raise ConfigError(
            f"{config.actors} environment rows (actors) cannot be shared by {count} actor processes; "
            f"set actors to a multiple of {count}, or distributed.actors_per_gpu"
        )
    return count


def actor_seed(seed: int, actor: int, life: int) -> int:
    """Derive an actor's random seed from run seed, actor index and restart number: no two fly the same episodes."""
    return int(words(seed, Purpose.TASK, torch.tensor([actor]), life)[0]) & (2**31 - 1)


def open_environment(config: TrainConfig, rows: int, seed: int, scenes: Sequence[Scene | str | Path]) -> Environment:
    """Create the vectorised environment of an actor: the run's task, or flight through scenes.

    Args:
        config: The run's configuration.
        rows: B.
        seed: Seed of every draw.
        scenes: Loaded scenes, or their files; none for a task.
    """
    if config.task is not None:
        options: dict[str, Any] = dict(config.task_options)
        return reference_task(config.task, rows, seed, **options)
    loaded = [load_gmdag(scene) if isinstance(scene, (str, Path)) else scene for scene in scenes]
    return NavigationEnv(Field(loaded, device="cpu", threads=config.threads or 1), rows, config.env, seed)


def learned_weights(policy: torch.nn.Module, shaper: RewardShaper) -> dict[str, torch.Tensor]:
    """Return the state dict published to actors: the policy's, and the curiosity (RND) predictor's under `rnd.`."""
    weights = dict(policy.state_dict())
    if shaper.rnd is not None:
        weights |= {_RND + name: x for name, x in shaper.rnd.predictor.state_dict().items()}
    return weights


class ApexActor:
    """Ape-X actor: collects rollouts with its part of a run's environments and sends them to a replay shard.

    Args:
        config: The run's configuration; `actors` are the rows of all actors together.
        number: Index of the actor, which fixes its rows' ε.
        life: Number of its restart.
        shard: Receives the rollouts.
        hub: Provides the weights.
        scenes: Scenes to fly in; none for a task.
    """

    def __init__(
        self,
        config: TrainConfig,
        number: int,
        life: int,
        shard: ShardPort,
        hub: ParameterHub | RayHub,
        scenes: Sequence[Scene | str | Path] = (),
    ) -> None:
        count = actor_count(config)
        rows, seed = config.actors // count, actor_seed(config.seed, number, life)
        self.config, self.number, self.life, self.shard, self.hub = config, number, life, shard, hub
        self.version = self.shipped = 0
        self._rows, self._place = rows, (number % count) * rows
        env = open_environment(config, rows, seed, scenes)
        # After the environment: the ray kernels' first call gives torch every core.
        torch.set_num_threads(1)
        self.policy = build_policy(config.policy, seed=config.seed, spaces=env.spaces)
        # The learner's precision: initial priorities and sequence states come from this policy.
        use_precision(self.policy, config)
        memory = max(1, config.shaper.memory_capacity // count)
        shaping = config.shaper.model_copy(update={"memory_capacity": memory})
        self.shaper = RewardShaper(shaping, rows, config.policy.width, config.seed)
        mine = config.model_copy(update={"seed": seed, "actors": rows})
        self.collector = Collector(env, self.policy, self.shaper, mine, device=torch.device("cpu"))
        # Schedules over decisions, such as the curiosity weight, count the rows of all actors.
        self.collector.total_rows = config.actors
        self._rollout = self.collector.new_rollout(config.dqn.rollout, config.dqn.bptt)
        self._batches = make_batches(config, self._rollout.observations.codec, self.policy)
        self._waiting: ExperienceBatch | None = None

    def turn(self) -> str | None:
        """Run one actor iteration: load newer weights, collect a rollout, send it; a refused one is resent next time.

        Returns:
            None after a sent rollout; "wait" without weights or after a refusal; else the reason why the run is over.

        Raises:
            CheckpointError: Weights arrived damaged.
        """
        command = self.hub.command(self.version)
        if command.stop:
            return command.stop
        if command.parameters is not None:
            self._take(command.parameters)
        if not self.version:
            return "wait"
        if self._waiting is None:
            self._waiting = self._fly()
        if not self.shard.add(self._waiting):
            return "wait"
        self._waiting = None
        self.shipped += 1
        return None

    def run(self, stop: Callable[[], bool] | None = None) -> str:
        """Run the actor loop until the run is over or `stop` returns true; return the reason."""
        while stop is None or not stop():
            outcome = self.turn()
            if outcome == "wait":
                time.sleep(_REFUSED_PAUSE)
            elif outcome is not None:
                return outcome
        return "stopped"

    def _take(self, parameters: Parameters) -> None:
        weights = parameters.weights()
        curious = {name.removeprefix(_RND): x for name, x in weights.items() if name.startswith(_RND)}
        self.policy.load_state_dict({name: x for name, x in weights.items() if not name.startswith(_RND)})
        if self.shaper.rnd is not None:
            self.shaper.rnd.predictor.load_state_dict(curious)
        if not self.version:
            # A replacement continues the run's exploration schedule instead of starting it anew.
            self.collector.decisions = parameters.decisions // self.config.actors
        self.version = parameters.version

    def _fly(self) -> ExperienceBatch:
        rollout, config = self._rollout, self.config
        steps = self.collector.decisions * config.actors
        ladder = epsilons(config.dqn, config.actors, steps)
        self.policy.heads.epsilon = ladder[self._place : self._place + self._rows]
        stats = self.collector.collect(rollout)
        assert stats is not None
        actions = table_index(rollout.actions, self.policy.heads.table)
        items = self._batches.items(rollout, actions)
        priorities, signs = self._first_priorities(items)
        done = rollout.terminated | rollout.truncated
        report = Report(
            self.number,
            self.life,
            self.shipped,
            rollout.steps * rollout.rows,
            self.version,
            stats.seconds,
            sum(stats.rewards) / len(stats.rewards),
            tuple(rollout.episode_return[done].tolist()),
            tuple(int(n) for n in rollout.episode_length[done].tolist()),
            *signs,
            tuple(np.bincount(actions.flatten().numpy(), minlength=len(self.policy.heads.table)).tolist()),
        )
        # Copied: views of the rollout's storage would be overwritten by the next rollout.
        return ExperienceBatch(report, {name: np.array(x.numpy()) for name, x in items.items()}, priorities)

    @torch.no_grad()
    def _first_priorities(self, items: dict[str, torch.Tensor]) -> tuple[np.ndarray, tuple[float, float, float]]:
        """Compute initial priorities (TD errors) and early-stopping statistics of items with this actor's weights."""
        if not items:
            return np.zeros(0), (0.0, 0.0, 1.0)
        batch = self._batches.evaluate(items, self.policy, self.policy)
        error = (batch.target - batch.q) * batch.valid
        priorities = self._batches.errors(error, batch.valid).double() + self.config.replay.priority_floor
        mean = error.double().sum() / batch.count
        spread = (error.double().square().sum() / batch.count - mean.square()).clamp_min(0.0)
        return priorities.numpy(), (float(mean), float(spread), batch_structure(batch))


_LOG = logging.getLogger("navi.scale")
_LIVES = 1_000_000


class Replacements:
    """Counter of restarted actors and replay shards with an upper limit.

    Args:
        most: Largest number of replacements.

    Attributes:
        report: Called with each replacement in words.
    """

    def __init__(self, most: int) -> None:
        self.most, self.actors, self.shards = most, 0, 0
        self.report: Callable[[str], object] = lambda _: None

    def count(self, what: str, number: int, why: str) -> None:
        """Count and log the replacement of a dead actor or replay shard.

        Raises:
            RunError: There were too many replacements.
        """
        self.actors += what == "actor"
        self.shards += what == "shard"
        message = f"{what} {number} died ({why}) and is replaced"
        _LOG.warning("%s", message)
        self.report(message)
        if self.actors + self.shards > self.most:
            raise RunError(
                f"{message}, death number {self.most + 1}; check what kills them, or raise distributed.max_replacements"
            )


def of_learner(count: int, workers: Workers) -> list[int]:
    """Assign shard or actor indices to this learner round-robin: every `size`-th from its rank on."""
    return list(range(workers.rank, count, workers.size))


class Cluster(ABC):
    """Abstract supervisor of one learner's actors and replay shards; restarts dead ones.

    Args:
        config: The run's configuration.
        workers: Learner processes (ranks).
        actors: Actors of all learners.

    Attributes:
        prefetch: Minibatches to draw ahead.
        ports: This learner's shards.
        replaced: Counts of replaced actors and shards.
    """

    prefetch = 0
    ports: Sequence[ShardPort]

    def __init__(self, config: TrainConfig, workers: Workers, actors: int) -> None:
        self.config, self._workers, self._mine = config, workers, of_learner(actors, workers)
        self.replaced = Replacements(config.distributed.max_replacements)
        self._lives: dict[int, int] = {}

    def start(self, start: int) -> None:
        """Start this learner's actors; `start` counts the starts of the run, so that restart numbers are unique."""
        for number in self._mine:
            self._lives[number] = start * _LIVES
            self._launch(number)

    def _launch(self, number: int) -> None:
        self._lives[number] += 1
        self._fly(number, self._lives[number])

    @abstractmethod
    def _fly(self, number: int, life: int) -> None:
        """Launch an actor (process or in-process) under a restart number."""

    @abstractmethod
    def drive(self, behind: bool) -> None:
        """Run in-process actors for one iteration and restart dead actors and shards.

        Args:
            behind: The learners lag behind the actors.
        """

    @abstractmethod
    def publish(self, parameters: Parameters) -> None:
        """Publish a new version of the weights to the actors."""

    @abstractmethod
    def wait(self) -> None:
        """Pause the learner loop briefly while no rollouts have arrived."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Shut down actors and replay shards; `reason` is reported to the actors."""


class LocalShard(ShardPort):
    """In-process client (adapter) of a replay shard: method calls are direct.

    Args:
        number: Index of the shard.
        make: Factory of an empty shard.

    Attributes:
        shard: Replay shard; None where it is lost.
    """

    def __init__(self, number: int, make: Callable[[], ReplayShard]) -> None:
        self.number, self._make = number, make
        self.shard: ReplayShard | None = make()

    def revive(self) -> bool:
        """Replace a lost replay shard by an empty one; return whether it was lost."""
        lost = self.shard is None
        if lost:
            self.shard = self._make()
        return lost

    def later(self, method: str, *args: object) -> Callable[[], Any]:
        """Call a shard method synchronously; the returned callable yields its result (a resolved future)."""
        if self.shard is None:
            raise ShardLostError(f"shard {self.number} is lost")
        answer = getattr(self.shard, method)(*args)
        return lambda: answer


class LocalCluster(Cluster):
    """In-process cluster: actors and replay shards of one learner take turns in its process.

    Args:
        config: The run's configuration.
        scenes: Scenes to fly in; none for a task.
        workers: Learner processes (ranks).

    Attributes:
        actors: The actors by number; a dead one is missing.
    """

    def __init__(
        self,
        config: TrainConfig,
        scenes: Sequence[Scene | str | Path] = (),
        workers: Workers = ALONE,
    ) -> None:
        super().__init__(config, workers, actor_count(config))
        self._scenes, self.hub = scenes, ParameterHub()
        shards = of_learner(config.distributed.replay_shards, workers)
        self.ports: list[LocalShard] = [LocalShard(i, partial(ReplayShard, config, i)) for i in shards]
        self.actors: dict[int, ApexActor] = {}

    def drive(self, behind: bool) -> None:
        """Run one iteration of every actor unless the learners lag behind; restart dead actors and lost shards."""
        for number in () if behind else self._mine:
            try:
                if number not in self.actors:
                    self.replaced.count("actor", number, "it was killed")
                    self._launch(number)
                self.actors[number].turn()
            except ShardLostError:
                port = self._port(number)
                if port.revive():
                    self.replaced.count("shard", port.number, "it was lost")

    def publish(self, parameters: Parameters) -> None:
        """Publish a new version of the weights to the in-process actors."""
        self.hub.publish(parameters)

    def wait(self) -> None:
        """Return at once (no-op): in-process actors run only inside `drive`."""

    def close(self, reason: str) -> None:
        """Send the actors the stop command with its reason."""
        self.hub.stop(reason)

    def _port(self, actor: int) -> LocalShard:
        # An actor sends to a shard of its own learner.
        return self.ports[(actor // self._workers.size) % len(self.ports)]

    def _fly(self, number: int, life: int) -> None:
        self.actors[number] = ApexActor(self.config, number, life, self._port(number), self.hub, self._scenes)
