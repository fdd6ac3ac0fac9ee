"""Hardware profile of a measurement: processor, memory, GPU, library versions, code revision."""

import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from navi_core.machine import usable_cores

_PACKAGES = ("navi", "torch", "numpy", "numba", "pydantic")


def hardware_profile() -> dict[str, Any]:
    """Describe this machine and code; read once per process, without importing torch.

    Returns:
        `hardware` (one line), `cpu`, `cores` (usable by this process), `memory_gib`, `gpu` (or None),
        `versions` (package → version), `revision` (the git commit, with `+` when files differ from it,
        or None outside a checkout).
    """
    return dict(_profile())


def row_context() -> dict[str, Any]:
    """Return the context of every recorded row: `hardware`, `versions` and `revision`."""
    profile = _profile()
    return {name: profile[name] for name in ("hardware", "versions", "revision")}


@functools.lru_cache(maxsize=1)
def _profile() -> dict[str, Any]:
    memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    cpu, cores, gpu = _cpu_model(), usable_cores(), _gpu_model()
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
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
