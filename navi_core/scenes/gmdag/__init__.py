"""The `.gmdag` file: compiled scenes, both versions, the octree DAG."""
