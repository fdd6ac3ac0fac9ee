"""Worker process of an Optuna study (`python -m … NAME`): claims and trains trials until none is left.

A trial is a supervised training run. Its metrics are read from the outbox during training, and it may be pruned.
"""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from optuna.trial import Trial, TrialState

from navi_core.config import TrainConfig, config_hash
from navi_core.errors import ConfigError, NaviError, RunError, UnavailableError
from navi_core.machine.devices import WAITING
from navi_core.record import navi_home
from navi_core.terminal import print_status
from navi_pipeline.lib.studies.catalogue import partition_of, search_space, trial_config
from navi_pipeline.lib.studies.results import record_trials
from navi_pipeline.lib.studies.trial_queue import HINDERED, INTERRUPTED, TrialQueue, read_study
from navi_pipeline.lib.training.run_curve import RunCurve
from navi_pipeline.lib.training.supervised import runs_in_use, wait_for_run
from navi_pipeline.lib.training.trainer_client import ended_of_itself, run_name, train_in_child
from navi_pipeline.settings import ChoiceParameter, IntParameter, ObjectiveConfig, Parameter, StudyConfig

ASSET = "trial"
"""Asset name in the keys of the runs, and of their Dagster partitions."""
_OUT_OF_MEMORY = ("out of memory", "MemoryError", "Cannot allocate memory", "can't allocate memory")

Train = Callable[..., dict[str, Any]]
"""Type of the training function, with the signature of `train_in_child`."""


class Outcome(StrEnum):
    """Outcome of a trial, stored in the column `outcome`."""

    OK = "ok"
    PRUNED = "pruned"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    INVALID = "invalid"
    """The configuration is invalid, or the run lacks a finite metric."""
    INTERRUPTED = INTERRUPTED
    """The worker was stopped; the trial is requeued."""
    HINDERED = HINDERED
    """Something outside the study stopped the training; the trial is requeued."""


_REQUEUED = (Outcome.INTERRUPTED, Outcome.HINDERED)


@dataclass(frozen=True)
class _Ending:
    """Outcome of a trial with its reason, and the objectives' values if it is complete."""

    outcome: Outcome
    reason: str = ""
    values: tuple[float, ...] = ()


def draw(trial: Trial, space: Mapping[str, Parameter]) -> dict[str, Any]:
    """Sample a value for every parameter of the search space from the trial."""
    return {name: _suggest(trial, name, parameter) for name, parameter in space.items()}


def _suggest(trial: Trial, name: str, parameter: Parameter) -> object:
    if isinstance(parameter, ChoiceParameter):
        return trial.suggest_categorical(name, list(parameter.choices))
    if isinstance(parameter, IntParameter):
        return trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log)
    return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)


def run_trial(
    queue: TrialQueue,
    trial: Trial,
    *,
    on_line: Callable[[str], None],
    ending: Callable[[], bool],
    train: Train = train_in_child,
) -> str:
    """Train with the parameters that a trial samples, and report the outcome to the study.

    Args:
        queue: The study.
        trial: A claimed trial.
        on_line: Called with every line of the trainer.
        ending: Returns whether this worker must end; the trainer writes a checkpoint, and the trial is requeued.
        train: Trainer, with the signature of `train_in_child`.

    Returns:
        complete, pruned, failed or interrupted.

    Raises:
        UnavailableError: A GPU, the cluster or disk space is missing; the trial is requeued.
    """
    began = time.monotonic()
    params = draw(trial, search_space(queue.config))
    try:
        settings = trial_config(queue.config, params)
    except ConfigError as error:
        return _report(queue, trial, _Ending(Outcome.INVALID, str(error)), began)
    return _report(queue, trial, _Attempt(queue, trial, settings, ending, began).run(on_line, train), began)


