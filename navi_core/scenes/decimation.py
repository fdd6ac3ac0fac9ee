"""Merging triangles that are smaller than a voxel (stub for import order)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decimation"]


@dataclass(frozen=True)
class Decimation:
    """What merging triangles changed, measured against the original surface."""

    tolerance: float
    """Largest error that was allowed [voxel]."""
    before: int
    """Triangles of the original."""
    after: int
    """Triangles that are left."""
    samples: int
    """Points on each surface whose distance to the other was measured."""
    to_original: float
    """Greatest distance of a point of the result to the original [m]."""
    from_original: float
    """Greatest distance of a point of the original to the result [m]."""
    mean: float
    """Mean distance of the original's points to the result [m]."""
