"""Octree build and its DAG references."""
