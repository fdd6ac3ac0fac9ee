"""Reachable floor of a scene: free space, storeys, rooms, top-down images."""
