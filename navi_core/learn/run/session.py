"""Run session: shared skeleton of training, cloning and Ape-X runs (resume, records, checkpoints, result).

Rows are flushed to the outbox before the checkpoint that follows them, so a killed run that resumes never lacks a row:
the rows after the checkpoint are written again under the same natural keys.
"""

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from navi_core.config import TrainConfig
from navi_core.errors import CheckpointError, NonFiniteError
from navi_core.learn.algorithms.registry import Learner, TakesUnits
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.run.checkpoints import check_scenes, keep_checkpoint, mismatch, take_up
from navi_core.learn.run.process import StopFlag, torch_threads
from navi_core.learn.run.records import (
    Counters,
    RunRecord,
    TrainResult,
    changed_ids_warning,
    now,
    run_device,
    void_warning,
)
from navi_core.models import Checkpoint, add_scenes_of, load_checkpoint
from navi_core.policy import NavigationPolicy
from navi_core.record import MetricLog, RunDirectory, StageTimer
from navi_core.record.events import CheckpointSaved, EventBus, UpdateMade

_LOG = logging.getLogger("navi.learn")


class RunSession(ABC):
    """Abstract base of a run: policy, learner, counters and records; a subclass implements the learning loop.

    Args:
        config: The run's configuration.
        run: The run's open directory; None in all processes but the first.
        log: Metric log; None in all processes but the first.
        workers: Processes of the run.
        source: Training source of the checkpoints.
        events: Event bus of the run; a new one where None is given.

    Attributes:
        parent: The last checkpoint.
        initial: The checkpoint whose weights the run began with.
    """

    policy: NavigationPolicy
    learner: Learner
    scene_hashes: dict[str, str]
    """Content hash by scene name."""
    corpus_summary: dict[str, Any]
    """Corpus summary that the checkpoints store."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory | None,
        log: MetricLog | None,
        workers: Workers = ALONE,
        source: Literal["rl", "bc"] = "rl",
        events: EventBus | None = None,
    ) -> None:
        self.config, self.run, self.workers, self.source = config, run, workers, source
        self.device = run_device(config)
        self.record = RunRecord(config, run, log, self.device, source) if run is not None and log is not None else None
        self.events = EventBus() if events is None else events
        self.events.subject = f"rank {workers.rank}" if run is None else run.run_id
        self.counters = Counters(started_at=now())
        self.parent: str | None = None
        self.initial: str | None = None

    @property
    @abstractmethod
    def steps(self) -> int:
        """Decisions learned from so far."""

    @abstractmethod
    def run_until(self, stop: StopFlag) -> str:
        """Run the learning loop until the run ends; return the reason of the end."""

    @abstractmethod
    def save(self) -> None:
        """Write a checkpoint of the run."""

    @abstractmethod
    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Restore the rest of a checkpoint of this run, after policy, optimiser and corpus summary.

        Raises:
            KeyError, RuntimeError, ValueError, TypeError: The checkpoint does not fit.
        """

    def ready(self, checkpoint: Checkpoint | None, *, resumed: bool) -> None:  # noqa: B027 (most runs have nothing to prepare)
        """Hook: prepare whatever depends on the checkpoint that the run resumes or starts from; None without one."""

    def begin(self, *, fresh: bool, initial: Path | None) -> int | None:
        """Resume from the run's last checkpoint, or start a new run; return the checkpoint's decision count, or None.

        Raises:
            CheckpointError: A checkpoint does not fit the run.
        """
        names: dict[str, str] = {"expect_encoder": self.config.policy.encoder, "expect_core": self.config.policy.core}
        # The first process decides for all.
        mine = None if self.run is None else take_up(self.run.checkpoints, fresh=fresh, **names)
        found: Path | None = self.workers.share(mine)
        checkpoint: Checkpoint | None = None
        # Navi draws from generators of its own. Torch's is that of custom parts, such as a network with dropout.
        torch.manual_seed(self.config.seed)
        if found is not None:
            checkpoint = load_checkpoint(found, **names)
            self._resume(checkpoint, found)
            _LOG.info("the run resumes from step %d", checkpoint.step_id)
        elif initial is not None:
            checkpoint = self._take_weights(initial, names)
            _LOG.info("the run starts from the weights of %s", initial)
        self.ready(checkpoint, resumed=found is not None)
        self._record_run("running")
        return None if found is None else self.steps

    def _resume(self, checkpoint: Checkpoint, path: Path) -> None:
        check_scenes(checkpoint, self.scene_hashes)
        try:
            self.policy.load_state_dict(checkpoint.policy_state)
            self.learner.optimizer.load_state_dict(checkpoint.optimizer_state or {})
            self.restore(checkpoint, path)
            if "torch" in checkpoint.rng:
                torch.set_rng_state(checkpoint.rng["torch"])
            self.counters = self.counters.of(checkpoint)
            self.initial = checkpoint.extra["initial"]
            self.parent = str(path)
            add_scenes_of(self.corpus_summary, checkpoint)
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint at step {checkpoint.step_id} does not fit this run ({mismatch(error)}); "
                "start with --fresh"
            ) from error
        if self.record is not None:
            self.record.checkpoint(path, checkpoint)

    def _take_weights(self, initial: Path, names: dict[str, str]) -> Checkpoint:
        try:
            checkpoint = load_checkpoint(initial, **names)
            self.policy.load_state_dict(checkpoint.policy_state)
            add_scenes_of(self.corpus_summary, checkpoint)
            if isinstance(self.learner, TakesUnits):
                # The critic's predictions mean something only in the units they were learned in, however many runs
                # without a critic lie between.
                self.learner.begin_from(checkpoint.normalisers)
        except (CheckpointError, RuntimeError, KeyError) as error:
            raise CheckpointError(
                f"the run cannot start from {initial}: {mismatch(error)}; begin with new weights (--init none) or "
                "another version"
            ) from None
        before = checkpoint.corpus_summary.get("semantic_vocabulary") or {}
        warning = changed_ids_warning(before, self.corpus_summary.get("semantic_vocabulary") or {}, str(initial))
        if warning is not None:
            _LOG.warning("%s", warning)
        self.parent = self.initial = str(initial)
        return checkpoint

    def keep(
        self,
        path: Path,
        *,
        parent: str | None,
        rnd: dict[str, Any],
        normalisers: dict[str, Any],
        extra: dict[str, Any],
        copy: Path | None = None,
    ) -> None:
        """Write a checkpoint file and its database row (rank 0 only).

        Args:
            path: The checkpoint file.
            parent: The checkpoint that training continued from.
            rnd: State of curiosity (RND).
            normalisers: State of the learner.
            extra: Further data.
            copy: Another file with the same content, written first.
        """
        if self.run is None or self.record is None:
            return
        counters = self.counters
        saved = CheckpointSaved(self.events.subject, self.steps, str(path))
        state = Checkpoint.of(
            policy=self.policy,
            optimizer=self.learner.optimizer,
            config=self.config,
            run_id=self.run.run_id,
            step_id=self.steps,
            episode_count=counters.episodes,
            reward_ema=counters.reward_ema,
            wall_time_hours=counters.hours,
            parent_checkpoint=parent,
            training_source=self.source,
            rnd=rnd,
            normalisers=normalisers,
            scene_hashes=self.scene_hashes,
            corpus_summary=self.corpus_summary,
            extra=extra
            | {"initial": self.initial, "counters": counters.extra(), "events": self.record.events.pending(saved)},
        )
        keep_checkpoint(path, state, run=self.run, copy=copy)
        self.record.checkpoint(path, state)
        self.events.publish(saved)
        self.parent = str(path)

    def note(self, metrics: dict[str, float], timers: dict[str, StageTimer]) -> None:
        """Log metrics and stage timings of an update to the run's metric log (rank 0 only)."""
        if self.record is not None:
            self.record.log.scalars(self.steps, metrics)
            self.record.stages(self.steps, timers)
            self.record.log.flush()

    def counted(self, stop: Callable[[], bool], decisions: int, total: int | None, most: int) -> Callable[[], bool]:
        """Return `stop` with the live progress of the bus, if anybody follows it.

        Args:
            stop: Called once for every so many decisions.
            decisions: So many.
            total: Decisions at which the run ends.
            most: Decisions at which this rollout or epoch ends.
        """
        progress, done = self.events.progress, itertools.count(self.steps, decisions)
        if progress is None:
            return stop

        def polled() -> bool:
            progress(min(next(done), most), total)
            return stop()

        return polled

    def announce(self, total: int | None, metrics: dict[str, float], timers: dict[str, StageTimer]) -> None:
        """Publish an update, with the decisions at which the run ends and the time of its stages."""
        if self.events.wanted:
            totals = {phase: timer.totals() for phase, timer in timers.items()}
            stages = {phase: {stage: 1e3 * s for stage, s in x.items()} for phase, x in totals.items()}
            self.events.publish(
                UpdateMade(self.events.subject, self.steps, self.counters.updates, total, metrics, stages)
            )

    @contextmanager
    def naming_checkpoint(self) -> Iterator[None]:
        """Context manager that adds the last good checkpoint to the message of a `NonFiniteError`."""
        try:
            yield
        except NonFiniteError as error:
            kept = f"the last good checkpoint is {self.parent}" if self.parent else "there is no checkpoint yet"
            raise NonFiniteError(error.tensor, f"{error}; {kept}") from None

    def finish(self, reason: str, resumed_from: int | None) -> TrainResult:
        """Save the final state, warn of episodes that leave the scene, and return the result."""
        if self.counters.saved_at != self.steps:
            self.save()
        ended = reason.startswith(("total_steps", "early_stopping", "epochs"))
        self._record_run("finished" if ended else "stopped", reason)
        if self.record is not None:
            self.record.events.write_pending()
            self.record.log.flush()
        counters = self.counters
        warning = void_warning(counters.last, self.config.env)
        if warning is not None and self.record is not None:
            _LOG.warning("%s", warning)
        path, run_id = self.workers.share((self.parent, "" if self.run is None else self.run.run_id))
        return TrainResult(
            checkpoint=Path(path or ""),
            run_id=run_id,
            steps=self.steps,
            updates=counters.updates,
            episodes=counters.episodes,
            reward_ema=counters.reward_ema,
            wall_time_hours=counters.hours,
            reason=reason,
            resumed_from=resumed_from,
            initial=self.initial,
            metrics=counters.last,
        )

    def _record_run(self, status: str, reason: str | None = None) -> None:
        if self.record is not None:
            self.record.status(status, self.steps, self.counters, reason)
            self.record.run.write_status(status, reason=reason, parent=self.initial, scenes=list(self.scene_hashes))


