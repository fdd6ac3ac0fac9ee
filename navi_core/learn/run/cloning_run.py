"""Behaviour-cloning run: epochs over demonstrations with validation, records, checkpoints and resuming.

It shares the run directory, lock, outbox, checkpoints and signal handling with training runs. On CPU a killed run
resumes bit for bit, because an epoch is a function of the weights before it, the seed and its number.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from navi_core.config import TrainConfig
from navi_core.demos import Dataset
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.cloning import CloningLearner, DemoFeed, EpochInterrupted, demo_places, require_alike
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.algorithms.registry import build_learner
from navi_core.learn.rollout.execution import use_precision
from navi_core.learn.run.checkpoints import checkpoint_path
from navi_core.learn.run.process import StopFlag, choose_threads
from navi_core.learn.run.records import Counters, TrainResult, now
from navi_core.learn.run.session import RunSession, carry_out
from navi_core.models import Checkpoint, add_scenes
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import MetricLog, RunDirectory
from navi_core.record.events import EventBus

BEST = "best.pt"
"""File name of the checkpoint with the least held-out loss, which is the run's result."""


@dataclass
class CloningCounters(Counters):
    """Counters of a cloning run, with the best held-out loss; updates are epochs."""

    best: float = math.inf
    """Least held-out loss."""
    best_epoch: int = 0

    def extra(self) -> dict[str, Any]:
        """Return the counters that a checkpoint stores in its `extra` field."""
        names = ("best", "best_epoch", "seconds", "started_at")
        return {"epochs": self.updates} | {name: getattr(self, name) for name in names} | {"last": dict(self.last)}

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Restore the counters of a cloning run from its checkpoint.

        Raises:
            KeyError, ValueError, TypeError: The checkpoint has none.
        """
        kept = checkpoint.extra["counters"]
        return cls(
            updates=int(kept["epochs"]),
            best=float(kept["best"]),
            best_epoch=int(kept["best_epoch"]),
            seconds=float(kept["seconds"]),
            started_at=str(kept["started_at"]),
            saved_at=checkpoint.step_id,
            last=dict(kept["last"]),
        )


def clone(
    config: TrainConfig,
    run: RunDirectory,
    data: Dataset,
    *,
    stop: Callable[[], bool] | None = None,
    events: EventBus | None = None,
    initial: Path | None = None,
    log: MetricLog | None = None,
) -> TrainResult:
    """Run behaviour cloning of a dataset for `config.bc.epochs`, resuming from the run's last good checkpoint.

    Args:
        config: The run's configuration; `algorithm` is "bc" and `bc.data` the dataset's content hash.
        run: The run's open directory.
        data: The demonstrations.
        stop: Called before every minibatch; SIGTERM, SIGINT and SIGHUP also stop a run in the main thread. The
            unfinished epoch is dropped.
        events: Event bus to which the run publishes.
        initial: A checkpoint whose weights a new run starts from; a resumed run ignores it.
        log: Metric log; by default the run's, which writes to the outbox of `$NAVI_HOME`.

    Returns:
        The result; `checkpoint` is that of the best epoch on the held-out episodes, `steps` the decisions learned from,
        `updates` the epochs, `reward_ema` NaN.

    Raises:
        ConfigError: The configuration is another learner's, or does not fit the data.
        CheckpointError: A checkpoint is of another encoder or core.
        DemoError: Nothing can be held out.
        NonFiniteError: NaN or Inf appeared; the last good checkpoint is kept.
        RecordError: Rows could not be made durable.
    """
    _require_fit(config, data)
    return carry_out(lambda rows: _Cloner(config, run, data, rows, events), run, log, stop=stop, initial=initial)


def _require_fit(config: TrainConfig, data: Dataset) -> None:
    if config.algorithm != "bc":
        raise ConfigError(f"clone needs algorithm bc, not {config.algorithm!r}")
    d = config.env.dynamics
    rows = (
        ("bc.data", config.bc.data, data.content_hash),
        ("env.azimuth_bins", config.env.azimuth_bins, data.azimuth_bins),
        ("env.elevation_bins", config.env.elevation_bins, data.elevation_bins),
        ("env.max_distance", config.env.max_distance, data.max_distance),
        ("env.dynamics: decisions per second", d.decision_hz, data.decision_hz),
        ("env.dynamics: speed limits", (*d.max_speed, d.max_yaw_rate), data.limits),
    )
    require_alike(rows, "demonstrations", "set it alike")


def _learned(checkpoint: Checkpoint | None) -> frozenset[str]:
    """Return the training scenes of a behaviour-cloning checkpoint; empty for a checkpoint of another learner."""
    summary = {} if checkpoint is None else checkpoint.corpus_summary
    if "held_out" not in summary:
        return frozenset()
    return frozenset(summary.get("learned", set(summary.get("names", ())) - set(summary["held_out"])))


class _Cloner(RunSession):
    """Session of a behaviour-cloning run."""

    counters: CloningCounters
    learner: CloningLearner

    def __init__(
        self, config: TrainConfig, run: RunDirectory, data: Dataset, log: MetricLog | None, events: EventBus | None
    ) -> None:
        super().__init__(config, run, log, source="bc", events=events)
        self.policy = build_policy(config.policy, seed=config.seed).to(self.device)
        use_precision(self.policy, config)
        # Fresh curiosity for the reinforcement learner that takes over; its memory is empty and stays out.
        shaper = RewardShaper(config.shaper, 1, config.policy.width, config.seed, self.device)
        self.curiosity = {key: value for key, value in shaper.state_dict().items() if key != "memory"}
        learner = build_learner(self.policy, shaper, config, self.device)
        assert isinstance(learner, CloningLearner)
        self.learner = learner
        bc = config.bc
        obs = torch.zeros(bc.sequences, 3, data.azimuth_bins, data.elevation_bins, device=self.device)
        torch.set_num_threads(choose_threads(config, self.policy, obs, run.path).update)
        self.data = data
        self.places = None
        if config.policy.place_memory:
            self.places = demo_places(data, config.env.dynamics, config.policy.map_cell)
        self.counters = CloningCounters(started_at=now())
        self.best = run.checkpoints / BEST
        scenes = sorted({episode.scene for episode in data.episodes})
        self.scene_hashes = data.scene_hashes
        self.corpus_summary = {
            "scenes": len(scenes),
            "names": scenes,
            "semantic_vocabulary": dict(data.vocabulary),
            "demonstrations": data.content_hash,
        }
        add_scenes(self.corpus_summary, (*data.scene_hashes.values(), *data.sources))

    @property
    def steps(self) -> int:
        """Training decisions so far, each counted once per epoch."""
        return self.counters.updates * self.feed.steps

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:  # noqa: ARG002 (nothing lies beside it)
        """Restore the critic's normalisation state from a checkpoint."""
        self.learner.load_state_dict(checkpoint.normalisers)

    def ready(self, checkpoint: Checkpoint | None, *, resumed: bool) -> None:
        """Split the scenes into training and held-out ones, unseen scenes held out first, and record both lists."""
        bc, learned = self.config.bc, _learned(checkpoint)
        self.feed = DemoFeed(
            self.data, seed=self.config.seed, validation=bc.validation, lanes=bc.sequences, bptt=bc.bptt,
            places=self.places, learned=learned,
        )  # fmt: skip
        self.counters.episodes = len(self.feed.training)
        self.corpus_summary["held_out"] = sorted({episode.scene for episode in self.feed.held_out})
        self.corpus_summary["learned"] = sorted(learned | {episode.scene for episode in self.feed.training})
        if not resumed:
            # Demonstrations have no auxiliary input, so its weights are not learned; in flight it is not zero, and
            # drawn weights would lead the clone astray. Reinforcement learning gives them a meaning later.
            self.policy.forget_aux()

    def run_until(self, stop: StopFlag) -> str:
        """Train epochs until the run ends; return the reason of the end."""
        total = self.config.bc.epochs
        while self.counters.updates < total:
            before = copy.deepcopy((self.policy.state_dict(), self.learner.optimizer.state_dict()))
            chunk, whole = self.config.bc.sequences * self.config.bc.bptt, total * self.feed.steps
            ask = self.counted(stop, chunk, whole, self.steps + self.feed.steps)
            try:
                update = self.learner.update(self.feed, index=self.counters.updates, steps=self.steps, stop=ask)
            except EpochInterrupted:
                self.policy.load_state_dict(before[0])
                self.learner.optimizer.load_state_dict(before[1])
                return stop.signal_name or "stopped"
            began = self.steps
            metrics = self._count(update)
            self.note(metrics, {"update": update.timer})
            self.announce(whole, metrics, {})
            every = self.config.checkpoint_every
            if began // every != self.steps // every or self.counters.best_epoch == self.counters.updates:
                self.save()
        return "epochs"

    def finish(self, reason: str, resumed_from: int | None) -> TrainResult:
        """Save the final state and return the result, with the best epoch's checkpoint."""
        result = super().finish(reason, resumed_from)
        return replace(result, checkpoint=self.best) if self.best.exists() else result

    def _count(self, update: UpdateStats) -> dict[str, float]:
        counters = self.counters
        with update.timer("validation"):
            held_out = self.learner.validate(self.feed)
        counters.updates += 1
        counters.seconds += update.seconds + update.timer.totals()["validation"]
        if held_out < counters.best:
            counters.best, counters.best_epoch = held_out, counters.updates
        metrics = update.metrics | {
            "validation_nll": held_out,
            "best_validation_nll": counters.best,
            "best_epoch": float(counters.best_epoch),
            "epoch": float(counters.updates),
            "sps": self.feed.steps / update.seconds,
        }
        counters.last = metrics
        return metrics

    def save(self) -> None:
        """Write the checkpoint of the current epoch, and a copy as the best one if it is."""
        assert self.run is not None
        best = self.counters.best_epoch == self.counters.updates
        # The best one is written first: a kill in between is mended by the epoch that is then made again.
        self.keep(
            checkpoint_path(self.run.checkpoints, self.steps),
            parent=self.initial,
            rnd=self.curiosity,
            normalisers=self.learner.state_dict(),
            extra={},
            copy=self.best if best else None,
        )
        self.counters.saved_at = self.steps
