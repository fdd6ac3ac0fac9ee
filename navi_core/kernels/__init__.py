"""Numba kernels: ray casting, clearance, and the builds they need. Everything above works on tensors."""

from __future__ import annotations

from navi_core.kernels.bvh import TriangleBVH
from navi_core.kernels.geometry import surface_voxels
from navi_core.kernels.surface_tree import SurfaceTree

__all__ = ["SurfaceTree", "TriangleBVH", "surface_voxels"]
