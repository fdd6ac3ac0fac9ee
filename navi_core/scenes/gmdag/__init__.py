"""File format `.gmdag` of compiled scenes: reader and writer of both versions, and the octree DAG."""
