"""Optuna components of a study: crash-safe journal or SQL storage, sampler, pruner."""

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from optuna import samplers
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from navi_core.errors import ConfigError, RecordError, install_command
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
    """Open the Optuna storage of a study; a journal's incomplete last line is truncated by the next writer.

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
                f"postgresql+psycopg://user@host/navi ({install_command('postgres')})"
            ) from error
        except SQLAlchemyError as error:
            raise RecordError(f"the study's storage cannot be opened: {str(error).splitlines()[0]}") from error
    file = study_folder(config.name) / "journal.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(file), lock_obj=_JournalLock(file)))  # type: ignore[arg-type]


class _JournalLock:
    """Journal lock for Optuna, held as a file lock of the kernel, which releases it when the writer is killed.

    Acquiring the lock truncates an incomplete line of a killed writer, as no process writes while the lock is held.
    Optuna's readers, which do not take the lock, pass over such a line.
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
        with journal.open("ab+") as file:
            size = file.tell()
            file.seek(max(0, size - 1))
            if file.read() in (b"", b"\n"):
                return 0
            file.seek(0)
            keep = file.read().rfind(b"\n") + 1
            file.truncate(keep)
            os.fsync(file.fileno())
            return size - keep
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
    """Create the pruner of a study: Hyperband (Li et al. 2018), or none."""
    if config.pruning is None:
        return NopPruner()
    least, steps = config.pruning.min_steps, trial_config(config, {}).total_steps
    return HyperbandPruner(least, "auto" if steps is None else max(steps, least), config.pruning.reduction_factor)
