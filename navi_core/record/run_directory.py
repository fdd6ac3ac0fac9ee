"""Run directory: folder of one training run, keyed by its configuration hash and locked by one process.

    <root>/<asset>-<partition>-<config hash>/
        config.json       the full resolved configuration
        checkpoints/      the learner's states; kept when the run is opened again
        tensorboard/      its scalars for TensorBoard
        cpu_seconds.json  processor time of all its starts
        status.json       running, finished or stopped, with scenes and initial weights, for viewers
    <root>/.locks/<run id>.lock   held by flock while a process works on the run; names its pid

The key holds the configuration's hash, so a changed setting is another run, and the same command
given twice is the same run, which continues from its last checkpoint.

A folder can be removed: a run's rows stay in the warehouse, and its registered versions in the registry, which has
copies of their files. The folder is needed to continue the run, and for its checkpoints, log and TensorBoard files.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from navi_core.config import Config, config_hash
from navi_core.errors import RecordError, RunError, as_argument
from navi_core.machine.file_lock import acquire_lock, hold_lock, is_locked
from navi_core.record.durable import Closing, write_durably
from navi_core.record.measurement import row_context
from navi_core.record.metric_log import MetricLog, TensorBoardWriter

_LOG = logging.getLogger("navi.record")
STATUS_FILE = "status.json"
_KEY = re.compile(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+)*")


class RunDirectory(Closing):
    """Locked directory of one training run; open it with `RunDirectory.open`, or use it as a context manager.

    Attributes:
        path: The run's folder.
        run_id: Stable name, `<asset>-<partition>-<config hash>`.
        asset: Kind of product, for example `ppo_policy`.
        partition: Partition of it, for example a profile's name.
        config: The configuration the run was opened with.
        fresh: True when no earlier state of this run was kept.
    """

    def __init__(
        self, root: Path, run_id: str, asset: str, partition: str, config: Config, lock: int, fresh: bool
    ) -> None:
        self.path = root / run_id
        self.run_id = run_id
        self.asset = asset
        self.partition = partition
        self.config = config
        self.fresh = fresh
        self._lock: int | None = lock

    @classmethod
    def open(cls, root: Path | str, *, asset: str, partition: str, config: Config, fresh: bool = False) -> Self:
        """Open or create the run's directory and acquire its lock.

        Args:
            root: Folder of all runs; made if missing.
            asset: Kind of product; letters, digits, `_`, `.` and `-`.
            partition: Partition of it; same characters.
            config: Full configuration; its hash is part of the key: any other setting, also the run's length,
                makes another run, which may begin with the weights of this one (`train(initial=…)`).
            fresh: Start anew; an earlier folder is moved aside to `<run id>.old-<time>`, never deleted.

        Returns:
            The locked run directory.

        Raises:
            RunError: Another process holds the run (its pid is named), the key has other characters, or
                the folder's config.json is broken or belongs to another configuration.
        """
        for what, value in (("asset", asset), ("partition", partition)):
            if not _KEY.fullmatch(value):
                raise RunError(f"{what} {value!r} cannot name a folder; use letters, digits, '_', '.' and '-'")
        root = Path(root).absolute()
        digest = config_hash(config)
        run_id = f"{asset}-{partition}-{digest}"
        with RunError.of_system(f"cannot make the runs folder {root}"):
            lock = acquire_lock(run_lock(root, run_id), f"run {run_id}")
        try:
            path = root / run_id
            if fresh and path.exists():
                path.rename(_aside(path))
            kept = (path / "config.json").exists()
            run = cls(root, run_id, asset, partition, config, lock, fresh=not kept)
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            if kept:
                run._check(digest)
            else:
                run._unforgotten.touch()
                run._write_config(digest)
                if not fresh and (learned := learned_by_other_code(path, config)) is not None:
                    _LOG.warning(
                        "%s is a new run: another version of Navi, with fewer or other settings, began %s with the "
                        "settings of this command. next: to start from its weights: --partition again --from %s",
                        run_id,
                        learned.parents[1].name,
                        as_argument(learned),
                    )
            return run
        except OSError as error:
            os.close(lock)
            raise RunError(f"cannot prepare the run directory {root / run_id}: {error}") from error
        except BaseException:
            os.close(lock)
            raise

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoint files."""
        return self.path / "checkpoints"

    def metric_log(self, outbox: Path | None = None) -> MetricLog:
        """Create a metric log whose rows carry this run's context.

        Rows of an earlier start of the same run are dropped at ingest when the directory is fresh, so
        that a fresh start never mixes with the rows of the one it replaces. The mark in the folder
        outlives a kill between making the folder and writing the first row. Scalars also go to TensorBoard files in
        the run's folder, where TensorBoard is installed.

        Args:
            outbox: Segment folder; by default the outbox of `$NAVI_HOME`.
        """
        from navi_core.record.home import outbox_path

        seed, digest = getattr(self.config, "seed", None), config_hash(self.config)
        context: dict[str, Any] = {"seed": seed, **row_context(), "config_hash": digest}
        log = MetricLog(outbox or outbox_path(), self.run_id, context)
        try:
            board = TensorBoardWriter(self.path / "tensorboard")
            log.observe(board.scalars, board.close)
        except RecordError as error:
            _LOG.warning("no TensorBoard files are written: %s", error)
        if self._unforgotten.exists():
            log.forget()
            self._unforgotten.unlink(missing_ok=True)
        return log

    def write_status(self, status: str, **facts: object) -> None:
        """Write the run's state and facts about it for viewers; a full disk ends no run."""
        with contextlib.suppress(OSError):
            write_durably(self.path / STATUS_FILE, (json.dumps({"status": status, **facts}) + "\n").encode())

    def close(self) -> None:
        """Release the run's lock; the directory stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def _unforgotten(self) -> Path:
        return self.path / ".forget-earlier-rows"

    def _write_config(self, digest: str) -> None:
        record = {
            "run_id": self.run_id,
            "asset": self.asset,
            "partition": self.partition,
            "config_hash": digest,
            "config_class": type(self.config).__name__,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "config": self.config.model_dump(mode="json"),
        }
        write_durably(self.path / "config.json", (json.dumps(record, indent=2) + "\n").encode())

    def _check(self, digest: str) -> None:
        file = self.path / "config.json"
        try:
            found = json.loads(file.read_text())["config_hash"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RunError(f"{file} is broken ({error}); move the folder away, or start with --fresh") from error
        if found != digest:
            raise RunError(f"{self.path} was made by configuration {found}, not {digest}; start with --fresh")


def run_lock(root: Path, run_id: str) -> Path:
    """Return the path of a run's lock file, locked by the process that works on the run."""
    return root / ".locks" / f"{run_id}.lock"