class _Attempt:
    """One training attempt of a trial: runs the trainer, reports its curve, classifies its end."""

    def __init__(
        self, queue: TrialQueue, trial: Trial, settings: TrainConfig, ending: Callable[[], bool], began: float
    ) -> None:
        self._queue, self._trial, self._settings = queue, trial, settings
        self._ending, self._began = ending, began
        self._config = queue.config
        self._partition = partition_of(self._config.name, int(trial.user_attrs["slot"]))
        self._run_id = run_name(ASSET, self._partition, settings)
        trial.set_user_attr("run_id", self._run_id)
        trial.set_user_attr("config_hash", config_hash(settings))
        self._curve = RunCurve(self._run_id)
        self._waits = False
        """Whether the trainer waits for a GPU, which takes nothing of the time limit."""
        self._stopped: Outcome | None = None
        """Outcome for which this worker stopped the trainer; None while it runs."""
        self._reported = -1

    def run(self, on_line: Callable[[str], None], train: Train) -> _Ending:
        """Run the trainer and return the outcome."""
        if (navi_home() / "runs" / self._run_id).exists():
            self._curve.recall()  # a resumed trainer does not repeat its earlier rows
        if not wait_for_run(self._run_id, ending=self._ending):
            return _Ending(self._from_outside())
        result: dict[str, Any] = {}

        def follow(line: str) -> None:
            self._waits = line.startswith(WAITING)
            on_line(line)

        try:
            result = train(
                self._settings,
                asset=ASSET,
                partition=self._partition,
                on_line=follow,
                command=_command(self._config),
                stop=self._stop,
            )
        except RunError as error:
            if self._stopped is None and runs_in_use(prefix=self._run_id):
                self._stopped = Outcome.HINDERED  # taken between the look and the trainer's start
            if self._stopped is None:
                return self._failed(error)
        return self._ended(result)

    def _stop(self) -> bool:
        """Return whether the trainer must stop (interruption, time limit, pruning); called twice a second."""
        if self._stopped is None:
            if self._waits:
                self._began = time.monotonic()
            if self._ending():
                self._stopped = Outcome.INTERRUPTED
            elif self._config.timeout is not None and time.monotonic() - self._began > self._config.timeout:
                self._stopped = Outcome.TIMEOUT
            else:
                self._report_curve()
        return self._stopped is not None

    def _report_curve(self) -> None:
        """Report intermediate values of a single objective to Optuna, which may prune the trial."""
        self._curve.read()
        if len(self._config.objectives) > 1:
            return
        for step, value in self._curve.points(self._config.objectives[0].metric):
            if step <= self._reported:
                continue
            self._trial.report(value, step)
            self._reported = step
            if self._trial.should_prune():
                self._stopped = Outcome.PRUNED
                return

    def _from_outside(self) -> Outcome:
        return Outcome.INTERRUPTED if self._ending() else Outcome.HINDERED

    def _failed(self, error: RunError) -> _Ending:
        """Classify a failed training process as out-of-memory or crash; a fault of the infrastructure raises."""
        text = str(error)
        last = text.splitlines()[-1]
        if isinstance(error, UnavailableError):
            # It would fail all later trials, one after the other.
            self._queue.give_back(self._trial, INTERRUPTED)
            raise UnavailableError(f"{text}; mend that, then `navi study resume {self._config.name}`") from error
        short = any(word in text for word in _OUT_OF_MEMORY)
        return _Ending(Outcome.OUT_OF_MEMORY if short else Outcome.CRASH, last)

    def _ended(self, result: dict[str, Any]) -> _Ending:
        """Classify a training process that ended regularly, and store its metrics and constraints in the trial."""
        self._curve.read()
        if self._stopped is Outcome.PRUNED and result and result["steps"] >= (self._settings.total_steps or math.inf):
            self._stopped = None  # it was done before it could be stopped
        if self._stopped is None and not ended_of_itself(result.get("reason")):
            self._stopped = self._from_outside()
        self._trial.set_user_attr("metrics", self._curve.last() | _numbers(result))
        self._trial.set_user_attr("steps", int(result.get("steps") or self._curve.last_step))
        self._trial.set_user_attr("checkpoint", result.get("checkpoint"))
        if self._stopped in _REQUEUED:
            return _Ending(self._stopped)
        if self._stopped is Outcome.TIMEOUT:
            return _Ending(self._stopped, f"not done after {self._config.timeout:g} s")
        for constraint in self._config.constraints:
            figure = self._curve.figure(ObjectiveConfig(metric=constraint.metric), result)
            if figure is not None:
                self._trial.set_constraint(constraint.metric, constraint.violation(figure))
            elif self._stopped is None:
                return _Ending(Outcome.INVALID, f"the run has no {constraint.metric}, which is bounded")
        if self._stopped is Outcome.PRUNED:
            return _Ending(self._stopped)
        figures = {objective.metric: self._curve.figure(objective, result) for objective in self._config.objectives}
        if missing := [metric for metric, value in figures.items() if value is None]:
            return _Ending(Outcome.INVALID, f"the run has no finite {', '.join(missing)}")
        return _Ending(Outcome.OK, values=tuple(float(value) for value in figures.values() if value is not None))


