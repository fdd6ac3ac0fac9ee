"""Worker of an Optuna study: claims and trains trials until none is left.

A trial is a supervised training run. Its metrics are read from the outbox during training, and it may be pruned.
"""

import math
import time
from collections.abc import Callable
from typing import Any

from optuna.trial import Trial, TrialState

from navi_core.config import config_hash
from navi_core.errors import ConfigError, RunError, UnavailableError
from navi_core.machine.devices import WAITING
from navi_core.record import navi_home
from navi_pipeline.lib.studies.catalogue import partition_of, trial_config
from navi_pipeline.lib.studies.population import record_population
from navi_pipeline.lib.studies.results import STATES, record_trials
from navi_pipeline.lib.studies.trial_queue import HINDERED, INTERRUPTED, TrialQueue, note
from navi_pipeline.lib.training.run_curve import RunCurve
from navi_pipeline.lib.training.supervised import runs_in_use, wait_for_run
from navi_pipeline.lib.training.trainer_client import APEX, ended_of_itself, run_name, train_in_child, training_command
from navi_pipeline.settings import ObjectiveConfig, StudyConfig

ASSET = "trial"
"""Asset name in the keys of the runs, and of their Dagster partitions."""
_OUT_OF_MEMORY = ("out of memory", "MemoryError", "Cannot allocate memory", "can't allocate memory")

Train = Callable[..., dict[str, Any]]
"""Type of the training function, with the signature of `train_in_child`."""


class _NoValueError(Exception):
    """End of a trial without a value; its arguments are the outcome (column `outcome`) and the reason.

    Outcomes are pruned, timeout, out_of_memory, crash and invalid (an impossible configuration, or no finite metric).
    INTERRUPTED and HINDERED are none: the trial is given back.
    """