def _aside(path: Path) -> Path:
    name = f"{path.name}.old-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(free for free in map(path.with_name, names) if not free.exists())


_BEST = "best.pt"
"""Best checkpoint of a clone, kept beside its last ones."""


def learned_by_other_code(path: Path, config: Config) -> Path | None:
    """Find the last checkpoint of an equally configured run of another Navi version (by settings known to both).

    Args:
        path: Folder of the new run, `<asset>-<partition>-<hash>`.
        config: Its configuration.

    Returns:
        The best checkpoint of a clone, else the run's last one; None where there is no such run, or it has none.
    """
    stem, _, digest = path.name.rpartition("-")
    found: list[tuple[float, Path]] = []
    for file in path.parent.glob(f"{stem}-{'[0-9a-f]' * len(digest)}/config.json"):
        if file.parent == path:
            continue
        try:
            if _agree(json.loads(file.read_text())["config"], config):
                # Within a run the steps in the names count, whatever times a copy has given the files.
                kept = sorted(file.parent.glob("checkpoints/*.pt"), key=lambda each: (each.name == _BEST, each.name))
                found += [(each.stat().st_mtime, each) for each in kept[-1:]]
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            continue  # broken, or gone meanwhile
    return max(found, default=(0.0, None))[1]


def _agree(then: dict[str, Any], now: Config) -> bool:
    """Compare a stored configuration with the current one; return whether the settings known to both are equal.

    A setting that is written only if set counts as known to both.
    """
    settings = now.model_dump(mode="json")
    for name, field in type(now).model_fields.items():
        if name not in then and field.exclude_if is None:
            continue
        inner = getattr(now, name)
        if isinstance(inner, Config) and name in then:
            if not _agree(then[name], inner):
                return False
        elif then.get(name) != settings.get(name):
            return False
    return True


