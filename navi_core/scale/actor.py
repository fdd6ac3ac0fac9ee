"""An actor: flies its rows with the newest weights it was told, and ships every rollout with its first priorities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.dqn import batch_structure
from navi_core.learn.estimators.schedules import epsilons
from navi_core.learn.replay.q_batches import make_batches
from navi_core.learn.rollout.collector import Collector, Environment
from navi_core.learn.rollout.execution import use_precision
from navi_core.policy import RewardShaper, build_policy
from navi_core.policy.distributions import table_index
from navi_core.scale.messages import Report, Shipment
from navi_core.scale.parameters import Orders
from navi_core.world.counter_random import Purpose, words

if TYPE_CHECKING:
    from navi_core.scenes import Scene

__all__ = ["ApexActor", "actor_count", "actor_seed", "learned_weights", "open_environment"]

_REFUSED_PAUSE = 0.02
_RND = "rnd."


class _Shard(Protocol):
    def add(self, shipment: Shipment) -> bool: ...


class _Hub(Protocol):
    def orders(self, version: int) -> Orders: ...


def actor_count(config: TrainConfig) -> int:
    """Return how many actors a run starts: `actors_per_gpu` for every GPU, or for every learner where there is none.

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
    """Return the seed of an actor's draws: no other actor, and no other life of it, flies the same episodes."""
    return int(words(seed, Purpose.TASK, torch.tensor([actor]), life)[0]) & (2**31 - 1)


def open_environment(config: TrainConfig, rows: int, seed: int, scenes: Sequence[Scene | str | Path]) -> Environment:
    """Return rows of the run's task, or of flight through scenes.

    Args:
        config: The run's configuration.
        rows: B.
        seed: Seed of every draw.
        scenes: Loaded scenes, or their files; none for a task.
    """
    if config.task is not None:
        from navi_core.tasks import reference_task

        options: dict[str, Any] = dict(config.task_options)
        return reference_task(config.task, rows, seed, **options)
    from navi_core.scenes import load_gmdag
    from navi_core.world import Field, NavigationEnv

    loaded = [load_gmdag(scene) if isinstance(scene, (str, Path)) else scene for scene in scenes]
    return NavigationEnv(Field(loaded, device="cpu", threads=config.threads or 1), rows, config.env, seed)


def learned_weights(policy: Any, shaper: RewardShaper) -> dict[str, torch.Tensor]:
    """Return what is published: the policy's weights, and those that predict for curiosity."""
    weights = dict(policy.state_dict())
    if shaper.rnd is not None:
        weights |= {_RND + name: x for name, x in shaper.rnd.predictor.state_dict().items()}
    return weights


class ApexActor:
    """Some rows of a run.

    Args:
        config: The run's configuration; `actors` are the rows of all actors together.
        number: Which actor; its rows' places on the ladder of ε follow from it.
        life: Which of its lives.
        shard: Takes the rollouts.
        hub: Gives the weights.
        scenes: What is flown in; none for a task.
    """

    def __init__(
        self,
        config: TrainConfig,
        number: int,
        life: int,
        shard: _Shard,
        hub: _Hub,
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
        self.policy = build_policy(config.policy, seed=config.seed, spaces=getattr(env, "spaces", None))
        # As the learner reads them: the first priorities and the states at the start of sequences are this policy's.
        use_precision(self.policy, config)
        memory = max(1, config.shaper.memory_capacity // count)
        shaping = config.shaper.model_copy(update={"memory_capacity": memory})
        self.shaper = RewardShaper(shaping, rows, config.policy.width, config.seed)
        mine = config.model_copy(update={"seed": seed, "actors": rows})
        self.collector = Collector(env, self.policy, self.shaper, mine, device=torch.device("cpu"))
        # What depends on the run's decisions, such as curiosity's weight, takes this actor's for those of all.
        self.collector.total_rows = config.actors
        self._rollout = self.collector.new_rollout(config.dqn.rollout, config.dqn.bptt)
        self._batches = make_batches(config, self._rollout.observations.codec, self.policy)
        self._waiting: Shipment | None = None

    def turn(self) -> str | None:
        """Take up newer weights, fly a rollout, ship it; one that was refused is shipped again before the next.

        Returns:
            None after a turn that brought something; "wait" without weights or where the shard refused; else why the
            run is over.

        Raises:
            CheckpointError: Weights arrived damaged.
        """
        orders = self.hub.orders(self.version)
        if orders.stop:
            return orders.stop
        if orders.parameters is not None:
            self._take(orders.parameters)
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
        """Take turns until the run is over, or `stop` says so; return why."""
        while stop is None or not stop():
            said = self.turn()
            if said == "wait":
                time.sleep(_REFUSED_PAUSE)
            elif said is not None:
                return said
        return "stopped"

    def _take(self, parameters: Any) -> None:
        weights = parameters.weights()
        curious = {name.removeprefix(_RND): x for name, x in weights.items() if name.startswith(_RND)}
        self.policy.load_state_dict({name: x for name, x in weights.items() if not name.startswith(_RND)})
        if self.shaper.rnd is not None:
            self.shaper.rnd.predictor.load_state_dict(curious)
        if not self.version:
            # One who takes another's place goes on where the run stands, and does not explore from the beginning.
            self.collector.decisions = parameters.decisions // self.config.actors
        self.version = parameters.version

    def _fly(self) -> Shipment:
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
        )
        # Copied where it is a view of the rollout's storage, which the next one overwrites.
        return Shipment(report, {name: np.array(x.numpy()) for name, x in items.items()}, priorities)

    @torch.no_grad()
    def _first_priorities(self, items: dict[str, torch.Tensor]) -> tuple[np.ndarray, tuple[float, float, float]]:
        """Return the items' priorities, and the signs that early stopping reads, by this actor's weights alone."""
        if not items:
            return np.zeros(0), (0.0, 0.0, 1.0)
        batch = self._batches.evaluate(items, self.policy, self.policy)
        error = (batch.target - batch.q) * batch.valid
        priorities = self._batches.errors(error, batch.valid).double() + self.config.replay.priority_floor
        mean = error.double().sum() / batch.count
        spread = (error.double().square().sum() / batch.count - mean.square()).clamp_min(0.0)
        return priorities.numpy(), (float(mean), float(spread), batch_structure(batch))
