"""Reachable floor: free space, storeys, rooms, overhead pictures."""
