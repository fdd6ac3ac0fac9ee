"""One trial: a training run in a supervised child, judged while it runs and when it has ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from navi_core.config import config_hash
from navi_core.errors import ConfigError, RunError
from navi_core.record import navi_home
from navi_pipeline.lib.studies.curve import RunCurve
from navi_pipeline.lib.studies.spaces import draw, search_space, trial_config
from navi_pipeline.lib.studies.trial_queue import HINDERED, INTERRUPTED, TrialQueue
from navi_pipeline.lib.training.stale_runs import runs_in_use, wait_for_run
from navi_pipeline.lib.training.supervised import disk_is_full
from navi_pipeline.lib.training.trainer_client import ended_of_itself, train_in_child
from navi_pipeline.settings.studies import ObjectiveConfig

if TYPE_CHECKING:
    from optuna.trial import Trial

__all__ = ["ASSET", "partition_of", "run_trial"]

ASSET = "trial"
"""Asset of the runs' keys, and of their partitions in Dagster."""
_OUT_OF_MEMORY = ("out of memory", "MemoryError", "Cannot allocate memory", "can't allocate memory")

Train = Callable[..., dict[str, Any]]
"""What trains, called as `trainer_client.train_in_child`."""


def partition_of(study: str, slot: int) -> str:
    """Return the name of a slot: the partition of its run and of the asset trial."""
    return f"{study}-{slot:04d}"


def run_trial(
    queue: TrialQueue,
    trial: Trial,
    *,
    on_line: Callable[[str], None],
    ending: Callable[[], bool],
    train: Train = train_in_child,
) -> str:
    """Train with what a trial proposes and tell the study how it went.

    Args:
        queue: The study.
        trial: A trial that was claimed.
        on_line: Called with every line of the trainer.
        ending: Whether this worker is to end; the trainer then checkpoints, and the trial waits to be taken up.
        train: What trains.

    Returns:
        complete, pruned, failed or interrupted.

    Raises:
        RunError: The disk is full; the trial waits to be taken up.
    """
    from optuna.trial import TrialState

    config, began = queue.config, time.monotonic()
    params = draw(trial, search_space(config))
    partition = partition_of(config.name, int(trial.user_attrs["slot"]))
    try:
        settings = trial_config(config, params)
    except ConfigError as error:
        return _fail(queue, trial, "invalid", str(error), began)
    run_id = f"{ASSET}-{partition}-{config_hash(settings)}"
    trial.set_user_attr("run_id", run_id)
    trial.set_user_attr("config_hash", config_hash(settings))
    curve = RunCurve(run_id, since=int(trial.user_attrs["began_ns"]))
    if (navi_home() / "runs" / run_id).exists():
        curve.recall()  # what it did before, its trainer does not tell again
    judge = _Judge(trial, curve, config.objectives, config.pruning)

    def stop() -> bool:
        if ending():
            judge.verdict = judge.verdict or INTERRUPTED
        elif config.timeout is not None and time.monotonic() - began > config.timeout:
            judge.verdict = judge.verdict or "timeout"
        else:
            judge.look()
        return judge.verdict is not None

    if not wait_for_run(run_id, ending=ending):
        queue.give_back(trial, INTERRUPTED if ending() else HINDERED)
        return "interrupted"
    result: dict[str, Any] | None = None
    try:
        result = train(settings, asset=ASSET, partition=partition, on_line=on_line, command=_command(queue), stop=stop)
    except RunError as error:
        if judge.verdict is None and runs_in_use(prefix=run_id):
            judge.verdict = HINDERED  # taken between the look and the trainer's start
        if judge.verdict is None:
            told = str(error)
            if disk_is_full(told):
                # Else a full disk would fail all trials there are to come, one after the other.
                queue.give_back(trial, INTERRUPTED)
                raise RunError(f"{told.splitlines()[-1]}; make room, then `navi study resume {config.name}`") from error
            outcome = "out_of_memory" if any(word in told for word in _OUT_OF_MEMORY) else "crash"
            return _fail(queue, trial, outcome, told.splitlines()[-1], began)
    judge.curve.read()
    if judge.verdict == "pruned" and result is not None and result["steps"] >= (settings.total_steps or math.inf):
        judge.verdict = None  # it was done before it could be stopped
    if judge.verdict is None and not ended_of_itself((result or {}).get("reason")):
        judge.verdict = INTERRUPTED if ending() else HINDERED
    trial.set_user_attr("metrics", judge.curve.last() | _numbers(result))
    trial.set_user_attr("steps", int((result or {}).get("steps") or judge.curve.last_step))
    trial.set_user_attr("checkpoint", (result or {}).get("checkpoint"))
    if judge.verdict in (INTERRUPTED, HINDERED):
        queue.give_back(trial, judge.verdict)
        return "interrupted"
    if judge.verdict == "timeout":
        return _fail(queue, trial, "timeout", f"not done after {config.timeout:g} s", began)
    violations: dict[str, float] = {}
    for constraint in config.constraints:
        figure = judge.curve.figure(ObjectiveConfig(metric=constraint.metric), result)
        if figure is None and judge.verdict is None:
            return _fail(queue, trial, "invalid", f"the run has no {constraint.metric}, which is bounded", began)
        if figure is not None:
            violations[constraint.metric] = constraint.violation(figure)
            trial.set_constraint(constraint.metric, violations[constraint.metric])
    trial.set_user_attr("constraints", violations)
    if judge.verdict == "pruned":
        _close(trial, "pruned", began)
        queue.study.tell(trial, state=TrialState.PRUNED)
        return "pruned"
    figures = {objective.metric: judge.curve.figure(objective, result) for objective in config.objectives}
    missing = [metric for metric, value in figures.items() if value is None]
    if missing:
        return _fail(queue, trial, "invalid", f"the run has no finite {', '.join(missing)}", began)
    _close(trial, "ok", began)
    queue.study.tell(trial, [float(value) for value in figures.values() if value is not None])
    return "complete"


