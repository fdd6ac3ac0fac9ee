"""Demonstration file: observations and a teacher's actions, one `.npz` per recording.

The file is a compressed `.npz`:

| array | type | meaning |
|---|---|---|
| observations | (N, 3, Az, El) float32 | normalised depth, semantic id, valid; before each decision |
| actions | (N, 4) float32 in [−1, 1] | forward, vertical, lateral, yaw: the teacher's label |
| episode_starts | (N,) bool | the first decision of each episode; the first of all is one |
| format_version | int | 1 |
| scene | text | name of the scene |
| azimuth_bins, elevation_bins | int | Az, El |
| recording_date | text | ISO 8601, UTC |
| decision_hz | float | decisions per second [Hz] |
| limits | (4,) float | speed of action 1 on each axis: forward, vertical, lateral [m/s], yaw [rad/s] |
| max_distance | float, optional | range of the sensor, M [m]; 100 where absent |
| flown | (N, 4) float32, optional | executed actions, where noise or a student flew instead of the labels |
| pilot, scene_hash, source_hash | text, optional | name of the pilot; hashes of the scene's content and of its source |
| vocabulary | text, optional | semantic names by id, as JSON {name: id} |
"""

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from navi_core.demos.archive import ArrayHeader, read_arrays, read_headers, require_memory
from navi_core.errors import DemoError
from navi_core.record import write_durably
from navi_core.record.durable import durable_file, fsync_directory

FORMAT_VERSION = 1
MAX_BYTES = 8 * 2**30
"""Largest observation array of one file [B]."""
TEXT_BYTES = 1 << 20
"""Longest text of a file [B]."""
_BLOCK = 256
"""Decisions that are checked at a time."""
_REQUIRED = (
    "observations", "actions", "episode_starts", "format_version", "scene", "azimuth_bins", "elevation_bins",
    "recording_date", "decision_hz", "limits",
)  # fmt: skip
_OPTIONAL = ("flown", "max_distance", "pilot", "scene_hash", "source_hash", "vocabulary")


@dataclass(frozen=True)
class Demonstration:
    """Recording of N decisions (observation and action pairs) of a teacher; validated on construction.

    Raises:
        DemoError: A field has another shape or type, is not finite or out of range.
    """

    observations: npt.NDArray[np.float32]
    """(N, 3, Az, El) as the environment gives them."""
    actions: npt.NDArray[np.float32]
    """(N, 4) in [−1, 1]."""
    episode_starts: npt.NDArray[np.bool_]
    """(N,) true at the first decision of an episode."""
    scene: str
    """Name of the scene."""
    decision_hz: float
    """Decisions per second [Hz]."""
    limits: tuple[float, float, float, float]
    """Speeds of action 1: forward, vertical, lateral [m/s], yaw [rad/s]."""
    recording_date: str
    """ISO 8601, UTC."""
    max_distance: float = 100.0
    """Range of the sensor, M [m]."""
    pilot: str = ""
    """Name of the pilot that labelled."""
    scene_hash: str = ""
    """Content hash of the scene."""
    source_hash: str = ""
    """Hash of what the scene was compiled from; no part of the content."""
    vocabulary: dict[str, int] = field(default_factory=dict)
    """Semantic id by name."""
    flown: npt.NDArray[np.float32] | None = None
    """(N, 4) executed actions, where noise or a student flew instead of the labels; else None."""
    source: Path = Path("recording")
    """File it was read from, for error messages."""

    def __post_init__(self) -> None:
        self._check_observations()
        self._check_actions("actions", self.actions)
        if self.flown is not None:
            self._check_actions("flown", self.flown)
        starts = self.episode_starts
        if starts.shape != (len(self.observations),) or starts.dtype != np.bool_:
            self._refuse("episode_starts", f"{starts.dtype} {starts.shape}, expected bool ({len(self.observations)},)")
        if not starts[0]:
            self._refuse("episode_starts", "the first decision of a file must begin an episode")
        for name, number in self.vocabulary.items():
            if not isinstance(name, str) or type(number) is not int or not 1 <= number < 65_536:
                self._refuse("vocabulary", f"{name!r}: {number!r}; expected a name and an id of 1 to 65535")
        rate, speeds, most = self.decision_hz, self.limits, self.max_distance
        checks = (
            ("decision_hz", 0 < rate <= 10_000, f"{rate} decisions per second; expected (0, 10000]"),
            ("limits", [0 < v <= 1000 for v in speeds] == [True] * 4, f"{speeds}; expected four speeds in (0, 1000]"),
            ("max_distance", 0 < most <= 1e5, f"{most} m; expected (0, 100000]"),
            ("vocabulary", len(set(self.vocabulary.values())) == len(self.vocabulary), "two names share an id"),
        )
        for name, holds, reason in checks:
            if not holds:
                self._refuse(name, reason)

    @property
    def azimuth_bins(self) -> int:
        """Number of azimuth bins (Az)."""
        return int(self.observations.shape[2])

    @property
    def elevation_bins(self) -> int:
        """Number of elevation bins (El)."""
        return int(self.observations.shape[3])

    def episodes(self) -> list[tuple[int, int]]:
        """Return the decision range (start, stop) of each episode."""
        begin = np.flatnonzero(self.episode_starts).tolist()
        return list(zip(begin, [*begin[1:], len(self.observations)], strict=True))

    def content_hash(self) -> str:
        """Return the SHA-256 (hex) of the recording's content, without date and source path."""
        digest = hashlib.sha256()
        facts = [self.scene, self.decision_hz, list(self.limits), self.max_distance, self.pilot, self.scene_hash]
        digest.update(json.dumps([*facts, sorted(self.vocabulary.items()), self.observations.shape]).encode())
        # A recording without disturbance keeps the hash that it had before `flown` was known.
        flown = () if self.flown is None else (self.flown,)
        for array in (self.observations, self.actions, self.episode_starts, *flown):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _check_observations(self) -> None:
        obs = self.observations
        if obs.ndim != 4 or obs.shape[1] != 3 or not obs.size or obs.dtype != np.float32:
            self._refuse("observations", f"{obs.dtype} {obs.shape}; expected float32 (N, 3, Az, El)")
        # A block at a time: what is compared must not take as much memory as the recording once more.
        blocks = range(0, len(obs), _BLOCK)
        for begin in blocks:
            finite = np.isfinite(obs[begin : begin + _BLOCK]).all(axis=(1, 2, 3))
            if not finite.all():
                self._refuse("observations", f"decision {begin + int((~finite).argmax())} holds NaN or Inf")
        depth, semantic, valid = obs[:, 0], obs[:, 1], obs[:, 2]
        if depth.min() < 0.0 or depth.max() > 1.0:
            self._refuse("observations", f"normalised depth spans [{depth.min():g}, {depth.max():g}]; expected [0, 1]")
        parts = [slice(begin, begin + _BLOCK) for begin in blocks]
        whole = all((semantic[part] == np.floor(semantic[part])).all() for part in parts)
        if semantic.min() < 0 or semantic.max() > 65_535 or not whole:
            self._refuse("observations", "semantic ids must be whole numbers of 0 to 65535")
        if any(((valid[part] != 0) & (valid[part] != 1)).any() for part in parts):
            self._refuse("observations", "the valid mask must be 0 or 1")

    def _check_actions(self, name: str, actions: npt.NDArray[np.float32]) -> None:
        if actions.shape != (len(self.observations), 4) or actions.dtype != np.float32:
            expected = f"float32 ({len(self.observations)}, 4)"
            self._refuse(name, f"{actions.dtype} {actions.shape}; expected {expected}")
        if not np.isfinite(actions).all():
            row = int((~np.isfinite(actions)).any(axis=1).argmax())
            self._refuse(name, f"decision {row} holds NaN or Inf")
        if np.abs(actions).max() > 1.0:
            row = int((np.abs(actions) > 1.0).any(axis=1).argmax())
            self._refuse(name, f"decision {row} is {actions[row].tolist()}; expected [−1, 1]")

    def _refuse(self, name: str, reason: str) -> None:
        raise DemoError(reason, path=self.source, field=name)


