"""Compiled kernels (C++, CUDA, numba) for ray casting, distance queries and scene builds; layers above use tensors."""

from navi_core.kernels.bvh.hierarchy import TriangleBVH
from navi_core.kernels.bvh.triangles import surface_voxels
from navi_core.kernels.octree.dag import SurfaceTree

__all__ = ["SurfaceTree", "TriangleBVH", "surface_voxels"]
