"""Snapshots of the interfaces that users depend on, one JSON file each.

`python -m tests.snapshots` compares today's interfaces with the files. `python -m tests.snapshots --write` replaces the
files; do this only where an interface changes on purpose, and give the change a line in CHANGELOG.md.
"""
