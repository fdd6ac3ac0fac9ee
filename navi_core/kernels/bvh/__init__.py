"""Wide bounding-volume hierarchy: build, distance queries, triangle predicates."""
