"""A cloning run: epochs over demonstrations, validated, recorded, resumable.

It is a run like any other: the same directory, lock, outbox, checkpoints and signals. On CPU a killed run that is given
again continues bit for bit, because an epoch is a function of the weights before it, the seed and its number.
"""

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from navi_core.config import TrainConfig
from navi_core.demos import Dataset
from navi_core.errors import CheckpointError, ConfigError
from navi_core.learn.algorithms.cloning import CloningLearner, EpochInterrupted
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.algorithms.registry import build_learner
from navi_core.learn.demonstrations import DemoFeed, demo_places, require_alike
from navi_core.learn.rollout.execution import use_precision
from navi_core.learn.run.checkpoints import checkpoint_path, keep_checkpoint, take_up
from navi_core.learn.run.records import Progress, RunRecord, TrainResult, changed_ids_warning, now, run_device
from navi_core.learn.run.signals import StopFlag
from navi_core.learn.run.threads import choose_threads, torch_threads
from navi_core.models import Checkpoint, CheckpointState, add_scenes, add_scenes_of, load_checkpoint
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import MetricLog, RunDirectory

_LOG = logging.getLogger("navi.learn")

BEST = "best.pt"
"""Checkpoint of the epoch with the least held-out loss, which is the run's result."""


@dataclass
class _Counters:
    epochs: int = 0
    best: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    started_at: str = ""
    saved_at: int = -1
    last: dict[str, float] = field(default_factory=dict)


def clone(
    config: TrainConfig,
    run: RunDirectory,
    data: Dataset,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
    initial: Path | None = None,
    log: MetricLog | None = None,
) -> TrainResult:
    """Clone the teacher of a dataset for `config.bc.epochs`, resuming from the run's last good checkpoint.

    Args:
        config: The run's configuration; `algorithm` is "bc" and `bc.data` the dataset's content hash.
        run: Its open directory.
        data: The demonstrations.
        stop: Called before every minibatch; also SIGTERM, SIGINT and SIGHUP stop a run in the main thread. The epoch it
            falls into is dropped.
        progress: Called after every epoch.
        initial: A checkpoint whose weights a new run starts from; a resumed run ignores it.
        log: Where rows go; by default the run's metric log over the outbox of `$NAVI_HOME`.

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
    if config.early_stopping.enabled:
        # Not refused: settings are often those of the clone and of what learns on from it.
        _LOG.warning("early_stopping does not end cloning: all bc.epochs are made, and the best one is the result")
    owned = log is None
    log = log if log is not None else run.metric_log()
    try:
        # Initial weights round differently with another number of threads.
        with torch_threads(1):
            cloner = _Cloner(config, run, data, log)
            with StopFlag(stop, "a checkpoint is written") as flag:
                resumed_from = cloner.begin(initial)
                reason = cloner.run_until(flag, progress)
                return cloner.finish(reason, resumed_from)
    finally:
        if owned:
            log.close()


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


def _learned(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the scenes that a clone has learned from; those of another learner are not recorded there."""
    summary = checkpoint.corpus_summary
    if "held_out" not in summary:
        return frozenset()
    before = summary.get("learned", set(summary.get("names", ())) - set(summary["held_out"]))
    return frozenset(before)


