"""Wide bounding-volume hierarchy (BVH): build, distance queries, triangle predicates."""