@dataclass(frozen=True)
class Facts:
    """Accessor of a recording's scalar fields (metadata) in its file; each field is validated on access."""

    values: Mapping[str, npt.NDArray[Any]]
    """Arrays by name."""
    refuse: Callable[[str, str], NoReturn]
    """Raises the error of a field: its name, what is wrong."""

    def numbers(self, name: str, count: int = 1) -> list[float]:
        """Return a field's numbers as a flat list."""
        value = self.values[name]
        if value.size != count or value.dtype.kind not in "fiu":
            self.refuse(name, f"{value.dtype} {value.shape}; expected {count} numbers")
        return [float(number) for number in value.reshape(-1)]

    def text(self, name: str) -> str:
        """Return a text field; empty where the file has none."""
        value = self.values.get(name, np.array(""))
        if value.size != 1 or value.dtype.kind != "U":
            self.refuse(name, f"{value.dtype} {value.shape}; expected one text")
        return str(value.reshape(-1)[0])

    def fields(self) -> dict[str, Any]:
        """Return the validated scalar fields as keyword arguments of `Demonstration`."""
        try:
            vocabulary = json.loads(self.text("vocabulary") or "{}")
        except (ValueError, RecursionError) as error:
            self.refuse("vocabulary", f"no JSON ({error})")
        if not isinstance(vocabulary, dict):
            self.refuse("vocabulary", "no JSON object of ids by name")
        return {name: self.text(name) for name in ("scene", "recording_date", "pilot", "scene_hash", "source_hash")} | {
            "vocabulary": vocabulary,
            "decision_hz": self.numbers("decision_hz")[0],
            "limits": tuple(self.numbers("limits", 4)),
            "max_distance": self.numbers("max_distance")[0] if "max_distance" in self.values else 100.0,
        }


def save_demonstration(path: Path, demo: Demonstration) -> None:
    """Write a demonstration as a compressed `.npz` file, atomically."""
    with DemoError.of_system("cannot be written", path=path):
        _write(path, demo)