class _Cloner:
    """Parts and counters of one run."""

    def __init__(self, config: TrainConfig, run: RunDirectory, data: Dataset, log: MetricLog) -> None:
        self.config, self.run, self.log, self.device = config, run, log, run_device(config)
        self.record = RunRecord(config, run, log, self.device, "bc")
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
        self.places = demo_places(data, config.env.dynamics) if config.policy.place_memory else None
        self.feed = self._feed(frozenset())
        self.counters = _Counters(started_at=now())
        self.initial: str | None = None
        scenes = sorted({episode.scene for episode in data.episodes})
        self.scene_hashes, self.vocabulary = data.scene_hashes, dict(data.vocabulary)
        self.corpus_summary = {
            "scenes": len(scenes),
            "names": scenes,
            "semantic_vocabulary": self.vocabulary,
            "demonstrations": data.content_hash,
        }
        add_scenes(self.corpus_summary, data.sources)

    def _feed(self, learned: frozenset[str]) -> DemoFeed:
        bc = self.config.bc
        return DemoFeed(
            self.data, seed=self.config.seed, validation=bc.validation, lanes=bc.sequences, bptt=bc.bptt,
            places=self.places, learned=learned,
        )  # fmt: skip

    def _split(self, learned: frozenset[str]) -> None:
        """Hold scenes out that nothing was learned from before, and note which ones, and which are learned from."""
        self.feed = self._feed(learned)
        self.corpus_summary["held_out"] = sorted({episode.scene for episode in self.feed.held_out})
        self.corpus_summary["learned"] = sorted(learned | {episode.scene for episode in self.feed.training})

    @property
    def steps(self) -> int:
        """Decisions learned from, counted as often as they were."""
        return self.counters.epochs * self.feed.steps

    @property
    def _best(self) -> Path:
        return self.run.checkpoints / BEST

    def begin(self, initial: Path | None) -> int | None:
        """Resume from the run's last checkpoint, or start; return the steps it was resumed from."""
        names: dict[str, str] = {"expect_encoder": self.config.policy.encoder, "expect_core": self.config.policy.core}
        found = take_up(self.run.checkpoints, fresh=False, **names)
        learned: frozenset[str] = frozenset()
        if found is not None:
            checkpoint = load_checkpoint(found, **names)
            self._restore(checkpoint)
            learned = _learned(checkpoint)
            self.record.checkpoint(found, checkpoint)
            _LOG.info("run %s resumes after epoch %d", self.run.run_id, self.counters.epochs)
        elif initial is not None:
            try:
                checkpoint = load_checkpoint(initial, **names)
                self.policy.load_state_dict(checkpoint.policy_state)
                self.learner.begin_from(checkpoint.normalisers)
            except (CheckpointError, RuntimeError, KeyError) as error:
                raise CheckpointError(
                    f"the run cannot start from {initial}: {error}; begin with new weights, or from another version"
                ) from None
            self.initial = str(initial)
            learned = _learned(checkpoint)
            add_scenes_of(self.corpus_summary, checkpoint)
            before = checkpoint.corpus_summary.get("semantic_vocabulary") or {}
            warning = changed_ids_warning(before, self.vocabulary, str(initial))
            if warning is not None:
                _LOG.warning("%s", warning)
            _LOG.info("run %s starts from the weights of %s", self.run.run_id, initial)
        self._split(learned)
        if found is None:
            # Demonstrations have no auxiliary input, so its weights are not learned; in flight it is not zero, and
            # drawn weights would lead the clone astray. Reinforcement learning gives them a meaning later.
            self.policy.forget_aux()
        self._status("running")
        return self.steps if found is not None else None

    def run_until(self, stop: StopFlag, progress: Callable[[Progress], None] | None) -> str:
        """Make epochs until the run ends; return why it ended."""
        total = self.config.bc.epochs
        while self.counters.epochs < total:
            before = copy.deepcopy((self.policy.state_dict(), self.learner.optimizer.state_dict()))
            try:
                update = self.learner.update(self.feed, index=self.counters.epochs, steps=self.steps, stop=stop)
            except EpochInterrupted:
                self.policy.load_state_dict(before[0])
                self.learner.optimizer.load_state_dict(before[1])
                return stop.signal_name or "stopped"
            began = self.steps
            metrics = self._count(update)
            self._note(metrics, update)
            every = self.config.checkpoint_every
            if began // every != self.steps // every or self.counters.best_epoch == self.counters.epochs:
                self._save()
            if progress is not None:
                progress(Progress(self.steps, total * self.feed.steps, self.counters.epochs, metrics))
        return "epochs"

    def finish(self, reason: str, resumed_from: int | None) -> TrainResult:
        """Save the final state and return the result."""
        counters = self.counters
        if counters.saved_at != self.steps:
            self._save()
        self._status("finished" if reason == "epochs" else "stopped", reason)
        self.log.flush()
        return TrainResult(
            checkpoint=self._best if self._best.exists() else checkpoint_path(self.run.checkpoints, self.steps),
            run_id=self.run.run_id,
            steps=self.steps,
            updates=counters.epochs,
            episodes=len(self.feed.training),
            reward_ema=math.nan,
            wall_time_hours=counters.seconds / 3600.0,
            reason=reason,
            resumed_from=resumed_from,
            initial=self.initial,
            metrics=counters.last,
        )

    def _count(self, update: UpdateStats) -> dict[str, float]:
        counters = self.counters
        with update.timer("validation"):
            held_out = self.learner.validate(self.feed)
        counters.epochs += 1
        counters.seconds += update.seconds + update.timer.totals()["validation"]
        if held_out < counters.best:
            counters.best, counters.best_epoch = held_out, counters.epochs
        metrics = update.metrics | {
            "validation_nll": held_out,
            "best_validation_nll": counters.best,
            "best_epoch": float(counters.best_epoch),
            "epoch": float(counters.epochs),
            "sps": self.feed.steps / update.seconds,
        }
        counters.last = metrics
        return metrics

    def _note(self, metrics: dict[str, float], update: UpdateStats) -> None:
        self.log.scalars(self.steps, metrics)
        self.record.stages(self.steps, {"update": update.timer})
        self.log.flush()

    def _status(self, status: str, reason: str | None = None) -> None:
        counters = self.counters
        self.record.status(
            status,
            step=self.steps,
            reward_ema=math.nan,
            seconds=counters.seconds,
            started_at=counters.started_at,
            reason=reason,
        )

    def _save(self) -> None:
        path, best = checkpoint_path(self.run.checkpoints, self.steps), self.counters.best_epoch == self.counters.epochs
        counters = self.counters
        state = CheckpointState(
            policy=self.policy,
            optimizer=self.learner.optimizer,
            config=self.config,
            run_id=self.run.run_id,
            step_id=self.steps,
            episode_count=len(self.feed.training),
            reward_ema=math.nan,
            wall_time_hours=counters.seconds / 3600.0,
            parent_checkpoint=self.initial,
            training_source="bc",
            rnd=self.curiosity,
            normalisers=self.learner.state_dict(),
            scene_hashes=self.scene_hashes,
            corpus_summary=self.corpus_summary,
            extra={
                "initial": self.initial,
                "counters": {
                    "epochs": counters.epochs,
                    "best": counters.best,
                    "best_epoch": counters.best_epoch,
                    "seconds": counters.seconds,
                    "started_at": counters.started_at,
                    "last": dict(counters.last),
                },
            },
        )
        # The best one is written first: a kill in between is mended by the epoch that is then made again.
        keep_checkpoint(path, state, run=self.run, record=self.record, copy=self._best if best else None)
        counters.saved_at = self.steps

    def _restore(self, checkpoint: Checkpoint) -> None:
        try:
            self.policy.load_state_dict(checkpoint.policy_state)
            self.learner.optimizer.load_state_dict(checkpoint.optimizer_state or {})
            self.learner.load_state_dict(checkpoint.normalisers)
            self.initial = checkpoint.extra["initial"]
            add_scenes_of(self.corpus_summary, checkpoint)
            counts = checkpoint.extra["counters"]
            self.counters = _Counters(
                epochs=int(counts["epochs"]),
                best=float(counts["best"]),
                best_epoch=int(counts["best_epoch"]),
                seconds=float(counts["seconds"]),
                started_at=str(counts["started_at"]),
                last=dict(counts["last"]),
            )
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint at step {checkpoint.step_id} does not fit this run ({error}); start with --fresh"
            ) from error
        self.counters.saved_at = self.steps
