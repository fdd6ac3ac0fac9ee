"""Measurement context (hardware, library versions, code revision), and a timer of a loop's named stages."""

import functools
import getpass
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, Self

from navi_core.errors import DISTRIBUTION
from navi_core.machine import usable_cores, variable

_PACKAGES = {"navi": DISTRIBUTION} | {name: name for name in ("torch", "numpy", "numba", "pydantic")}


def hardware_profile() -> dict[str, Any]:
    """Return the hardware and software profile of this machine; cached per process, without importing torch.

    Returns:
        `hardware` (one line), `cpu`, `cores` (usable by this process), `memory_gib`, `gpu` (or None),
        `versions` (package → version), `revision` (the git commit, with `+` when files differ from it,
        or None outside a checkout).
    """
    return dict(_profile())


def row_context() -> dict[str, Any]:
    """Return the context columns of every recorded row: hardware, versions, revision, host, user, Dagster run.

    `$NAVI_HOST` names the host where the machine's own name does not last, as in a container.
    """
    profile = _profile()
    return {name: profile[name] for name in ("hardware", "versions", "revision")} | {
        "host": os.environ.get("NAVI_HOST") or platform.node(),
        "user": _user(),
        "dagster_run_id": variable("NAVI_DAGSTER_RUN_ID"),
    }


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return str(os.getuid())  # a container's user may have no name


@functools.lru_cache(maxsize=1)
def _profile() -> dict[str, Any]:
    memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    cpu, cores, gpu = _cpu_model(), usable_cores(), _gpu_model()
    versions = {"python": platform.python_version()}
    for package, distribution in _PACKAGES.items():
        try:
            versions[package] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return {
        "hardware": f"{cpu}, {cores} cores, {memory} GiB, {gpu or 'no GPU'}",
        "cpu": cpu,
        "cores": cores,
        "memory_gib": memory,
        "gpu": gpu,
        "versions": versions,
        "revision": _revision(),
    }


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _gpu_model() -> str | None:
    # The driver's files name the device without a CUDA context.
    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return " + ".join(names) or None


def _revision() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


class DeviceEvent(Protocol):
    """Protocol of a timing event on a device stream, such as `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None:
        """Record the event on the stream, behind all work launched so far."""

    def synchronize(self) -> None:
        """Block until the device has reached the event."""

    def elapsed_time(self, later: Self, /) -> float:
        """Return the time between two events [ms]."""


class StageTimer:
    """Profiling timer that accumulates time by stage: `with timer("forward"): …`, then `timer.means()`.

    By default the host's clock is read: for a device this is the time of launching work, not of the work itself. With
    events, marks on the device's stream are read when the times are requested, so that the host does not wait.

    Args:
        event: Creates a mark, for example `partial(torch.cuda.Event, enable_timing=True)`.
    """

    def __init__(self, event: Callable[[], DeviceEvent] | None = None) -> None:
        self._event = event
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._marks: list[tuple[str, DeviceEvent, DeviceEvent]] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Context manager that times the block as one call of `stage`."""
        finish = self.begin(stage)
        try:
            yield
        finally:
            finish()

    def begin(self, stage: str) -> Callable[[], None]:
        """Start timing a call of `stage`; the returned function stops it."""
        if self._event is None:
            start = time.perf_counter()
            return lambda: self.add(stage, time.perf_counter() - start)
        before, after = self._event(), self._event()
        before.record()

        def finish() -> None:
            after.record()
            self._marks.append((stage, before, after))

        return finish

    def add(self, stage: str, seconds: float) -> None:
        """Add one call of `stage` that took `seconds` [s]."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        self._calls[stage] = self._calls.get(stage, 0) + 1

    def means(self) -> dict[str, float]:
        """Return the mean time per call of every stage [ms]."""
        self._read_marks()
        return {stage: 1e3 * seconds / self._calls[stage] for stage, seconds in self._seconds.items()}

    def totals(self) -> dict[str, float]:
        """Return the total time of every stage [s]."""
        self._read_marks()
        return dict(self._seconds)

    def calls(self) -> dict[str, int]:
        """Return the number of calls of every stage."""
        self._read_marks()
        return dict(self._calls)

    def take(self, other: Self) -> None:
        """Merge the times of another timer into this one, and reset the other."""
        for stage, seconds in other.totals().items():
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
            self._calls[stage] = self._calls.get(stage, 0) + other._calls[stage]
        other.reset()

    def reset(self) -> None:
        """Reset all accumulated times."""
        self._seconds.clear()
        self._calls.clear()
        self._marks.clear()

    def _read_marks(self) -> None:
        marks, self._marks = self._marks, []
        if marks:
            marks[-1][2].synchronize()
        for stage, before, after in marks:
            self.add(stage, 1e-3 * before.elapsed_time(after))
