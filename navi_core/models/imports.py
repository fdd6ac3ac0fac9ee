"""Registration of checkpoint files that another home or another machine made, with their lineage."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from navi_core.errors import CheckpointError, RegistryError
from navi_core.models.checkpoint import Checkpoint, load_checkpoint, load_policy
from navi_core.models.registry import Registry
from navi_core.models.registry_schema import ModelVersion
from navi_core.scenes.memory import available_memory

_COPIES = 3
"""Copies of a file in memory while it is registered: its bytes, the checkpoint, and the policy."""


def register_file(
    registry: Registry,
    file: Path | str,
    *,
    parents: Sequence[str] = (),
    notes: str = "",
    tags: Sequence[str] = (),
) -> list[str]:
    """Register a checkpoint file, with its ancestors, metrics, notes and tags where it lies in a registry.

    Args:
        registry: Where it is registered.
        file: A checkpoint; nothing in it is executed.
        parents: Versions or aliases of `registry` it was trained from; by default those that its own registry names,
            else the version with the weights of its `parent_checkpoint`.
        notes: Free text; by default that of its registry, else where the file and its parent were.
        tags: Free labels, besides those of its registry.

    Returns:
        Versions of the file and of its ancestors, the file's first.

    Raises:
        CheckpointError: The file cannot be read, is larger than memory allows, holds weights that do not fit its
            configuration or hash, or learned a reference task.
        RegistryError: A parent does not exist, or a registry cannot be read or written.
    """
    path = Path(file).absolute()
    checkpoint = _checked(path)
    ancestors, entry = _lineage_of(path)
    if entry is None:
        named = list(parents) or parent_versions(registry, checkpoint.parent_checkpoint)
        parent = checkpoint.parent_checkpoint
        origin = f"from {path}" + ("" if named or parent is None else f", trained from {parent}")
        return [registry.register(path, parents=named, notes=notes or origin, tags=tags)]
    made: dict[str, str] = {}

    def add(one: ModelVersion, parents: Sequence[str] = (), notes: str = "", tags: Sequence[str] = ()) -> None:
        made[one.version] = registry.register(
            one.path,
            parents=parents or [made[parent] for parent in one.parents if parent in made],
            metrics=one.metrics,
            notes=notes or one.notes,
            tags=list(dict.fromkeys([*one.tags, *tags])),
        )

    for ancestor in ancestors:
        if ancestor.path.is_file():  # else deleted to save space; its children are registered without it
            _checked(ancestor.path)
            add(ancestor)
    add(entry, parents, notes, tags)
    return list(reversed(made.values()))


def parent_versions(registry: Registry, parent: str | None) -> list[str]:
    """Return the version with the weights of a parent checkpoint; empty where none is known.

    Args:
        registry: Where it is looked up.
        parent: Path of a checkpoint, of the registry or of a run directory.
    """
    if parent is None:
        return []
    versions = registry.list()
    known = [version.version for version in versions if str(version.path) == parent]
    if known or not Path(parent).is_file():
        return known
    weights = load_checkpoint(parent).weights_hash
    return [version.version for version in versions if version.weights_hash == weights][:1]


def _checked(path: Path) -> Checkpoint:
    """Load a checkpoint, and build its policy once: its weights must fit its configuration."""
    have = available_memory()
    if path.is_file() and have is not None and _COPIES * path.stat().st_size > have:
        raise CheckpointError(
            f"{path}: {path.stat().st_size / 2**30:.1f} GiB are more than a third of the {have / 2**30:.1f} GiB of "
            "memory that are free; close other programs, or register it on a larger machine"
        )
    return load_policy(path)[1]


def _lineage_of(path: Path) -> tuple[list[ModelVersion], ModelVersion | None]:
    """Return the ancestors of a file in the registry that it lies in, oldest first, and its entry; None without one.

    Raises:
        RegistryError: The file is not the one that its registry describes.
    """
    home = Registry(path.parent)
    entry = next((each for each in home.list() if each.path.name == path.name), None)
    if entry is None:
        return [], None
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry.file_hash:
        raise RegistryError(f"{path} is not the file that {path.parent / 'registry.json'} describes; copy it again")
    # Parents have smaller numbers than their children.
    ordered = sorted(home.lineage(entry.version), key=lambda one: int(one.version[1:]))
    return ordered[:-1], entry
