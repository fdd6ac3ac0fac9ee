"""History of a run for viewers: its whole curve, state and progress, read from the run's folder while it grows.

The curve is that of the TensorBoard files, which belong to one run and survive a compaction of the warehouse. Files of
very long runs are thinned while they are read. `status.json` of the folder names the end of a run. A run whose lock is
free without an end was killed, or refused if its training had not begun.
"""

import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from navi_core.machine.file_lock import is_locked
from navi_core.record.home import navi_home
from navi_core.record.run_directory import STATUS_FILE, run_lock
from navi_core.record.thinned_curve import ThinnedCurve

_POINTS = 400
"""Most points of a curve."""
_HEAD, _TAIL = struct.Struct("<Q4x"), 4
"""Frame of a TFRecord: length and its checksum before the data, the data's checksum behind."""
_WHOLE_BYTES = 1 << 23
"""Size up to which every update of a file is read [bytes]; that is some thousands."""
_RECENT = 8
"""Updates whose median speed gives the time left."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields of a protobuf message: bytes, or whole numbers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        yield tag >> 3, data[at : at + size]
        at += size


def _scalars(event: bytes) -> tuple[int, dict[str, float]]:
    """Return step and scalars of a TensorBoard event."""
    step, values = 0, {}
    for number, value in _fields(event):
        if number == 2:
            step = value
        elif number == 5:
            for _, one in _fields(value):
                parts = dict(_fields(one))
                if 1 in parts and 2 in parts:
                    values[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
    return step, values


@dataclass
class RunHistory:
    """Curve and state of a run, read from its folder; `read` takes in what was written since.

    Attributes:
        folder: The run's folder.
        curve: Metrics over the decisions of the run, thinned.
    """

    folder: Path
    curve: ThinnedCurve = field(default_factory=lambda: ThinnedCurve(_POINTS))
    _read: dict[Path, int] = field(default_factory=dict)
    """Bytes read of each file."""
    _config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run_id: str) -> "RunHistory":
        """Return the history of a run in the Navi home; the folder may be missing."""
        return cls(navi_home() / "runs" / run_id)

    def read(self) -> bool:
        """Take in what was written since; return whether there was anything."""
        files = sorted((self.folder / "tensorboard").glob("events.out.tfevents.*"))
        sizes = {file: file.stat().st_size for file in files if file.exists()}
        if any(sizes.get(file, -1) < size for file, size in self._read.items()):
            # The run was started anew in another folder of the same name.
            self.curve, self._read, self._config = ThinnedCurve(_POINTS), {}, {}
        found = False
        for file, size in sizes.items():
            if size > self._read.get(file, 0):
                found |= self._take(file)
        return found

    def _take(self, file: Path) -> bool:
        """Take in the whole records of a file from where it was read to."""
        began = at = self._read.get(file, 0)
        step: int | None = None
        values: dict[str, float] = {}
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = len(data)
            # Of a long file whole updates are left out.
            keep = 1 + (end - at) // _WHOLE_BYTES
            number = 0
            while at + _HEAD.size <= end:
                (size,) = _HEAD.unpack_from(data, at)
                begin, after = at + _HEAD.size, at + _HEAD.size + size + _TAIL
                if after > end:
                    break
                at = after
                # Wall time (tag, 8 bytes), then the step (tag, varint); a file's first event has no step.
                here = _varint(data, begin + 10)[0] if data[begin + 9] == 0x10 else None  # type: ignore[arg-type]
                if here is None:
                    continue
                if here != step:
                    if step is not None and values:
                        self.curve.take(float(step), values)
                    step, values, number = here, {}, number + 1
                if number % keep == 0:
                    values |= _scalars(data[begin : begin + size])[1]
            if step is not None and values:
                self.curve.take(float(step), values)
        self._read[file] = at
        return at > began

    def facts(self) -> dict[str, Any]:
        """Return what the run is and how far it got, as JSON data.

        Returns:
            `state` as `run_state`; `reason` of the end; `algorithm`, `preset`, `seed`, `scenes` (names), `parent`
            (initial weights, None for new ones); `step`, `total` (None: until stopped) of whole rollouts, `asked` as
            set, `rollout` [decisions], `percent`, `seconds_left`.
        """
        if not self._config:
            self._config = _json(self.folder / "config.json")
        settings, status = self._config.get("config", {}), _json(self.folder / STATUS_FILE)
        corpus = (settings.get("corpus") or {}).get("scenes") or []
        steps, series = self.curve.steps, self.curve.series
        step, asked = int(steps[-1]) if steps else 0, settings.get("total_steps")
        # Rollouts are whole: a run ends with the one in which it reaches its total.
        rule = settings.get(settings.get("algorithm")) or {}
        size = rule.get("rollout", 1) * settings.get("actors", 1)
        total = asked and -(-asked // size) * size
        speeds = [speed for speed in series.get("sps", [])[-_RECENT:] if speed]
        return {
            "run": self.folder.name,
            "state": run_state(self.folder, complete=bool(total and step >= total)) if self._config else None,
            "reason": status.get("reason"),
            "algorithm": settings.get("algorithm"),
            "preset": self._config.get("partition"),
            "seed": settings.get("seed"),
            "scenes": status.get("scenes") or [Path(name).stem for name in corpus],
            "parent": status.get("parent"),
            "step": step,
            "total": total,
            "asked": asked,
            "rollout": size,
            "percent": min(100.0, 100.0 * step / total) if total else None,
            "seconds_left": max(0, total - step) / median(speeds) if total and speeds else None,
        }


def run_state(folder: Path, *, complete: bool = False) -> str | None:
    """Return the state of a run: running, finished, stopped, crashed, or refused if it ended before its training began.

    Args:
        folder: The run's folder; None is returned where it is missing.
        complete: The curve reaches its end: runs of earlier versions have no status file.
    """
    if not (folder / "config.json").exists():
        return None
    state = _json(folder / STATUS_FILE).get("status")
    if state in ("finished", "stopped"):
        return str(state)
    if is_locked(run_lock(folder.parent, folder.name)):
        return "running"
    if state is None and not any((folder / "tensorboard").glob("events.*")):
        return "refused"
    return "crashed" if state else "finished" if complete else "stopped"


def listed_runs(most: int = 12) -> dict[str, str | None]:
    """Return the runs of the Navi home with their states, the last written first."""
    folder = navi_home() / "runs"
    found = [(path.stat().st_mtime, path.parent.name) for path in folder.glob("*/config.json") if path.exists()]
    names = [name for _, name in sorted(found, reverse=True) if ".old-" not in name][:most]
    return {name: run_state(folder / name) for name in names}


def _json(file: Path) -> dict[str, Any]:
    """Read a small JSON object; empty where it is missing or not whole."""
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
