"""The one run loop: collect → shape → update → record → checkpoint.

Rows are flushed to the outbox before anything that builds on them is kept, so a killed run that
resumes from a checkpoint never lacks a row: the rows after the checkpoint are written again under
the same natural keys. On CPU a resumed run continues bit for bit as if it had never stopped,
because the checkpoint holds everything the next rollout depends on.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from navi_core.config import TrainConfig
from navi_core.errors import CheckpointError, ConfigError
from navi_core.learn.collector import Collector, Environment, RolloutStats
from navi_core.learn.ppo import UpdateStats
from navi_core.learn.progress import Progress
from navi_core.learn.registry import build_learner
from navi_core.learn.resume import checkpoint_path, checkpoints_in, last_good_checkpoint, prune_checkpoints
from navi_core.learn.run_record import RunRecord, now, run_device
from navi_core.learn.signals import StopFlag
from navi_core.learn.threads import thread_count
from navi_core.learn.vocabulary import tell_changed_ids
from navi_core.models import load_checkpoint, save_checkpoint
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import MetricLog, RunDirectory

if TYPE_CHECKING:
    from navi_core.world import Field

__all__ = ["TrainResult", "train"]

_LOG = logging.getLogger("navi.learn")


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        checkpoint: The last checkpoint.
        run_id: The run.
        steps: Decisions summed over rows.
        updates: Updates made.
        episodes: Episodes that ended.
        reward_ema: Smoothed shaped reward per decision; NaN before the first update.
        wall_time_hours: Wall time of the run over all its starts [h].
        reason: `total_steps`, `stopped`, or the name of the signal.
        resumed_from: Steps of the checkpoint this start began with; None for a new run.
        initial: Checkpoint whose weights the run began with at step 0, also after a resume.
        metrics: Metrics of the last update of this start; empty if there was none.
    """

    checkpoint: Path
    run_id: str
    steps: int
    updates: int
    episodes: int
    reward_ema: float
    wall_time_hours: float
    reason: str
    resumed_from: int | None
    initial: str | None
    metrics: dict[str, float]


@dataclass
class _Counters:
    updates: int = 0
    episodes: int = 0
    reward_ema: float = math.nan  # 0 would beat every trained version whose reward is negative
    decisions_seen: int = 0
    seconds: float = 0.0
    started_at: str = ""
    saved_at: int = -1
    last: dict[str, float] = field(default_factory=dict)


def train(
    config: TrainConfig,
    run: RunDirectory,
    *,
    field: Field | None = None,
    env: Environment | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
    fresh: bool = False,
    initial: Path | None = None,
    log: MetricLog | None = None,
) -> TrainResult:
    """Train until `total_steps`, or until stopped, resuming from the run's last good checkpoint.

    Args:
        config: The run's configuration.
        run: Its open directory.
        field: Scenes to fly in; a `NavigationEnv` is made over them.
        env: An environment instead of a field (reference tasks).
        stop: Asked before every decision; also SIGTERM and SIGINT stop a run in the main thread. A stopped
            run drops the rollout it is in and keeps a checkpoint of the state before it.
        progress: Called after every update.
        fresh: Ignore the checkpoints of the run directory.
        initial: A checkpoint whose weights a new run starts from; a resumed run ignores it.
        log: Where rows go; by default the run's metric log over the outbox of `$NAVI_HOME`.

    Raises:
        ConfigError: Neither or both of `field` and `env` are given.
        CheckpointError: A checkpoint is of another encoder, core or number of rows.
        NonFiniteError: NaN or Inf appeared; the last good checkpoint is kept.
        RecordError: Rows could not be made durable.
    """
    if (field is None) == (env is None):
        raise ConfigError("train needs either field= (a world.Field over the training scenes) or env=")
    if config.algorithm == "bc":
        raise ConfigError(
            "algorithm bc learns from demonstrations; use `navi bc --demos DIR`, or navi_core.learn.clone"
        )
    device = run_device(config)
    if field is not None:
        from navi_core.world import NavigationEnv

        env = NavigationEnv(field, config.actors, config.env, config.seed)
    assert env is not None
    # After the environment: the ray kernels' first call starts their pool in the same OpenMP runtime and thereby
    # gives torch every core. Sums over a batch round differently with another number of threads.
    torch.set_num_threads(thread_count(config))
    owned = log is None
    log = log if log is not None else run.metric_log()
    try:
        trainer = _Trainer(config, run, env, log, device)
        with StopFlag(stop) as flag:
            resumed_from = trainer.begin(fresh=fresh, initial=initial)
            reason = trainer.run_until(flag, progress)
            return trainer.finish(reason, resumed_from)
    finally:
        if owned:
            log.close()