_ASIDE = ".old-"
_REMOVED = ".removed-"


@dataclass(frozen=True)
class RunFolder:
    """Directory entry of one run: name, dates, size, lock state.

    Attributes:
        name: Of the folder: the run's id, with `.old-<time>` behind it where a fresh start put it aside.
        created_at: When the run began, UTC; None where its config.json is broken.
        changed: When its newest file was written [s since 1970].
        size: Bytes of all its files.
        replays: Bytes of replays among them, needed only to continue the run.
        in_use: Whether a process works on it.
    """

    name: str
    created_at: str | None
    changed: float
    size: int
    replays: int
    in_use: bool


def run_folders(root: Path) -> list[RunFolder]:
    """List the run directories, largest first."""
    found = [_facts(root, path) for path in root.iterdir() if _is_run(path)] if root.is_dir() else []
    return sorted(found, key=lambda folder: (-folder.size, folder.name))


def find_run_folder(root: Path, name: str) -> RunFolder:
    """Look up a run's directory by name.

    Args:
        root: Folder of all runs.
        name: Of the folder.

    Raises:
        RunError: There is no such run.
    """
    return _facts(root, _find(root, name))


def remove_run_folder(root: Path, name: str) -> int:
    """Delete a run's directory and return its size [bytes].

    It is renamed before it is emptied, so that a kill leaves no partial run; the next removal deletes the rest.

    Args:
        root: Folder of all runs.
        name: Of the folder, as in `run_folders`.

    Raises:
        RunError: There is no such run, a process holds it, or it cannot be removed.
    """
    path = _find(root, name)
    run_id = name.partition(_ASIDE)[0]
    with RunError.of_system(f"{path}: cannot be removed"), hold_lock(run_lock(root, run_id), f"run {run_id}"):
        size = _facts(root, path).size
        path.rename(root / f".{name}{_REMOVED}{os.getpid()}")
        for rest in root.glob(f".*{_REMOVED}*"):
            shutil.rmtree(rest)
    return size


def _find(root: Path, name: str) -> Path:
    path = root / name
    if Path(name).name != name or not _is_run(path):
        raise RunError(f"no run {name!r} in {root}; see them with: navi runs list")
    return path


def _is_run(path: Path) -> bool:
    # Not a link: its target may not be removed.
    return not path.name.startswith(".") and path.is_dir() and not path.is_symlink() and (path / "config.json").exists()


def _facts(root: Path, path: Path) -> RunFolder:
    sizes = [(file.name, file.lstat()) for file in path.rglob("*") if file.is_symlink() or not file.is_dir()]
    try:
        created = str(json.loads((path / "config.json").read_text())["created_at"])
    except (OSError, ValueError, KeyError, TypeError):
        created = None
    return RunFolder(
        name=path.name,
        created_at=created,
        changed=max(stat.st_mtime for _, stat in sizes),
        size=sum(stat.st_size for _, stat in sizes),
        replays=sum(stat.st_size for name, stat in sizes if name.endswith(".replay")),
        in_use=_ASIDE not in path.name and is_locked(run_lock(root, path.name)),
    )
