"""Identity of scenes and semantic ids across recordings: scene hashes and names, id translation tables."""

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.errors import DemoError

MOST_IDS = 65_535
"""Largest semantic id: files keep 16 bits for it."""
UNNAMED = 1
"""Semantic id of a surface that nothing names."""


def id_table(source: Mapping[str, int], target: Mapping[str, int]) -> npt.NDArray[np.uint16]:
    """Build the lookup table (65536,) that translates semantic ids of vocabulary `source` to those of `target`.

    0 means no surface. An id without a name, or with a name that `target` lacks, becomes `UNNAMED`.

    Args:
        source: Semantic id by name in the data.
        target: Semantic id by name in the wanted vocabulary.
    """
    table = np.full(MOST_IDS + 1, UNNAMED, np.uint16)
    table[0] = 0
    for name, number in source.items():
        table[number] = target.get(name, UNNAMED)
    return table


SceneIdentity = tuple[str, str, str]
"""Name of a scene, hash of its content, hash of its source; an unknown hash is empty."""


def require_one_scene(known: MutableMapping[str, SceneIdentity], scene: SceneIdentity, path: Path) -> None:
    """Refuse a scene name that two different scenes share; a new scene is added to `known`.

    Scenes of one source are one scene at any resolution. Without a hash the name alone decides.

    Args:
        known: Scenes of earlier files, by name.
        scene: Scene of this file.
        path: This file, for the message.

    Raises:
        DemoError: An earlier file flew in another scene of this name.
    """
    name, content, source = scene
    _, content_before, source_before = known.get(name, scene)
    if content and content_before and content != content_before and not (source and source == source_before):
        raise DemoError(f"scene {name!r} is another scene in an earlier file", path=path, field="scene_hash")
    if name not in known or (content and not content_before):
        known[name] = scene


def canonical_names(scenes: Sequence[SceneIdentity]) -> list[str]:
    """Return one canonical scene name per recording; of a scene with several names the first.

    Otherwise a held-out scene could be trained on under another name.
    """
    # Union-find: names and hashes with one root are one scene.
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(key: tuple[str, str]) -> tuple[str, str]:
        while key in parent:
            key = parent[key]
        return key

    for name, *hashes in dict.fromkeys(scenes):
        for digest in hashes:
            one, other = root(("name", name)), root(("hash", digest))
            if digest and one != other:
                parent[other] = one
    names: dict[tuple[str, str], str] = {}
    return [names.setdefault(root(("name", name)), name) for name, *_ in scenes]
