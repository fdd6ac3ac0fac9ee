"""Model registry: numbered, immutable model versions with lineage, and aliases that move between them.

    models/
    ├── registry.json    versions, aliases and the history of every alias; replaced in one step
    ├── v001.pt          copies of the registered checkpoints
    └── .registry.lock   held by the one process that changes something

`latest` moves by itself when a registered version's reward_ema exceeds that of the current latest and the two compare
(`models/lineage.py`); `champion`, like every other alias, moves only by `promote`. `rollback` gives an alias back to
the version that held it before; the history keeps what happened.
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import EllipsisType
from typing import Any

from navi_core.config import config_hash
from navi_core.errors import CheckpointError, RegistryError, did_you_mean
from navi_core.machine.file_lock import wait_for_lock
from navi_core.models.checkpoint import Checkpoint, TrainedFacts, load_checkpoint
from navi_core.models.lineage import same_rewards, why_latest_stays
from navi_core.models.registry_schema import ModelVersion, read_version, validate
from navi_core.record import MetricLog, navi_home, row_context
from navi_core.record.durable import sweep_left, write_durably

LATEST = "latest"
Versions = list[ModelVersion]
Moves = list[dict[str, str]]

_FORMAT = 1
_VERSION = re.compile(r"v\d{3,}")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]*")


class Registry:
    """Model registry in a folder, which may be empty or missing; nothing is created before the first registration.

    Args:
        path: The folder, by convention `models/` of the Navi home.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def register(
        self,
        checkpoint: Path | str,
        *,
        parents: Sequence[str] = (),
        metrics: Mapping[str, float | None] | None = None,
        notes: str = "",
        tags: Sequence[str] = (),
    ) -> str:
        """Register a checkpoint: copy it into the registry under the next version number.

        Registering the same weights of the same run again changes nothing and returns their version.

        Args:
            checkpoint: The checkpoint file.
            parents: Versions or aliases it was trained from.
            metrics: Finite numbers, or None.
            notes: Free text.
            tags: Free labels.

        Returns:
            The version, "v001", "v002", …

        Raises:
            CheckpointError: The checkpoint cannot be read.
            RegistryError: A parent does not exist, a metric is not a finite number, or nothing can be written.
        """
        loaded = load_checkpoint(checkpoint)
        numbers = {name: _finite(name, value) for name, value in (metrics or {}).items()}
        data = Path(checkpoint).read_bytes()
        with self._changing() as book:
            for version, entry in book["versions"].items():
                if entry["weights_hash"] == loaded.weights_hash and entry["run_id"] == loaded.run_id:
                    return str(version)
            version = f"v{1 + max((int(name[1:]) for name in book['versions']), default=0):03d}"
            entry = {
                "file": f"{version}.pt",
                "parents": [self._find(book, parent) for parent in parents],
                **{column.name: getattr(loaded, column.name) for column in fields(TrainedFacts)},
                "reward_ema": loaded.reward_ema if math.isfinite(loaded.reward_ema) else None,
                "file_hash": hashlib.sha256(data).hexdigest(),
                "config_hash": config_hash(loaded.train_config()),
                "created_at": _now(),
                "metrics": numbers,
                "notes": notes,
                "tags": list(tags),
            }
            # The copy comes first: a crash in between leaves a file that the next registration
            # replaces, never a version without its weights.
            with RegistryError.of_system(f"{self.path} cannot be written"):
                write_durably(self.path / f"{version}.pt", data)
            book["versions"][version] = entry
            if self._why_latest_stays(book, loaded) is None:
                self._move(book, LATEST, version, "register")
        return version

    def promote(
        self, version: str, alias: str = "champion", *, instead_of: str | EllipsisType | None = ...
    ) -> ModelVersion:
        """Promote a version: point an alias at it; a no-op if the version already holds the alias.

        Args:
            version: A version or an alias.
            alias: Lower-case name, not of the form of a version.
            instead_of: The version that has to hold the alias until now, None for nobody; left out, whoever does.

        Raises:
            RegistryError: No such version, not a valid alias, or another version holds it by now.
        """
        self.check_alias(alias)
        self._find(self._read(), version)  # before a folder is made for nothing
        with self._changing() as book:
            version = self._find(book, version)
            held = book["aliases"].get(alias, {"versions": []})["versions"]
            holder = held[-1] if held else None
            if holder != version:
                if instead_of is not ... and holder != instead_of:
                    raise RegistryError(
                        f"{version} was to follow {instead_of or 'nobody'} as {alias}, but {holder or 'nobody'} holds "
                        f"it by now; let it fly again: navi models promote {version} --alias {alias}"
                    )
                self._move(book, alias, version, "promote")
            return self._entry(book, version)

    @staticmethod
    def check_alias(alias: str) -> None:
        """Validate an alias name, before any work is done for it.

        Raises:
            RegistryError: The name has other characters than lower-case letters, or is of the form of a version.
        """
        if not _ALIAS.fullmatch(alias) or _VERSION.fullmatch(alias):
            raise RegistryError(f"{alias!r} cannot be an alias; use lower-case letters, e.g. champion")

    def rollback(self, alias: str = "champion") -> ModelVersion:
        """Roll an alias back to the version that held it before; the history keeps both moves.

        Raises:
            RegistryError: No such alias, or nothing held it before.
        """
        self.history(alias)
        with self._changing() as book:
            held = book["aliases"][alias]["versions"]
            if len(held) < 2:
                raise RegistryError(f"alias {alias!r} has only ever pointed at {held[-1]}; there is nothing to restore")
            held.pop()
            book["aliases"][alias]["history"].append({"action": "rollback", "version": held[-1], "at": _now()})
            return self._entry(book, held[-1])

    def why_latest_stays(self, checkpoint: Path | str) -> str | None:
        """Return why alias `latest` would not move to a checkpoint, None where it would.

        Raises:
            CheckpointError: The checkpoint cannot be read.
        """
        return self._why_latest_stays(self._read(), load_checkpoint(checkpoint))

    def resolve(self, name: str) -> ModelVersion:
        """Resolve a version number or alias to its model version.

        Raises:
            RegistryError: It does not exist, or its file is gone; the message names what exists.
        """
        book = self._read()
        entry = self._entry(book, self._find(book, name))
        if not entry.path.is_file():
            raise RegistryError(f"{entry.version} is registered, but its file {entry.path} is missing")
        return entry

    def list(self) -> Versions:
        """Return all model versions, oldest first."""
        book = self._read()
        return [self._entry(book, version) for version in book["versions"]]

    def lineage(self, version: str) -> Versions:
        """Return a version and all its ancestors, nearest first.

        Args:
            version: A version or an alias.

        Raises:
            RegistryError: It does not exist.
        """
        book = self._read()
        order = [self._find(book, version)]
        for name in order:  # grows while it is walked: breadth first
            order.extend(parent for parent in book["versions"][name]["parents"] if parent not in order)
        return [self._entry(book, name) for name in order]

    def aliases(self) -> dict[str, str]:
        """Return the mapping of aliases to versions."""
        return {alias: state["versions"][-1] for alias, state in sorted(self._read()["aliases"].items())}

    def history(self, alias: str) -> Moves:
        """Return an alias's history, oldest first: action (register, promote, rollback), version, at.

        Raises:
            RegistryError: No such alias.
        """
        book = self._read()
        if alias not in book["aliases"]:
            raise RegistryError(f"no alias {alias!r}; {_existing(book, alias)}")
        return [dict(move) for move in book["aliases"][alias]["history"]]

    def _find(self, book: dict[str, Any], name: str) -> str:
        if name in book["versions"]:
            return name
        if name in book["aliases"]:
            return str(book["aliases"][name]["versions"][-1])
        hint = did_you_mean(name, [*book["aliases"], *book["versions"]])
        raise RegistryError(f"no model {name!r} in {self.path}; {hint}{_existing(book, name)}")

    def _entry(self, book: dict[str, Any], version: str) -> ModelVersion:
        aliases = (alias for alias, state in book["aliases"].items() if state["versions"][-1] == version)
        return read_version(self.path, version, book["versions"][version], aliases)

    def _why_latest_stays(self, book: dict[str, Any], new: Checkpoint) -> str | None:
        """Apply `why_latest_stays` to the last `latest` version of equal reward terms, else to the current one."""
        current: Checkpoint | None = None
        unlike: set[str] = set()
        versions = book["aliases"].get(LATEST, {"versions": []})["versions"]
        for version in reversed(versions):
            entry = book["versions"][version]
            if entry["config_hash"] in unlike:
                continue  # of the same settings as one that was looked at: hundreds of holders are a few files
            try:
                holder = load_checkpoint(self.path / entry["file"])
                if same_rewards(new.train_config(), holder.train_config()):
                    return why_latest_stays(new, holder)
            except CheckpointError:
                # What cannot be read, by this Navi at least, can be neither flown nor trained on.
                continue
            unlike.add(entry["config_hash"])
            current = current or holder
        if current is not None:
            return why_latest_stays(new, current)
        return None if not versions or math.isfinite(new.reward_ema) else "the new one has no reward"

    @staticmethod
    def _move(book: dict[str, Any], alias: str, version: str, action: str) -> None:
        state = book["aliases"].setdefault(alias, {"versions": [], "history": []})
        state["versions"].append(version)
        state["history"].append({"action": action, "version": version, "at": _now()})

    def _read(self) -> dict[str, Any]:
        file = self.path / "registry.json"
        try:
            book = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"format": _FORMAT, "versions": {}, "aliases": {}}
        except (OSError, ValueError, RecursionError) as error:
            raise RegistryError(f"{file} cannot be read: {error}") from None
        if not isinstance(book, dict) or book.get("format") != _FORMAT:
            raise RegistryError(f"{file} is not a registry of format {_FORMAT}")
        fault = validate(book)
        if fault is not None:
            raise RegistryError(f"{file} is broken: {fault}; take it from a backup, or move it away to begin anew")
        return book

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Context manager of a registry transaction: lock, load, and save if changed without an error."""
        with contextlib.ExitStack() as held:
            with RegistryError.of_system(f"{self.path} cannot be used as a registry"):
                held.enter_context(wait_for_lock(self.path / ".registry.lock"))
            sweep_left(self.path)
            book = self._read()
            before = json.dumps(book)
            yield book
            after = json.dumps(book, indent=1, allow_nan=False)
            if json.dumps(book) != before:
                fault = validate(book)
                if fault is not None:
                    raise RegistryError(f"{self.path}: refused, it would break the registry: {fault}")
                with RegistryError.of_system(f"{self.path} cannot be written"):
                    write_durably(self.path / "registry.json", after.encode())


def _existing(book: dict[str, Any], wanted: str) -> str:
    versions = ", ".join(book["versions"]) or "none"
    aliases = ", ".join(f"{a} → {state['versions'][-1]}" for a, state in sorted(book["aliases"].items())) or "none"
    first = ""
    if not book["versions"]:
        first = "; `navi train ppo --preset quick` makes the first"
    elif wanted == "champion":
        first = "; `navi models promote VERSION` lets one become champion"
    return f"versions: {versions}; aliases: {aliases}{first}"


def _finite(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RegistryError(f"metric {name!r} is {value!r}, must be a finite number or None")
    return number


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


_COPIED = (
    "version", "run_id", "weights_hash", "file_hash", "parents", "training_source", "encoder_backend", "temporal_core",
    "decision_hz", "episode_count", "reward_ema", "metrics", "notes", "tags", "created_at", "config_hash",
)  # fmt: skip


def record_registry(registry: Registry, home: Path | None = None) -> list[dict[str, Any]]:
    """Export the registry to the metric outbox: versions to table `models`, alias moves to `alias_moves`.

    A row that was written before is replaced by the same row. All are durable when this returns. A registry outside of
    the home has no warehouse, and nothing is written.

    Args:
        registry: Whose versions and moves.
        home: The Navi home; by default `$NAVI_HOME`.

    Returns:
        The rows of `models`.

    Raises:
        RecordError: The rows could not be written.
    """
    rows = [_row(entry) for entry in registry.list()]
    home = home or navi_home()
    if registry.path.absolute() != (home / "models").absolute():
        return rows
    log = MetricLog(home / "outbox", "registry", row_context())
    for row in rows:
        log.row("models", row)
    for alias in registry.aliases():
        for move in registry.history(alias):
            moved = {"alias": alias, "version": move["version"], "moved_at": move["at"], "action": move["action"]}
            log.row("alias_moves", moved)
    log.flush()
    return rows


def _row(entry: ModelVersion) -> dict[str, Any]:
    data = entry.as_dict()
    row = {name: data[name] for name in _COPIED}
    return row | {"step": entry.step_id, "checkpoint": str(entry.path), "revision": entry.code_revision}
