"""Flies a scene along the rays that break tracers: on boundaries, along the axes, from far outside, for ever."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from navi_core.kernels.native import library as native
from navi_core.kernels.rays import cuda, tracer
from navi_core.scenes import Scene
from navi_core.world import Field

REACHES = (0.0, 1e-6, 50.0, 1e6)


def use_library(library: str) -> None:
    """Let the C++ tracer and the twin of the CUDA kernels run from this build of the kernels."""
    loaded = native._declare(ctypes.CDLL(library))
    tracer.load_library = cuda.load_library = lambda: loaded


def starts(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Return (14, 3) float32: inside, around, on corners of cells and of the cube, on the surface, far outside."""
    low, high = (np.asarray(bound, np.float64) for bound in scene.bounds)
    cell = rng.integers(0, scene.resolution + 1, (4, 3)) * scene.voxel_size + low
    surface = scene.triangles[0] if scene.has_surface else np.stack([low, high, (low + high) / 2])
    away = low + (high - low) * np.array([[1e3, 0.5, 0.5], [-1e6, 1e6, 0.5]])
    parts = [rng.uniform(low, high, (2, 3)), rng.uniform(low - 1, high + 1, (2, 3)), cell, [low, high], surface[:2]]
    return np.clip(np.concatenate([*parts, away]), -1e30, 1e30).astype(np.float32)


def rays(rng: np.random.Generator) -> np.ndarray:
    """Return (40, 3) float32 unit vectors: axes, diagonals, slopes next to nothing, and at random."""
    axes = np.concatenate([np.eye(3), -np.eye(3)])
    slopes = rng.choice([0.0, -0.0, 1e-30, 1e-17, -6e-17, 1e-9, -1e-6], (12, 3))
    diagonal = rng.choice([-1.0, 0.0, 1.0], (6, 3))
    diagonal[~diagonal.any(axis=1)] = 1.0
    found = np.concatenate([axes, np.tile(axes, (2, 1)) + slopes, diagonal, rng.normal(size=(16, 3))])
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def fly(scene: Scene, tracers: Sequence[str]) -> None:
    """Cast rays and ask for distances with each tracer; every answer must be a number within its range."""
    rng = np.random.default_rng(0)
    start, ray = torch.from_numpy(starts(scene, rng)), torch.from_numpy(rays(rng))
    rows = torch.zeros(len(start), dtype=torch.int32)
    for name in tracers:
        field = Field([scene], tracer=name, threads=1)
        for reach in REACHES:
            hits = field.cast_rays(start, ray, rows, reach)
            # A hit may lie a rounding beyond the range that is asked for.
            assert bool(((hits.depth >= 0.0) & (hits.depth <= np.float32(reach) * 1.000001)).all()), name
            assert bool((hits.semantic[~hits.valid] == 0).all()) and bool((hits.semantic[hits.valid] >= 1).all()), name
        assert not bool(torch.isnan(field.distance(start, rows)).any()), name
        for radius in (0.0, 0.1, 1e6):
            field.within(start, rows, radius)