class _Judge:
    """Reports a run's metric to the study while it runs, and asks whether the trial is to end."""

    def __init__(
        self, trial: Trial, curve: RunCurve, objectives: tuple[ObjectiveConfig, ...], pruning: Any | None
    ) -> None:
        self.curve = curve
        self.verdict: str | None = None
        self._trial = trial
        self._metric = objectives[0].metric
        self._single = len(objectives) == 1
        self._pruning = pruning
        self._told = -1

    def look(self) -> None:
        """Read what has come; a single objective's values go to the study."""
        self.curve.read()
        if not self._single:
            return
        for step, value in self.curve.points(self._metric):
            if step <= self._told:
                continue
            self._trial.report(value, step)
            self._told = step
            if self._pruning is not None and self._trial.should_prune():
                self.verdict = "pruned"
                return


def _command(queue: TrialQueue) -> list[str]:
    config = queue.config
    # Hundreds of trials are no versions: the best one's settings become a preset, and what is trained with it, one.
    if config.learner == "bc":
        return ["bc", "--no-register", *(part for folder in config.demonstrations for part in ("--demos", folder))]
    return ["train", config.learner, "--publish", "off", "--no-register"]


def _fail(queue: TrialQueue, trial: Trial, outcome: str, reason: str, began: float) -> str:
    from optuna.trial import TrialState

    trial.set_user_attr("reason", reason[:500])
    _close(trial, outcome, began)
    queue.study.tell(trial, state=TrialState.FAIL)
    return "failed"


def _close(trial: Trial, outcome: str, began: float) -> None:
    trial.set_user_attr("outcome", outcome)
    trial.set_user_attr("wall_time_seconds", round(time.monotonic() - began, 3))


def _numbers(result: dict[str, Any] | None) -> dict[str, float]:
    found = {name: (result or {}).get(name) for name in ("reward_ema", "memory_gib", "wall_time_hours")}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
