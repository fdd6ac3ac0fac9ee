"""Trial queue of an Optuna study: workers claim trials, those of lost workers first.

A *slot* is one of the study's requested trials. If a worker dies, another takes its trial up with the same parameters,
in the same run directory. So nothing is lost, and no slot counts twice. A trial that fails by itself (out of memory, an
error, time limit) is an outcome and is not repeated. Studies of older versions of Navi have a trial for each attempt.

Optuna's heartbeats and `RetryFailedTrialCallback` serve trials of `Study.optimize` alone: a trial of `Study.ask` has no
heartbeat (measured with Optuna 5.0). A kernel lock per worker takes their place, which also needs no clocks.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from navi_core.config import TrainConfig, parse_config
from navi_core.config.base import settings_of
from navi_core.config.learn import upgrade_settings, upgrade_train_config
from navi_core.config.registry import LEARNER_NAMES
from navi_core.errors import ConfigError, RecordError, did_you_mean
from navi_core.machine.file_lock import is_locked, wait_for_lock
from navi_core.record import navi_home
from navi_pipeline.lib.records import read_document, write_document
from navi_pipeline.lib.studies.catalogue import corner_config, search_space, trial_config
from navi_pipeline.lib.studies.storage import open_storage, study_folder, study_pruner, study_sampler
from navi_pipeline.settings import ChoiceParameter, IntParameter, Parameter, StudyConfig

LOST = "its worker was lost"
"""Reason of a trial whose worker process died."""
INTERRUPTED = "interrupted"
"""Reason of a trial whose worker was stopped by a signal or a cancelled run."""
HINDERED = "another process held its run or stopped its trainer"
"""Reason of a trial whose training was blocked or stopped from outside the study."""
_FREE = {"trials", "workers", "storage", "timeout", "attempts"}
"""Settings of a study that may change when it is resumed."""


def known_studies() -> list[str]:
    """List the names of the studies of this home."""
    return sorted(file.parent.name for file in study_folder("").glob("*/study.json"))


def read_study(name: str) -> StudyConfig:
    """Load the configuration of an existing study.

    Raises:
        RecordError: There is no such study.
    """
    if name not in known_studies():
        known = ", ".join(known_studies()) or "none yet"
        raise RecordError(
            f"no study {name!r}; {did_you_mean(name, known_studies())}known: {known}; `navi study run` begins one"
        )
    document = read_document(study_folder(name) / "study.json", made_by="the study")
    if isinstance(document.get("settings"), dict):
        document["settings"] = upgrade_settings(document["settings"])
    # A study is listed even where its learner is not registered.
    return parse_config(StudyConfig, document, context={"past": [LEARNER_NAMES.kind]})


class TrialQueue:
    """Queue of an Optuna study's trials (context manager, one per process): claims, returns and lists trials.

    The workers of a process are threads that share it.

    Attributes:
        config: Settings of the study.
        study: Optuna study object.
        storage: Optuna storage of the study.
        pruner: Optuna pruner of the study.
        worker: Name of this process as a worker; it holds a lock of this name while it lives.
    """

    def __init__(self, config: StudyConfig) -> None:
        """Open a study, or create it, and take this worker's lock.

        Raises:
            ConfigError: A study of this name has other settings, or a setting of its space does not exist.
            RecordError: Its storage cannot be opened.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.config = config
        self.folder = study_folder(config.name)
        corner_config(config)  # refuses a setting that does not exist before anything is trained
        self._claim = self.folder / "claim.lock"
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        with wait_for_lock(self._claim):
            self._keep_settings()
            self.storage = open_storage(config)
            self.study: optuna.Study = optuna.create_study(
                storage=self.storage,
                study_name=config.name,
                directions=[objective.direction for objective in config.objectives],
                load_if_exists=True,
            )
        # Not the study's own: there Optuna shows the sampler the trials of one bracket alone.
        self.pruner = study_pruner(config)
        self._lock = wait_for_lock(self._lock_of(self.worker))
        self._lock.__enter__()

    def differing(self) -> list[str]:
        """Return the settings that a preset or default has changed since the study began, with the former values."""
        file, now = self.folder / "settings.json", corner_config(self.config)
        with wait_for_lock(self._claim):
            if not file.exists():
                differing = self._differing_from_trials()
                if differing:
                    return differing
                write_document(file, now.model_dump(mode="json"))
            return list(_differences(upgrade_train_config(read_document(file, made_by="the study")), now))

    def _differing_from_trials(self) -> list[str]:
        """Return the settings that differ from an existing trial's run, for studies of older versions of Navi."""
        for trial in self.trials():
            run = navi_home() / "runs" / str(trial.user_attrs.get("run_id"))
            with suppress(OSError, ValueError, KeyError):
                then = json.loads((run / "config.json").read_text("utf-8"))["config"]
                return list(_differences(upgrade_train_config(then), trial_config(self.config, trial.params)))
        return []

    def require_same_settings(self) -> None:
        """Raise if a preset or default has changed since the study began, as trials would not be comparable.

        Raises:
            ConfigError: A setting differs; the message names it.
        """
        name, differing = self.config.name, self.differing()
        if differing:
            source = f"its preset {self.config.preset}" if self.config.preset else "the defaults"
            raise ConfigError(
                f"study {name} was begun with {', '.join(differing[:3])}; {source} changed since: restore the former "
                f"value, or begin another, `navi study run {name} --set name={name}-2` (and its --config), or this one "
                f"anew without {self.folder}; `navi study show {name}` shows the results of this one"
            )

    def close(self, *, orderly: bool = True) -> None:
        """Release the worker's lock when this process stops working on the study.

        Args:
            orderly: Whether the worker leaves no trial behind. Else its lock stays and marks the trial as lost,
                whatever this machine is called then.
        """
        self._lock.__exit__(None, None, None)
        if orderly:
            with suppress(OSError):
                self._lock_of(self.worker).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(orderly=kind is None)

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return all trials, or those of the given states."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def latest(self) -> dict[int, FrozenTrial]:
        """Return slot → its latest trial; only a trial that retries another opens no slot."""
        latest, opened = dict[int, FrozenTrial](), 0
        for trial in self.trials():
            latest[int(trial.user_attrs.get("slot", opened))] = trial
            opened += "retry_of" not in trial.user_attrs
        return latest

    def left(self) -> int:
        """Return the number of slots without an outcome."""
        return self.config.trials - sum(trial.state.is_finished() for trial in self.latest().values())

    def is_lost(self, trial: FrozenTrial) -> bool:
        """Return whether a running trial has no worker: it died, or gave the trial back."""
        worker = str(trial.user_attrs.get("worker", ""))
        lock = self._lock_of(worker)
        # The locks of another machine lie in its own home, and its own workers look at them. One that lies here counts,
        # whatever this machine was called then: a container is another with every start, and a home may be moved.
        here = not worker or worker.startswith(f"{socket.gethostname()}-") or lock.exists()
        return trial.state is TrialState.RUNNING and here and not (worker and is_locked(lock))

    def running(self) -> list[FrozenTrial]:
        """Return the trials that a living worker trains, on another machine as far as is known."""
        return [trial for trial in self.trials(TrialState.RUNNING) if not self.is_lost(trial)]

    def in_living_hands(self) -> int:
        """Return the number of running trials whose worker holds its lock on this machine."""
        return sum(is_locked(self._lock_of(str(trial.user_attrs.get("worker")))) for trial in self.running())

    def claim(self) -> Trial | None:
        """Claim the next trial for this worker, a lost one first, and draw its parameters; None if there is none.

        Every claim is made under one lock, so a running trial without a worker lost it.
        """
        with wait_for_lock(self._claim):
            latest = self.latest()
            for slot, left in latest.items():
                if not self.is_lost(left):
                    continue
                study = self.storage.get_study_id_from_name(self.config.name)
                trial = Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study, left.number))
                # A stopped worker is no evidence about its trial.
                counts = left.user_attrs.get("reason") != INTERRUPTED
                attempt = int(left.user_attrs.get("attempt", 1)) + counts
                if attempt <= self.config.attempts:
                    return self._begin(trial, slot, attempt=attempt, reason=None)
                note(trial, reason=left.user_attrs.get("reason") or LOST, outcome="crash")
                self.study.tell(trial, state=TrialState.FAIL)
            if len(latest) >= self.config.trials and not self.trials(TrialState.WAITING):
                return None
            trial = self.study.ask()
            return self._begin(trial, next(slot for slot, t in self.latest().items() if t.number == trial.number))

    def _begin(self, trial: Trial, slot: int, **attributes: object) -> Trial:
        """Draw a trial's parameters; they follow from seed and slot, however often the trial or the study was lost."""
        note(trial, slot=slot, **attributes, worker=self.worker)
        sampler = self.study.sampler = study_sampler(self.config, slot)
        drawn, space = trial.params, search_space(self.config)
        for name, parameter in space.items():
            if len(drawn) < len(space) and name in drawn and name not in trial.relative_params:
                # Lost between two draws: the sampler's generator goes on behind the first.
                sampler.sample_independent(self.study, self.trials()[trial.number], name, trial.distributions[name])
            _suggest(trial, name, parameter)
        return trial

    def give_back(self, trial: Trial, reason: str) -> None:
        """Give a claimed trial back, for the next worker to take up."""
        note(trial, reason=reason, worker="")

    def retry_failed(self) -> None:
        """Requeue the trials of a study that have all failed: what failed them lay outside the study, or is mended."""
        with wait_for_lock(self._claim):
            done = self.latest()
            if len(done) >= self.config.trials and all(trial.state is TrialState.FAIL for trial in done.values()):
                for slot, trial in sorted(done.items()):
                    attributes = {"slot": slot, "retry_of": trial.number}
                    self.study.enqueue_trial(dict(trial.params), user_attrs=attributes)

    def best(self) -> list[FrozenTrial]:
        """Return the best feasible trial, or the feasible Pareto front if there are several objectives."""
        front = [trial for trial in self.study.best_trials if is_feasible(trial)]
        return front if len(self.config.objectives) > 1 else front[:1]

    def _lock_of(self, worker: str) -> Path:
        return self.folder / "workers" / f"{worker}.lock"

    def _keep_settings(self) -> None:
        file = self.folder / "study.json"
        if file.exists():
            theirs, ours = (one.model_dump(exclude=_FREE) for one in (read_study(self.config.name), self.config))
            if differing := [name for name in theirs if theirs[name] != ours[name]]:
                raise ConfigError(
                    f"study {self.config.name} was begun with another {', '.join(differing)}; give the new one another "
                    f"name, or go on with `navi study resume {self.config.name}`"
                )
        write_document(file, self.config.model_dump(mode="json"))


def note(trial: Trial, **attributes: object) -> None:
    """Store attributes of a trial, in this order."""
    for name, value in attributes.items():
        trial.set_user_attr(name, value)


def is_feasible(trial: FrozenTrial) -> bool:
    """Return whether a trial satisfies all constraints of the study."""
    return all(value <= 0 for value in trial.constraints.values())


def _suggest(trial: Trial, name: str, parameter: Parameter) -> None:
    if isinstance(parameter, ChoiceParameter):
        trial.suggest_categorical(name, list(parameter.choices))
    elif isinstance(parameter, IntParameter):
        trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log)
    else:
        trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)


def _differences(then: Mapping[str, Any], now: TrainConfig) -> Iterator[str]:
    """Yield the settings that differ, with their former values; a missing one had the default.

    A newer version of Navi may have more settings.
    """
    for setting in settings_of(now):
        *sections, name = setting.name.split(".")
        former = reduce(lambda values, section: values.get(section) or {}, sections, then).get(name, setting.default)
        if former != setting.value:
            yield f"{setting.name} {former}"
