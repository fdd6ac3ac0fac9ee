"""Storage of a study: a journal that survives a writer's death, or an SQL server."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import ConfigError, RecordError
from navi_core.machine.file_lock import wait_for_lock
from navi_core.record import navi_home
from navi_pipeline.settings import StudyConfig

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_CHUNK = 1 << 16


def studies_folder() -> Path:
    """Return the folder of studies, `studies/` of the Navi home."""
    return navi_home() / "studies"


def study_folder(name: str) -> Path:
    """Return the folder of a study: study.json, journal.log, workers/."""
    return studies_folder() / name


def open_storage(config: StudyConfig) -> BaseStorage:
    """Open the storage of a study; a journal's torn last line is cut off.

    Raises:
        ConfigError: The storage is no SQL address.
        RecordError: The storage cannot be opened.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

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
    # A reader does not take the lock, so what a writer left half done is mended before anybody reads.
    lock.acquire()
    lock.release()
    return JournalStorage(JournalFileBackend(str(file), lock_obj=lock))


class _JournalLock:
    """The journal's lock: held by the kernel, so a writer that is killed does not keep it.

    Whoever takes it first cuts off what a killed writer left of a line: with the lock held nobody is writing.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file = journal.with_suffix(".lock")
        self._held = ExitStack()

    def acquire(self) -> bool:
        with ExitStack() as held:
            held.enter_context(wait_for_lock(self._file))
            repair_journal(self._journal)
            self._held = held.pop_all()
        return True

    def release(self) -> None:
        self._held.close()


def repair_journal(journal: Path) -> int:
    """Cut off what stands behind the last line's end; the caller holds the journal's lock.

    Returns:
        Bytes cut off.
    """
    try:
        with journal.open("rb+") as file:
            size = keep = file.seek(0, os.SEEK_END)
            while keep:
                begin = max(0, keep - _CHUNK)
                file.seek(begin)
                end = file.read(keep - begin).rfind(b"\n")
                if end >= 0:
                    keep = begin + end + 1
                    break
                keep = begin
            if keep < size:
                file.truncate(keep)
                os.fsync(file.fileno())
            return size - keep
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RecordError(f"cannot mend the journal {journal}: {error.strerror or error}") from error
