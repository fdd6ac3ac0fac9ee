"""Numba kernels: ray casting, clearance, and the builds they need. Everything above works on tensors."""

from __future__ import annotations

from navi_core.kernels.bvh import TriangleBVH
from navi_core.kernels.geometry import surface_voxels
from navi_core.kernels.surface_tree import SurfaceTree, build_surface_tree

__all__ = ["SurfaceTree", "TriangleBVH", "build_surface_tree", "surface_voxels"]
