"""Which recordings were flown in one scene: files name scenes, and may tell hashes of content and source."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path

from navi_core.errors import DemoError

__all__ = ["Place", "one_name_each", "require_one_scene"]

Place = tuple[str, str, str]
"""Name of a scene, hash of its content, hash of its source; a hash that is not told is empty."""


def require_one_scene(known: MutableMapping[str, Place], place: Place, path: Path) -> None:
    """Refuse a name that two scenes share; what is new is added to `known`.

    Scenes of one source are one scene, at whatever resolution they were compiled, and a file that tells no hash is
    believed its name.

    Args:
        known: What earlier files told, by name.
        place: What this one tells.
        path: Its file.

    Raises:
        DemoError: An earlier file flew in another scene of this name.
    """
    name, content, source = place
    _, content_before, source_before = known.get(name, place)
    if content and content_before and content != content_before and not (source and source == source_before):
        raise DemoError(f"scene {name!r} is another scene in an earlier file", path=path, field="scene_hash")
    if name not in known or (content and not content_before):
        known[name] = place


def one_name_each(places: Sequence[Place]) -> list[str]:
    """Return the name of each recording's scene; a scene that goes by several has the one that came first.

    Else a scene that is held out could be learned from under another name.
    """
    # A forest: whatever leads to one root is one scene.
    above: dict[tuple[str, str], tuple[str, str]] = {}

    def root(key: tuple[str, str]) -> tuple[str, str]:
        while key in above:
            key = above[key]
        return key

    for name, *hashes in dict.fromkeys(places):
        for told in hashes:
            one, other = root(("name", name)), root(("hash", told))
            if told and one != other:
                above[other] = one
    names: dict[tuple[str, str], str] = {}
    return [names.setdefault(root(("name", name)), name) for name, *_ in places]