def _report(queue: TrialQueue, trial: Trial, ending: _Ending, began: float) -> str:
    """Report a trial's outcome to Optuna, or requeue it; the only place where a trial ends.

    Returns:
        complete, pruned, failed or interrupted.
    """
    if ending.outcome in _REQUEUED:
        queue.give_back(trial, ending.outcome.value)
        return "interrupted"
    if ending.reason:
        trial.set_user_attr("reason", ending.reason[:500])
    trial.set_user_attr("outcome", ending.outcome.value)
    trial.set_user_attr("wall_time_seconds", round(time.monotonic() - began, 3))
    if ending.outcome is Outcome.OK:
        queue.study.tell(trial, list(ending.values))
        return "complete"
    pruned = ending.outcome is Outcome.PRUNED
    queue.study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)
    return "pruned" if pruned else "failed"


def _command(config: StudyConfig) -> list[str]:
    # Trials are no versions: the best one's settings become a preset, and its training a version.
    if config.learner == "bc":
        return ["bc", "--no-register", *(part for folder in config.demonstrations for part in ("--demos", folder))]
    return ["train", config.learner, "--publish", "off", "--no-register"]


def _numbers(result: dict[str, Any]) -> dict[str, float]:
    found = {name: result.get(name) for name in ("reward_ema", "memory_gib", "wall_time_hours")}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def work(
    queue: TrialQueue,
    *,
    on_line: Callable[[str], None],
    ending: Callable[[], bool] = lambda: False,
    train: Train = train_in_child,
) -> int:
    """Claim and run trials until every slot is done or claimed by other workers.

    Args:
        queue: The study.
        on_line: Called with a line for every trial, and with those of the trainers.
        ending: Returns whether to stop; the current trial is then requeued.
        train: Training function.

    Returns:
        Trials that this worker took.

    Raises:
        ConfigError: A preset differs from when the study began.
    """
    taken = 0
    while not ending():
        queue.require_same_settings()  # a preset may be edited while a study lasts
        trial = queue.claim()
        if trial is None:
            break
        taken += 1
        ended = run_trial(queue, trial, on_line=on_line, ending=ending, train=train)
        done = queue.trials()[trial.number]
        record_trials(queue, [done])
        result = done.user_attrs.get("reason") or ", ".join(f"{value:.4g}" for value in done.values or ())
        slot = int(done.user_attrs["slot"])
        on_line(f"study {queue.config.name}: trial {slot + 1}/{queue.config.trials} {ended} {result}")
    return taken


def main(name: str) -> int:
    """Entry point of the worker process: work on a study until it is done or a signal arrives."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with TrialQueue(read_study(name)) as queue:
            work(queue, on_line=print_status, ending=stopped.is_set)
    except (NaviError, OSError) as error:
        print_status(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
