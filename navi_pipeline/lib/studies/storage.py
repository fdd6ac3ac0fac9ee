"""Optuna components of a study: crash-safe journal or SQL storage, sampler, pruner."""

import binascii
import math
import mmap
import os
import warnings
from collections.abc import Callable, Container
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

from optuna import Study, samplers
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from navi_core.errors import ConfigError, RecordError
from navi_core.machine.file_lock import wait_for_lock
from navi_core.record import navi_home
from navi_pipeline.lib.studies.catalogue import trial_config
from navi_pipeline.settings import StudyConfig

_SAMPLERS: dict[str, Callable[..., samplers.BaseSampler]] = {
    "random": samplers.RandomSampler,
    "gp": samplers.GPSampler,
    "nsga2": samplers.NSGAIISampler,
}


def study_folder(name: str) -> Path:
    """Return the folder of a study: study.json, journal.log, workers/."""
    return navi_home() / "studies" / name


def open_storage(config: StudyConfig) -> BaseStorage:
    """Open the Optuna storage of a study; a journal's incomplete last line is truncated.

    Raises:
        ConfigError: The storage is no SQL address.
        RecordError: The storage cannot be opened.
    """
    address = os.environ.get("NAVI_STUDY_STORAGE") or config.storage
    if address is not None:
        try:
            return RDBStorage(address, engine_kwargs={"pool_pre_ping": True})
        except (ArgumentError, ImportError) as error:
            raise ConfigError(
                f"the study's storage cannot be used: {error}; allowed: an SQL address such as "
                "postgresql+psycopg://user@host/navi (pip install -e '.[postgres]')"
            ) from error
        except SQLAlchemyError as error:
            raise RecordError(f"the study's storage cannot be opened: {str(error).splitlines()[0]}") from error
    file = study_folder(config.name) / "journal.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock: Any = _JournalLock(file)
    # A reader does not take the lock, so an unfinished line is cut off before anybody reads.
    lock.acquire()
    lock.release()
    return JournalStorage(JournalFileBackend(str(file), lock_obj=lock))


class _JournalLock:
    """Journal lock for Optuna, held as a file lock of the kernel, which releases it when the writer is killed.

    Acquiring the lock truncates an incomplete line of a killed writer, as no process writes while the lock is held.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._held = ExitStack()

    def acquire(self) -> bool:
        with ExitStack() as held:
            held.enter_context(wait_for_lock(self._journal.with_suffix(".lock")))
            repair_journal(self._journal)
            self._held = held.pop_all()
        return True

    def release(self) -> None:
        self._held.close()


def repair_journal(journal: Path) -> int:
    """Truncate a journal's incomplete last line; the caller holds the journal's lock.

    Returns:
        Bytes cut off.
    """
    try:
        with journal.open("rb+") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return 0  # an empty file cannot be mapped
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
                keep = text.rfind(b"\n") + 1
            if keep < size:
                file.truncate(keep)
                os.fsync(file.fileno())
            return size - keep
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RecordError(f"cannot mend the journal {journal}: {error.strerror or error}") from error


def study_sampler(config: StudyConfig, slot: int) -> samplers.BaseSampler:
    """Create the sampler for one slot, seeded by the study's seed and the slot."""
    seed = (config.seed * 1_000_003 + slot) % 2**31
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if config.sampler == "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(2, config.trials // 3)))
        return _SAMPLERS[config.sampler](seed=seed)


def study_pruner(config: StudyConfig) -> BasePruner:
    """Create the pruner of a study: Hyperband over slots, or none."""
    if config.pruning is None:
        return NopPruner()
    steps = trial_config(config, {}).total_steps
    return SlotHyperband(
        min_resource=config.pruning.min_steps,
        max_resource=None if steps is None else max(steps, config.pruning.min_steps),
        reduction_factor=config.pruning.reduction_factor,
    )


class SlotHyperband(BasePruner):
    """Hyperband pruner (Li et al. 2018) that assigns brackets by slot; lost attempts do not compete.

    Optuna's own assigns the bracket by trial number, which differs between attempts at a slot, and lets failed trials
    compete. Each bracket is Optuna's successive halving over the trials of its slots.

    Args:
        min_resource: Steps of the first rung of the first bracket.
        max_resource: Steps of a whole trial; None takes those of the first complete one.
        reduction_factor: Fraction of the trials that a rung promotes is 1 / reduction_factor.
    """

    def __init__(self, min_resource: int, max_resource: int | None, reduction_factor: int) -> None:
        self._least, self._most, self._factor = min_resource, max_resource, reduction_factor

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial is to be pruned at its latest intermediate value."""
        bracket = self.bracket(study, trial)
        if bracket is None:
            return False
        halving = SuccessiveHalvingPruner(self._least, self._factor, min_early_stopping_rate=bracket)
        rivals: Any = _Rivals(study, lambda other: self.bracket(study, other) == bracket)
        return halving.prune(rivals, trial)

    def bracket(self, study: Study, trial: FrozenTrial) -> int | None:
        """Return the bracket of a trial: None for a lost attempt, and while the length of a trial is unknown."""
        if self._most is None:
            complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            self._most = next((one.last_step + 1 for one in complete if one.last_step is not None), None)
        if self._most is None or trial.user_attrs.get("outcome") == "lost":
            return None
        brackets = math.floor(math.log(self._most / self._least, self._factor)) + 1
        # Their sizes are those of the paper's algorithm 1, as Optuna takes them.
        sizes = [math.ceil(brackets * self._factor**s / (s + 1)) for s in reversed(range(brackets))]
        slot = trial.user_attrs.get("slot", trial.number)
        place = binascii.crc32(f"{study.study_name}_{slot}".encode()) % sum(sizes)
        return next(number for number, end in enumerate(accumulate(sizes)) if place < end)


class _Rivals:
    """Study that shows some of its trials alone."""

    def __init__(self, study: Study, among: Callable[[FrozenTrial], bool]) -> None:
        self._study, self._among = study, among

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy, states) if self._among(trial)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._study, name)  # what successive halving asks of its study besides
