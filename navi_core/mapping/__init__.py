"""Maps a drone draws of its own flight: occupancy, frontiers, shortest paths."""