class _Trainer:
    """The parts of one run and what they count."""

    def __init__(
        self, config: TrainConfig, run: RunDirectory, env: Environment, log: MetricLog, device: torch.device
    ) -> None:
        self.config, self.run, self.log, self.device = config, run, log, device
        self.record = RunRecord(config, run, log, device, "rl")
        self.policy = build_policy(config.policy, seed=config.seed).to(device)
        self.shaper = RewardShaper(config.shaper, env.num_envs, config.policy.width, config.seed, device)
        self.learner = build_learner(self.policy, self.shaper, config, device)
        self.collector = Collector(env, self.policy, self.shaper, seed=config.seed, device=device)
        self.counters = _Counters(started_at=now())
        self.parent: str | None = None
        self.initial: str | None = None
        self.scene_hashes = {scene.name: scene.content_hash() for scene in _scenes(env)}
        self.corpus_summary: dict[str, Any] = {
            "scenes": len(self.scene_hashes),
            "names": sorted(self.scene_hashes),
            # Evaluation must show the policy the ids it was trained on.
            "semantic_vocabulary": dict(getattr(getattr(env, "field", None), "vocabulary", {})),
        }

    @property
    def steps(self) -> int:
        """Decisions summed over rows."""
        return self.collector.decisions * self.collector.rows

    def begin(self, *, fresh: bool, initial: Path | None) -> int | None:
        """Take up the run's last checkpoint, or start; return the steps it was resumed from."""
        names: dict[str, str] = {"expect_encoder": self.config.policy.encoder, "expect_core": self.config.policy.core}
        folder = self.run.checkpoints
        if fresh:
            for path in checkpoints_in(folder):
                path.unlink()
        found = None if fresh else last_good_checkpoint(folder, **names)
        if found is not None:
            path, checkpoint = found
            self._restore(checkpoint)
            self.parent = str(path)
            _LOG.info("run %s resumes from step %d", self.run.run_id, self.steps)
        elif initial is not None:
            self._take_weights(initial, names)
            self.parent = self.initial = str(initial)
            _LOG.info("run %s starts from the weights of %s", self.run.run_id, initial)
        self._record_run("running")
        return self.steps if found is not None else None

    def _take_weights(self, initial: Path, names: dict[str, str]) -> None:
        try:
            checkpoint = load_checkpoint(initial, **names)
            self.policy.load_state_dict(checkpoint.policy_state)
            if checkpoint.training_source != "bc":
                # The critic's predictions mean something only in the units they were learned in; a clone has none.
                self.learner.load_state_dict(checkpoint.normalisers)
            before = checkpoint.corpus_summary.get("semantic_vocabulary") or {}
            told = tell_changed_ids(before, self.corpus_summary["semantic_vocabulary"], str(initial))
            if told is not None:
                _LOG.warning("%s", told)
        except (CheckpointError, RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"the run cannot start from {initial}: {error}; begin with new weights (--init none) or another version"
            ) from None

    def run_until(self, stop: StopFlag, progress: Callable[[Progress], None] | None) -> str:
        """Make updates until the run ends; return why it ended."""
        ppo, total = self.config.ppo, self.config.total_steps
        rollout = self.collector.new_rollout(ppo.rollout, ppo.bptt)
        while total is None or self.steps < total:
            if stop():
                return stop.signal_name or "stopped"
            began = self.steps
            # A stop drops the rollout it falls into; this is where the run stood before it.
            before = copy.deepcopy(self.collector.state_dict())
            stats = self.collector.collect(rollout, stop)
            if stats is None:
                self.collector.load_state_dict(before)
                return stop.signal_name or "stopped"
            update = self.learner.update(rollout, index=self.counters.updates, steps=began)
            metrics = self._count(stats, update)
            self._record(metrics, stats, update)
            if began // self.config.checkpoint_every != self.steps // self.config.checkpoint_every:
                self._save()
            if progress is not None:
                progress(Progress(self.steps, total, self.counters.updates, metrics))
        return "total_steps"

    def finish(self, reason: str, resumed_from: int | None) -> TrainResult:
        """Keep the final state and say how the run ended."""
        path = checkpoint_path(self.run.checkpoints, self.steps)
        if self.counters.saved_at != self.steps:
            self._save()
        self._record_run("finished" if reason == "total_steps" else "stopped", reason)
        self.log.flush()
        counters = self.counters
        return TrainResult(
            checkpoint=path,
            run_id=self.run.run_id,
            steps=self.steps,
            updates=counters.updates,
            episodes=counters.episodes,
            reward_ema=counters.reward_ema,
            wall_time_hours=counters.seconds / 3600.0,
            reason=reason,
            resumed_from=resumed_from,
            initial=self.initial,
            metrics=counters.last,
        )

    def _count(self, stats: RolloutStats, update: UpdateStats) -> dict[str, float]:
        counters, alpha = self.counters, self.config.ppo.reward_ema_alpha
        for reward in stats.rewards:
            # The first decision sets the average, so that it does not crawl up from an arbitrary 0.
            first = counters.decisions_seen == 0
            counters.reward_ema = reward if first else counters.reward_ema + alpha * (reward - counters.reward_ema)
            counters.decisions_seen += 1
        counters.updates += 1
        counters.episodes += stats.episodes
        seconds = stats.seconds + update.seconds
        counters.seconds += seconds
        waited = stats.timer.totals().get("env", 0.0)
        metrics = {"reward_ema": counters.reward_ema, "reward_mean": sum(stats.rewards) / len(stats.rewards)}
        metrics |= update.metrics | stats.means
        if stats.episodes:
            metrics |= {"episode_return": stats.episode_return, "episode_length": stats.episode_length}
        metrics |= {
            "episodes": float(counters.episodes),
            "beta": self.shaper.rnd_coefficient(self.steps),
            "sps": len(stats.rewards) * self.collector.rows / seconds,
            "env_ms": stats.timer.means().get("env", 0.0),
            "ppo_update_ms": 1e3 * update.seconds,
            # Share of the rollout in which the policy was not waiting for the environment.
            "zero_wait_ratio": max(0.0, 1.0 - waited / stats.seconds),
        }
        counters.last = metrics
        return metrics

    def _record(self, metrics: dict[str, float], stats: RolloutStats, update: UpdateStats) -> None:
        self.log.scalars(self.steps, metrics)
        self.record.stages(self.steps, {"rollout": stats.timer, "update": update.timer})
        self.log.flush()

    def _record_run(self, status: str, reason: str | None = None) -> None:
        counters = self.counters
        self.record.status(
            status,
            step=self.steps,
            reward_ema=counters.reward_ema,
            seconds=counters.seconds,
            started_at=counters.started_at,
            reason=reason,
        )

    def _save(self) -> None:
        path = checkpoint_path(self.run.checkpoints, self.steps)
        counters, flight = self.counters, self.collector.state_dict()
        save_checkpoint(
            path,
            policy=self.policy,
            optimizer=self.learner.optimizer,
            config=self.config,
            step_id=self.steps,
            episode_count=counters.episodes,
            reward_ema=counters.reward_ema,
            run_id=self.run.run_id,
            parent_checkpoint=self.parent,
            training_source="rl",
            wall_time_hours=counters.seconds / 3600.0,
            rnd=flight.pop("shaper"),
            normalisers=self.learner.state_dict(),
            scene_hashes=self.scene_hashes,
            corpus_summary=self.corpus_summary,
            extra={
                "collector": flight,
                "initial": self.initial,
                "counters": {
                    "updates": counters.updates,
                    "decisions_seen": counters.decisions_seen,
                    "seconds": counters.seconds,
                    "started_at": counters.started_at,
                },
            },
        )
        counters.saved_at = self.steps
        parent, self.parent = self.parent, str(path)
        prune_checkpoints(self.run.checkpoints, self.config.keep_checkpoints)
        self.record.checkpoint(
            path,
            step=self.steps,
            reward_ema=counters.reward_ema,
            episodes=counters.episodes,
            parent=parent,
            seconds=counters.seconds,
        )

    def _restore(self, checkpoint: Any) -> None:
        before, now = checkpoint.scene_hashes, self.scene_hashes
        if before != now:
            changed = sorted(name for name in before | now if before.get(name) != now.get(name))
            # The rows stand at poses of those scenes, and the network knows their semantic ids.
            raise CheckpointError(
                f"the scenes have changed since step {checkpoint.step_id} ({', '.join(changed[:5])}); start again with "
                "--fresh, or go on from its weights in a new run (another --partition)"
            )
        try:
            extra = checkpoint.extra
            self.policy.load_state_dict(checkpoint.policy_state)
            self.learner.optimizer.load_state_dict(checkpoint.optimizer_state)
            self.learner.load_state_dict(checkpoint.normalisers)
            self.collector.load_state_dict(extra["collector"] | {"shaper": checkpoint.rnd_state or {}})
            self.initial = extra["initial"]
            counts = extra["counters"]
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint at step {checkpoint.step_id} does not fit this run ({error}); start with --fresh"
            ) from error
        self.counters = _Counters(
            updates=int(counts["updates"]),
            episodes=checkpoint.episode_count,
            reward_ema=checkpoint.reward_ema,
            decisions_seen=int(counts["decisions_seen"]),
            seconds=float(counts["seconds"]),
            started_at=str(counts["started_at"]),
            saved_at=self.steps,
        )


def _scenes(env: Environment) -> list[Any]:
    field = getattr(env, "field", None)
    return list(field.scenes) if field is not None else []
