"""Resource estimates of scene compilation (memory, time, disk), and memory checks before it starts."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from navi_core.config import CompileConfig
from navi_core.errors import MeshError, SceneTooLargeError
from navi_core.machine import group_limits
from navi_core.scenes.gmdag.dag import levels_of
from navi_core.scenes.mesh import Mesh
from navi_core.scenes.readers.mesh_file import read_facts

_PER_TRIANGLE = 520
"""Bytes of corners in three precisions, of bounds, and of what checks and the file need of each."""
_PER_REFERENCE = 48
"""Bytes of one entry of a list, its masks and copies, and its share of the cells."""
_PER_DECIMATED = 1200
"""Further bytes of a triangle while triangles are merged and the result is measured."""
_PER_CHILD = 24
"""Bytes that an entry of a list takes from when its cell is split until the file is written."""
_PER_READ = 300
"""Bytes of a triangle while its file is read, at least."""
_FIXED = 64 << 20
_SAMPLE = 200_000


@dataclass(frozen=True)
class CompileEstimate:
    """Upper estimate of the memory, time and disk that a scene compilation needs."""

    memory: int
    """Peak memory beyond the process' own [bytes]."""
    seconds: float
    """Time on one core [s]."""
    disk: int
    """Size of the compiled file [bytes]."""


def estimate_memory(mesh: Mesh, config: CompileConfig) -> int:
    """Estimate the peak memory of `compile_mesh` beyond the mesh [bytes], rounded upwards.

    The triangle lists dominate: a triangle of area A and longest edge L meets about 1.5·(A/e² + L/e) + 2 cells of edge
    e. A triangle is counted in the finest cells that its size can fill lists of.

    Args:
        mesh: The mesh.
        config: How it would be compiled.
    """
    count = len(mesh.faces)
    coarse, deepest = levels_of(config.resolution)
    used = mesh.vertices[mesh.faces.reshape(-1)[:: max(1, 3 * count // 1_000_000)]]
    size = float((used.max(axis=0) - used.min(axis=0)).max()) + 2 * config.padding
    faces = mesh.faces[:: max(1, count // _SAMPLE)]
    a, b, c = (mesh.vertices[faces[:, k]] for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    longest = np.max([np.linalg.norm(p - q, axis=1) for p, q in ((a, b), (b, c), (c, a))], axis=0)
    # Cells are split where more than a list's worth of triangles meet: the many small ones, not a large one.
    level = np.clip(np.log2(np.maximum(size / np.maximum(longest, 1e-12), 1.0)) + 2, coarse, deepest)
    edge = size / 2.0**level
    references = (1.5 * (area / edge**2 + longest / edge) + 2).mean() * count
    per_triangle = _PER_TRIANGLE + (_PER_DECIMATED if config.decimate is not None else 0)
    return int(_FIXED + per_triangle * count + _PER_REFERENCE * references)


def estimate_compile(triangles: int, config: CompileConfig) -> CompileEstimate:
    """Estimate memory, time and disk of a compilation by rules fitted on furnished houses.

    Coarser than `estimate_memory`, which needs the triangles themselves.

    Args:
        triangles: Triangles of the mesh.
        config: Merging triangles takes memory and time.
    """
    merging = config.decimate is not None
    return CompileEstimate(
        memory=int((128 << 20) + (2400 if merging else 1200) * triangles),
        seconds=0.2 + (80e-6 if merging else 8e-6) * triangles,
        disk=int(100_000 + 24 * triangles),
    )


def available_memory() -> int | None:
    """Return the memory still available to this process [bytes], None where the system does not report it."""
    found = [limit - use for limit, use in group_limits()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not found and {"SC_AVPHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return max(min(found), 0) if found else None


def check_memory(mesh: Mesh, config: CompileConfig) -> None:
    """Refuse a compilation whose estimated memory exceeds what is available.

    Raises:
        SceneTooLargeError: Names the estimate, what is available, and what to do.
    """
    require_memory(
        f"{mesh.name}: compiling {len(mesh.faces):,} triangles", estimate_memory(mesh, config), _smaller(config)
    )


def check_references(name: str, references: int, config: CompileConfig) -> None:
    """Refuse an octree split whose triangle lists exceed the available memory (known only during the split).

    Args:
        name: Of the mesh.
        references: Entries of the lists of one level.
        config: How the mesh is compiled.

    Raises:
        SceneTooLargeError: As `check_memory`.
    """
    require_memory(
        f"{name}: its triangles cross so much that {references:,} places of them in the tree",
        _PER_CHILD * references,
        _smaller(config),
    )


def check_reading(file: Path) -> None:
    """Refuse to read a mesh file that exceeds the available memory by its header; a bad header is the reader's fault.

    Raises:
        SceneTooLargeError: As `check_memory`.
    """
    try:
        facts = read_facts(file)
    except MeshError:
        return
    # Where triangles are estimated, there may be half of them.
    count = facts.triangles if facts.exact else facts.triangles // 2
    require_memory(f"{file}: reading {count:,} triangles", _PER_READ * count, "split the mesh")


def _smaller(config: CompileConfig) -> str:
    lower = f"lower the resolution (now {config.resolution})" if config.resolution > 64 else "split the mesh"
    return lower if config.decimate is not None else f"{lower}, merge small triangles (decimate: 0.25)"


def require_memory(what: str, need: int, instead: str) -> None:
    """Raise if an operation needs more memory than is available.

    Args:
        what: The work, for the message.
        need: Memory that it takes [bytes].
        instead: What to do.

    Raises:
        SceneTooLargeError: Names the estimate, what is available, and what to do.
    """
    have = available_memory()
    if have is not None and need > have:
        raise SceneTooLargeError(
            f"{what} needs about {need / 2**30:.1f} GiB, {have / 2**30:.1f} GiB are available; {instead}, or close "
            "other programs"
        )