def run_trial(
    queue: TrialQueue,
    trial: Trial,
    *,
    on_line: Callable[[str], None],
    ending: Callable[[], bool],
    train: Train = train_in_child,
) -> str:
    """Train with the parameters of a trial, and report the outcome to the study, or give the trial back.

    Args:
        queue: The study.
        trial: A claimed trial.
        on_line: Called with every line of the trainer.
        ending: Returns whether this worker must end; the trainer writes a checkpoint, and the trial is given back.
        train: Trainer, with the signature of `train_in_child`.

    Returns:
        complete, pruned, failed or interrupted.

    Raises:
        UnavailableError: A GPU, the cluster or disk space is missing; the trial is given back.
    """
    began, values, outcome, reason = time.monotonic(), None, "ok", ""
    try:
        values = _Attempt(queue, trial, ending).run(on_line, train)
    except _NoValueError as end:
        outcome, reason = end.args
    except UnavailableError as error:
        # It would fail all later trials, one after the other.
        queue.give_back(trial, INTERRUPTED)
        raise UnavailableError(f"{error}; mend that, then `navi study resume {queue.config.name}`") from error
    if outcome in (INTERRUPTED, HINDERED):
        queue.give_back(trial, outcome)
        return "interrupted"
    note(trial, reason=reason[:500] or None, outcome=outcome, wall_time_seconds=round(time.monotonic() - began, 3))
    state = {"ok": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(outcome, TrialState.FAIL)
    queue.study.tell(trial, values, state)
    return STATES[state.name]


class _Attempt:
    """One training attempt of a trial: runs the trainer, reports its curve, classifies its end."""

    def __init__(self, queue: TrialQueue, trial: Trial, ending: Callable[[], bool]) -> None:
        self._queue, self._trial, self._ending = queue, trial, ending
        self._config, self._began = queue.config, time.monotonic()
        try:
            self._settings = trial_config(queue.config, trial.params)
        except ConfigError as error:
            raise _NoValueError("invalid", str(error)) from error
        self._partition = partition_of(self._config.name, int(trial.user_attrs["slot"]))
        self._run_id = run_name(ASSET, self._partition, self._settings)
        note(trial, run_id=self._run_id, config_hash=config_hash(self._settings))
        self._curve = RunCurve(self._run_id)
        self._waits = False
        """Whether the trainer waits for a GPU, which takes nothing of the time limit."""
        self._stopped = "pruned" if trial.user_attrs.get("outcome") == "pruned" else ""
        """Outcome for which the trainer is stopped; empty while it runs. A lost attempt's pruning holds."""
        self._reported = queue.trials()[trial.number].last_step or -1

    def run(self, on_line: Callable[[str], None], train: Train) -> list[float]:
        """Run the trainer and return the values of the objectives.

        Raises:
            _NoValueError: The trial has none.
        """
        if (navi_home() / "runs" / self._run_id).exists():
            self._curve.recall()  # a resumed trainer does not repeat its earlier rows
        if not wait_for_run(self._run_id, ending=self._ending):
            raise _NoValueError(self._from_outside(), "")
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
                command=trial_command(self._config),
                stop=self._stop,
            )
        except UnavailableError:
            raise
        except RunError as error:
            if not self._stopped and runs_in_use(prefix=self._run_id):
                self._stopped = HINDERED  # taken between the look and the trainer's start
            if not self._stopped:
                short = any(word in str(error) for word in _OUT_OF_MEMORY)
                last = str(error).splitlines()[-1]
                raise _NoValueError("out_of_memory" if short else "crash", last) from error
        return self._values(result)

    def _stop(self) -> bool:
        """Return whether the trainer must stop (interruption, time limit, pruning); called twice a second."""
        if not self._stopped:
            if self._waits:
                self._began = time.monotonic()
            if self._ending():
                self._stopped = INTERRUPTED
            elif self._config.timeout is not None and time.monotonic() - self._began > self._config.timeout:
                self._stopped = "timeout"
            else:
                self._report_curve()
        return bool(self._stopped)

    def _report_curve(self) -> None:
        """Report intermediate values of a single objective to Optuna, which may prune the trial."""
        self._curve.read()
        if len(self._config.objectives) > 1:
            return
        for step, value in self._curve.points(self._config.objectives[0].metric):
            if step > self._reported and not self._stopped:
                self._trial.report(value, step)
                self._reported = step
                if self._queue.pruner.prune(self._queue.study, self._queue.trials()[self._trial.number]):
                    # At once: an attempt that is lost from here on is not asked about this step again.
                    note(self._trial, outcome="pruned")
                    self._stopped = "pruned"

    def _from_outside(self) -> str:
        return INTERRUPTED if self._ending() else HINDERED

    def _values(self, result: dict[str, Any]) -> list[float]:
        """Classify a training process that ended regularly, and store its metrics and constraints in the trial."""
        self._curve.read()
        if self._stopped == "pruned" and result and result["steps"] >= (self._settings.total_steps or math.inf):
            self._stopped = ""  # it was done before it could be stopped
        if not self._stopped and not ended_of_itself(result.get("reason")):
            self._stopped = self._from_outside()
        figures = {name: result.get(name) for name in ("reward_ema", "memory_gib", "wall_time_hours")}
        known = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        steps = int(result.get("steps") or self._curve.last_step)
        note(self._trial, metrics=self._curve.last() | known, steps=steps, checkpoint=result.get("checkpoint"))
        if self._stopped and self._stopped != "pruned":
            late = f"not done after {self._config.timeout} s" if self._stopped == "timeout" else ""
            raise _NoValueError(self._stopped, late)
        for constraint in self._config.constraints:
            figure = self._curve.figure(ObjectiveConfig(metric=constraint.metric), result)
            if figure is not None:
                self._trial.set_constraint(constraint.metric, constraint.violation(figure))
            elif not self._stopped:
                raise _NoValueError("invalid", f"the run has no {constraint.metric}, which is bounded")
        if self._stopped:
            raise _NoValueError(self._stopped, "")
        values = {objective.metric: self._curve.figure(objective, result) for objective in self._config.objectives}
        if missing := [metric for metric, value in values.items() if value is None]:
            raise _NoValueError("invalid", f"the run has no finite {', '.join(missing)}")
        return [float(value) for value in values.values() if value is not None]


def trial_command(config: StudyConfig) -> list[str]:
    """Return the arguments of `navi` that train with a study's learner, besides the configuration."""
    # Trials are no versions: the best one's settings become a preset, and its training a version.
    unseen = () if config.learner in ("bc", APEX) else ("--publish", "off")
    return [*training_command(config.learner, config.demonstrations), *unseen, "--no-register"]


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
        ending: Returns whether to stop; the current trial is then given back.
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
        record_population(queue)
        result = done.user_attrs.get("reason") or ", ".join(f"{value:.4g}" for value in done.values or ())
        slot = int(done.user_attrs["slot"])
        on_line(f"study {queue.config.name}: trial {slot + 1}/{queue.config.trials} {ended} {result}")
    return taken
