"""Sparse voxel octree: build, DAG references, encoding."""