def carry_out(
    session: Callable[[MetricLog | None], RunSession],
    run: RunDirectory | None,
    log: MetricLog | None,
    *,
    threads: int = 1,
    stop: Callable[[], bool] | None = None,
    promise: str = "a checkpoint is written",
    fresh: bool = False,
    initial: Path | None = None,
) -> TrainResult:
    """Execute a training run: build, resume from the checkpoint, train until a stop condition, save, return the result.

    Args:
        session: Builds the session from its metric log.
        run: The run's directory; None in all processes but the first.
        log: Metric log; by default the run's, which is closed at the end.
        threads: Torch threads until the session chooses others; initial weights round differently with another number.
        stop: Further stop condition, besides signals.
        promise: Work done before the process ends, for the message of a signal.
        fresh: Ignore the checkpoints of the run directory.
        initial: A checkpoint whose weights a new run starts from.
    """
    owned = run.metric_log() if log is None and run is not None else None
    try:
        with torch_threads(threads):
            here = session(log if owned is None else owned)
            rows = None if here.record is None else here.record.events
            callbacks = here.events.recorded(rows) if here.workers.first else nullcontext()
            with callbacks, StopFlag(stop, promise) as flag:
                resumed_from = here.begin(fresh=fresh, initial=initial)
                return here.finish(here.run_until(flag), resumed_from)
    finally:
        if owned is not None:
            owned.close()
