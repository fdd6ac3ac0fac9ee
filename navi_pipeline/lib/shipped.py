"""Folders that come with the package: `sql/` and `dagster_home/`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PACKAGE", "shipped"]

PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of the package."""


def shipped(name: str) -> Path:
    """Return a folder of the package, or the one beside it that a checkout has a link to.

    Git leaves a file of text where a disk, or its `core.symlinks`, knows no links; so do some that unpack archives.
    """
    inside = PACKAGE / name
    return (inside if inside.is_dir() else PACKAGE.parent / name).resolve()
