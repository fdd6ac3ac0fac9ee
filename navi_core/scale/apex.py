"""Ape-X training loop: actors collect, replay shards store, learners update, asynchronously (Horgan et al. 2018).

The learner's loop reads the reports of the shards, takes the gradient steps due for them, and publishes the weights at
an interval. Rank 0 counts, decides, records and saves; its decisions are broadcast, so that all learners take the same
steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from navi_core.config import TrainConfig
from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.dqn import DQNLearner
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.execution import use_precision
from navi_core.learn.rollout.storage import ObservationCodec
from navi_core.learn.run.checkpoints import checkpoint_path
from navi_core.learn.run.monitor import RunWatch
from navi_core.learn.run.process import StopFlag
from navi_core.learn.run.records import TrainResult
from navi_core.learn.run.session import RunSession, carry_out
from navi_core.models import Checkpoint
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import MetricLog, RunDirectory
from navi_core.record.events import EventBus, ParameterSync, PartReplaced, ReplayUpdate, RolloutCollected
from navi_core.scale.cluster import Cluster, actor_count, learned_weights
from navi_core.scale.messages import Parameters, RunCounters
from navi_core.scale.sharded_replay import ShardedReplay, ShardPort

_SECONDS_BETWEEN_ROWS = 1.0


def check_apex(config: TrainConfig, workers: Workers = ALONE) -> None:
    """Validate the configuration of a distributed (Ape-X) run.

    Raises:
        ConfigError: A setting is not supported; the message names it.
    """
    if config.algorithm != "dqn":
        raise ConfigError(f"navi train apex runs algorithm dqn, not {config.algorithm}; torchrun shares out the others")
    wanted = config.distributed
    if workers.size != wanted.learners:
        raise ConfigError(
            f"distributed.learners is {wanted.learners} and {workers.size} processes run; start as many with torchrun"
        )
    if wanted.replay_shards % wanted.learners:
        raise ConfigError(
            f"{wanted.replay_shards} shards cannot be shared by {wanted.learners} learners; set "
            f"distributed.replay_shards to a multiple of {wanted.learners}"
        )
    if wanted.learners > 1 and config.adaptation.enabled:
        raise ConfigError("adaptation moves the settings of one learner; set distributed.learners to 1")
    if config.task_options.get("normalise_observations"):
        raise ConfigError(
            "task_options.normalise_observations measures the rows of one process; every actor of navi train apex "
            "would show the network another scale. Leave it out, or use navi train dqn"
        )
    config.replay.require_start(config.dqn.learning_starts, config.decisions_of_an_item, wanted.replay_shards)
    actor_count(config)


def train_apex(
    config: TrainConfig,
    run: RunDirectory | None,
    cluster: Callable[[TrainConfig, Workers], Cluster],
    *,
    spaces: Spaces | None,
    shape: tuple[int, ...],
    workers: Workers = ALONE,
    stop: Callable[[], bool] | None = None,
    events: EventBus | None = None,
    fresh: bool = False,
    initial: Path | None = None,
    log: MetricLog | None = None,
    corpus: dict[str, Any] | None = None,
) -> TrainResult:
    """Train a distributed DQN (Ape-X) on `total_steps` decisions or until stopped; resumes the last good checkpoint.

    Args:
        config: The run's configuration, of algorithm dqn.
        run: Open run directory; None in all learners but the first.
        cluster: Makes the cluster of actors and shards.
        spaces: Spaces of the task; None for flight.
        shape: Shape of an observation.
        workers: Learner processes (ranks).
        stop: Polled between updates; SIGTERM and SIGINT also stop a run in the main thread.
        events: Event bus of this process, to which the run publishes.
        fresh: Ignore the checkpoints of the run directory.
        initial: A checkpoint whose weights a new run starts from.
        log: Metric log; by default the run's.
        corpus: `scene_hashes` and `corpus_summary` of the checkpoints, in flight.

    Raises:
        ConfigError: The configuration does not fit a distributed run.
        CheckpointError: A checkpoint does not fit.
        NonFiniteError: NaN or Inf appeared.
        RunError: Actors or shards died too often, or none flies.
    """
    check_apex(config, workers)
    reason = "the learner failed"
    place = cluster(config, workers)
    try:
        result = carry_out(
            lambda rows: _Apex(config, run, place, spaces, shape, rows, workers, corpus or {}, events),
            run,
            log,
            threads=config.threads or 1,
            stop=stop,
            fresh=fresh,
            initial=initial,
        )
        reason = result.reason
        return result
    finally:
        place.close(reason)


@dataclass(frozen=True)
class _Plan:
    """Plan of the learners' next loop iteration, decided by rank 0 and broadcast.

    Attributes:
        decisions: Decisions to train on now.
        items: Items in all shards.
        debt: Decisions per shard that stay counted but not trained on.
        stop: Reason to end the run; empty while it goes on.
    """

    decisions: int
    items: int
    debt: int
    stop: str


class _Apex(RunSession):
    """Training session of one Ape-X learner (one rank of a run).

    Every learner saves its own shards; rank 0 writes the checkpoint. A resumed run first takes the gradient steps that
    are due for counted decisions. Unfinished rollouts are collected again with new restart numbers.
    """

    learner: DQNLearner

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory | None,
        cluster: Cluster,
        spaces: Spaces | None,
        shape: tuple[int, ...],
        log: MetricLog | None,
        workers: Workers,
        corpus: dict[str, Any],
        events: EventBus | None = None,
    ) -> None:
        super().__init__(config, run, log, workers, events=events)
        self.policy = build_policy(config.policy, seed=config.seed, spaces=spaces).to(self.device)
        use_precision(self.policy, config)
        shaping = config.shaper.model_copy(update={"loop_coefficient": 0.0})
        # The learner trains the curiosity predictor; the episodic memories belong to the actors.
        self.shaper = RewardShaper(shaping, config.actors, config.policy.width, config.seed, self.device)
        self.cluster = cluster
        cluster.replaced.report = lambda cause: self.events.publish(
            PartReplaced(self.events.subject, self.steps, cause)
        )
        self.replay = ShardedReplay(config, cluster.ports, workers, cluster.prefetch, self._lost, self.device)
        self.learner = DQNLearner(self.policy, self.shaper, config, self.device, workers, self.replay)
        pictures = spaces is not None and bool(spaces.shape)
        self._codec = ObservationCodec(shape, torch.uint8 if pictures else torch.float32, config.storage)
        self.totals, self.watch = RunCounters(), RunWatch(config, self.events)
        self.scene_hashes, self.corpus_summary = corpus.get("scene_hashes", {}), corpus.get("corpus_summary", {})
        self._steps = 0
        self._version = 0
        """Version number of the weights published last."""
        self._start = 0
        """Number of times the run was resumed."""
        self._debt, self._behind = 0, False
        self._reported_at, self._reported_steps = time.monotonic(), 0
        self._chunk = config.dqn.rollout * config.actors
        self._last: UpdateStats | None = None

    @property
    def steps(self) -> int:
        """Number of decisions trained on."""
        return self._steps

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Restore learner, counters and this learner's replay shards from a checkpoint."""
        extra, apex = checkpoint.extra, checkpoint.extra["apex"]
        self.learner.load_state_dict(checkpoint.normalisers)
        self.shaper.load_state_dict(checkpoint.rnd_state or {})
        self.watch.load_state_dict(extra["watch"])
        self.totals.load_state_dict(extra["ledger"])
        self._version, self._start = int(apex["version"]), int(apex["start"]) + 1
        self._steps = checkpoint.step_id
        added = {int(number): int(count) for number, count in apex["shards"].items()}
        for port in self.replay.ports:
            port.load(str(path.parent), path.name, added.get(port.number, 0))

    def ready(self, checkpoint: Checkpoint | None, *, resumed: bool) -> None:  # noqa: ARG002 (same for all runs)
        """Publish the initial weights and start the actors."""
        self.learner.read_as(self._codec)
        self._publish()
        self.cluster.start(self._start)

    def save(self) -> None:
        """Save a checkpoint, and a snapshot of every replay shard beside it."""
        mine = None if self.run is None else str(checkpoint_path(self.run.checkpoints, self.steps))
        path = Path(self.workers.share(mine) or "")
        kept = self.workers.gather({port.number: self.replay.save(port, path) for port in self.replay.ports})
        self.counters.saved_at = self.steps
        self.counters.episodes = self.totals.episodes
        shards = {number: added for part in kept for number, added in part.items()}
        self.keep(
            path,
            parent=self.parent,
            rnd=self.shaper.state_dict(),
            normalisers=self.learner.state_dict(),
            extra={
                "apex": {"version": self._version, "start": self._start, "shards": shards},
                "ledger": self.totals.state_dict(),
                "watch": self.watch.state_dict(),
            },
        )

    def run_until(self, stop: StopFlag) -> str:
        """Run the training loop until the run ends; return the reason."""
        if self.watch.stopped is not None:
            return f"early_stopping: {self.watch.stopped.reason}"
        reason, total = "", self.config.total_steps
        while not reason:
            if total is not None and self.steps >= total:
                return "total_steps"
            self.cluster.drive(self._behind)
            plan = self._agree(stop)
            if plan.stop:
                return plan.stop
            self._debt, self.replay.length = plan.debt, plan.items
            self._behind = plan.debt > 0 and plan.decisions > 0
            if not plan.decisions:
                self.cluster.wait()
                continue
            reason = self._learn(plan.decisions)
        return reason

    def _agree(self, stop: StopFlag) -> _Plan:
        """Poll the replay shards' statuses; rank 0 plans the next step and broadcasts it to all learners."""
        read = ((port.number, self.replay.status(port, self._debt)) for port in self.replay.ports)
        for part in self.workers.gather([(number, status) for number, status in read if status is not None]):
            for number, added, before, after in self.totals.add_statuses(part):
                grown = ReplayUpdate(self.events.subject, self.steps, number, "added", added, before, after)
                self.events.publish(grown)
        # Broadcast as plain values, without a class of our own.
        return _Plan(*self.workers.share(tuple(vars(self._plan(stop)).values())))

    def _plan(self, stop: StopFlag) -> _Plan:
        if stop():
            return _Plan(0, 0, 0, stop.signal_name or "stopped")
        pending = self.totals.decisions - self.steps
        # A learner with empty shards cannot contribute to a minibatch.
        ready = self.totals.least_filled(self.workers.size) > 0
        decisions = min(pending, self._chunk) if ready else 0
        debt = -(-(pending - decisions) // self.config.distributed.replay_shards)
        return _Plan(decisions, self.totals.items, debt, "")

    def _learn(self, decisions: int) -> str:
        """Train on new decisions: gradient steps, weight sync, checkpoint; return the reason if the run ends, or ''."""
        began, before = self.steps, self.learner.gradient_steps
        with self.naming_checkpoint():
            update = self.learner.learn(decisions, index=self.counters.updates, steps=began)
        self._steps += decisions
        self.counters.updates += 1
        interval = self.config.distributed.param_sync_interval
        if before // interval != self.learner.gradient_steps // interval:
            self._publish()
        self.totals.throughput["learner_updates"] = self.learner.gradient_steps
        reason = self._watch(update) if self.workers.first else ""
        if self.workers.first and time.monotonic() - self._reported_at >= _SECONDS_BETWEEN_ROWS:
            self._report(update)
        if began // self.config.checkpoint_every != self.steps // self.config.checkpoint_every:
            self.save()
        self._last = update
        return str(self.workers.share(reason))

    def _watch(self, update: UpdateStats) -> str:
        for reward, decisions in self.totals.rewards():
            self._count_reward(reward, decisions)
            self.events.publish(RolloutCollected(self.events.subject, self.steps, decisions, reward))
        seen = update.metrics | {"episode_return": self.totals.recent_mean}
        decision = self.watch.after(self.steps, seen, self.learner, self.totals.population)
        update.metrics |= {name: seen[name] for name in ("stop_cost", "patience_left") if name in seen}
        return f"early_stopping: {decision.reason}" if decision is not None and decision.should_stop else ""

    def _count_reward(self, reward: float, decisions: int) -> None:
        """Update the reward's exponential moving average, as if all rows had made these decisions with one reward."""
        counters, alpha = self.counters, self.config.rule.reward_ema_alpha
        kept = (1.0 - alpha) ** (decisions / self.config.actors)
        first = counters.decisions_seen == 0
        counters.reward_ema = reward if first else kept * counters.reward_ema + (1.0 - kept) * reward
        counters.decisions_seen += decisions

    def _publish(self) -> None:
        self._version += 1
        weights = learned_weights(self.policy, self.shaper)
        published = Parameters.of(
            weights, version=self._version, step=self.learner.gradient_steps, decisions=self.steps
        )
        self.totals.published(self._version)
        self.cluster.publish(published)
        sync = (self.workers.rank, published.step, published.checksum, published.version - 1, published.version)
        self.events.publish(ParameterSync(self.events.subject, self.steps, *sync))

    def _lost(self, port: ShardPort) -> None:
        self.cluster.replaced.count("shard", port.number, "it was lost")

    def _report(self, update: UpdateStats) -> None:
        moment = time.monotonic()
        self.counters.seconds += moment - self._reported_at
        rate = (self.steps - self._reported_steps) / max(moment - self._reported_at, 1e-9)
        self._reported_steps, self._reported_at = self.steps, moment
        replaced = self.cluster.replaced
        metrics = update.metrics | self.totals.figures()
        metrics |= {
            "reward_ema": self.counters.reward_ema,
            "sps": rate,
            "model_version": float(self._version),
            "actors_replaced": float(replaced.actors),
            "shards_replaced": float(replaced.shards),
        }
        self.counters.last = metrics
        self.note(metrics, {"update": update.timer})
        self.announce(self.config.total_steps, metrics, {"update": update.timer})

    def finish(self, reason: str, resumed_from: int | None) -> TrainResult:
        """Report the last metrics, save the final checkpoint, and return the result."""
        self.counters.episodes = self.totals.episodes
        if self.counters.saved_at != self.steps:
            self.save()
        # A second row of the same step would have a speed of 0.
        if self.workers.first and self._last is not None and self._reported_steps != self.steps:
            self._report(self._last)
        return super().finish(reason, resumed_from)
