"""Shared fixtures: one thread for small tensors, the folder of real scenes, and analytic scenes."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
# A shell's background job ignores SIGINT. Dagster, run in this process, gives SIGTERM the handler of SIGINT, and every
# child of a later test would inherit that it cannot be ended.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


INTEGRATION = frozenset((Path(__file__).parent / "integration.txt").read_text().split())
"""Test files of more than about 3 CPU-seconds, which `make test-fast` leaves out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the files in `integration.txt`, and run them first: workers end together on short files."""
    root = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(root) and item.path.relative_to(root).as_posix() in INTEGRATION:
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: item.get_closest_marker("integration") is None)


@pytest.fixture(scope="session")
def real_scenes() -> Path:
    """Folder of the real test scenes; skips where it is absent."""
    folder = SHARED / "scenes"
    if not folder.is_dir():
        pytest.skip(f"the real test scenes are not here ({folder.name} beside the project is absent)")
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Give every test the bits of one thread, whatever the one before it left."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the paths of new folders, without the search among all earlier ones that `mktemp` makes."""
    parent = tmp_path_factory.mktemp("homes")
    return (parent / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test out of the user's $NAVI_HOME, $NAVI_SCENES and $DAGSTER_HOME; commands have no Dagster home."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("NAVI_HOME", str(home))
    monkeypatch.setenv("DAGSTER_HOME", str(home / "no-dagster-home"))
    monkeypatch.delenv("NAVI_SCENES", raising=False)


def box_triangles(low: tuple[float, ...], high: tuple[float, ...], flip: bool = False) -> np.ndarray:
    """Return the 12 triangles (12, 3, 3) of a closed box; `flip` reverses the winding."""
    a, b = np.array(low, float), np.array(high, float)
    unit = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    corner = unit * (b - a) + a
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [f for p, q, r, s in quads for f in ((p, q, r), (p, r, s))]
    if flip:
        faces = [f[::-1] for f in faces]
    return corner[np.array(faces)]


def mesh_of(triangles: np.ndarray, name: str = "test"):
    """Return a `Mesh` of loose triangles (F, 3, 3)."""
    from navi_core.scenes import mesh_from_arrays

    return mesh_from_arrays(name, triangles.reshape(-1, 3), np.arange(len(triangles) * 3).reshape(-1, 3))


def fly_ahead(policy):
    """Let a policy fly ahead at full speed whatever it sees, and return it."""
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if name.startswith("heads.actor"):
                weight.zero_()
                if weight.shape == (4,):
                    weight[0] = 3.0
    return policy


@pytest.fixture(scope="session")
def box_scene():
    """The closed box 4 × 2.5 × 4 m standing on y = 0, at 256."""
    from navi_core.config import CompileConfig
    from navi_core.scenes import compile_mesh

    return compile_mesh(mesh_of(box_triangles((-2, 0, -2), (2, 2.5, 2)), "box"), CompileConfig(resolution=256))


@pytest.fixture(scope="session")
def apartments():
    """Two small furnished apartments at 256."""
    from navi_core.config import CompileConfig
    from navi_core.scenes import compile_mesh, generate_scene

    return [compile_mesh(generate_scene("apartment", seed), CompileConfig(resolution=256)) for seed in (0, 1)]