def _write(path: Path, demo: Demonstration) -> None:
    buffer = io.BytesIO()
    extra: dict[str, Any] = {} if demo.flown is None else {"flown": demo.flown}
    np.savez_compressed(
        buffer,
        observations=demo.observations,
        actions=demo.actions,
        episode_starts=demo.episode_starts,
        format_version=np.int64(FORMAT_VERSION),
        scene=np.array(demo.scene),
        azimuth_bins=np.int64(demo.azimuth_bins),
        elevation_bins=np.int64(demo.elevation_bins),
        recording_date=np.array(demo.recording_date),
        decision_hz=np.float64(demo.decision_hz),
        limits=np.array(demo.limits, np.float64),
        max_distance=np.float64(demo.max_distance),
        pilot=np.array(demo.pilot),
        scene_hash=np.array(demo.scene_hash),
        source_hash=np.array(demo.source_hash),
        vocabulary=np.array(json.dumps(demo.vocabulary, sort_keys=True)),
        **extra,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, buffer.getvalue())


def save_beside(paths: Iterable[Path], demo: Demonstration, *, copied: Path | None = None) -> Path:
    """Write a demonstration under the first free file name; safe with concurrent writers.

    Args:
        paths: Names in one folder, the wanted one first.
        demo: The demonstration.
        copied: A file that holds it already; its bytes are copied, because packing is most of the work.

    Returns:
        Its path.
    """
    names = iter(paths)
    path = next(names)
    part = path.with_name(f".{secrets.token_hex(8)}.{os.getpid()}.tmp")  # a name that is swept after a kill
    try:
        if copied is None:
            _write(part, demo)
        else:
            part.parent.mkdir(parents=True, exist_ok=True)
            with durable_file(part) as stream, copied.open("rb") as there:
                shutil.copyfileobj(there, stream, 1 << 20)
        # A hard link is atomic and never replaces an existing file.
        while not _linked(part, path):
            path = next(names)
        fsync_directory(path.parent)
    except OSError as error:
        raise DemoError(f"cannot be written: {error.strerror or error}", path=path) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return path


def _linked(part: Path, path: Path) -> bool:
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError:
        # The file system has no hard links.
        if path.exists():
            return False
        os.replace(part, path)
    return True


def load_demonstration(path: Path) -> Demonstration:
    """Load and validate a demonstration from a `.npz` file.

    Raises:
        DemoError: The file is missing, broken or too large, or a field breaks the format; both are named.
    """
    headers = read_headers(path)
    for name in _REQUIRED:
        if name not in headers:
            raise DemoError("is missing; `navi demos expert` writes all fields", path=path, field=name)
    for name in headers:
        if name not in (*_REQUIRED, *_OPTIONAL):
            known = ", ".join((*_REQUIRED, *_OPTIONAL))
            raise DemoError(f"no field of format {FORMAT_VERSION}; allowed: {known}", path=path, field=name)
    _check_headers(path, headers)
    limits = {name: TEXT_BYTES for name in (*_REQUIRED, *_OPTIONAL)}
    rows = headers["observations"].shape[0]
    require_memory(headers["observations"].nbytes, path, "record it in parts")
    limits |= {"observations": MAX_BYTES, "actions": 64 * rows, "flown": 64 * rows, "episode_starts": 8 * rows}
    data = read_arrays(path, limits)

    def refuse(name: str, reason: str) -> NoReturn:
        raise DemoError(reason, path=path, field=name)

    facts = Facts(data, refuse)
    version = facts.numbers("format_version")[0]
    if version != FORMAT_VERSION:
        raise DemoError(f"{version:g}; only {FORMAT_VERSION} is read", path=path, field="format_version")
    demo = Demonstration(
        observations=data["observations"].astype(np.float32, copy=False),
        actions=data["actions"].astype(np.float32, copy=False),
        episode_starts=data["episode_starts"].astype(np.bool_, copy=False),
        flown=data["flown"].astype(np.float32, copy=False) if "flown" in data else None,
        source=path,
        **facts.fields(),
    )
    for name, found in (("azimuth_bins", demo.azimuth_bins), ("elevation_bins", demo.elevation_bins)):
        if facts.numbers(name)[0] != found:
            raise DemoError(f"{data[name]}, but the observations have {found}", path=path, field=name)
    return demo


def _check_headers(path: Path, headers: dict[str, ArrayHeader]) -> None:
    obs = headers["observations"]
    if len(obs.shape) != 4 or obs.shape[1] != 3 or obs.dtype != np.float32:
        raise DemoError(f"{obs.dtype} {obs.shape}; expected float32 (N, 3, Az, El)", path=path, field="observations")
    if 0 in obs.shape:
        raise DemoError(f"no decision or no bin: {obs.shape}", path=path, field="observations")
    rows = obs.shape[0]
    for name, shape, kinds in (
        ("actions", (rows, 4), "f"),
        ("episode_starts", (rows,), "biu"),
        ("limits", (4,), "fiu"),
        ("flown", (rows, 4), "f"),
    ):
        if name not in headers:
            continue
        header = headers[name]
        if header.shape != shape or header.dtype.kind not in kinds:
            raise DemoError(f"{header.dtype} {header.shape}; expected shape {shape}", path=path, field=name)
