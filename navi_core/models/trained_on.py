"""Training scenes of weights, by content and by source, those of their initial weights included.

A mesh that is compiled anew, at another resolution or decimated, has another content and the same source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from navi_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from navi_core.models.checkpoint import Checkpoint
    from navi_core.scenes import Scene

_KEY = "trained_on"


def corpus_of(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return `scene_hashes` and `corpus_summary` of a checkpoint.

    Args:
        scenes: None for a task.
        vocabulary: Semantic id by name; evaluation must show the policy the ids that it was trained on.
    """
    hashes = {scene.name: scene.content_hash() for scene in scenes}
    summary: dict[str, Any] = {
        "scenes": len(hashes), "names": sorted(hashes), "semantic_vocabulary": dict(vocabulary),
    }  # fmt: skip
    # The contents, too: a resumed run adds those of its checkpoint, and must end like an uninterrupted one.
    add_scenes(summary, (*hashes.values(), *(scene.source_hash for scene in scenes)))
    return hashes, summary


def trained_on(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the content and source hashes of every scene that a checkpoint's weights learned from.

    Raises:
        CheckpointError: The entry is no list of hashes.
    """
    hashes = checkpoint.corpus_summary.get(_KEY, [])
    if not isinstance(hashes, list) or not all(isinstance(name, str) for name in hashes):
        raise CheckpointError(f"the checkpoint's corpus_summary[{_KEY!r}] is no list of hashes")
    return frozenset(checkpoint.scene_hashes.values()) | frozenset(hashes)


def add_scenes(summary: dict[str, Any], hashes: Iterable[str]) -> None:
    """Add content or source hashes to a corpus summary; an empty one, of a scene without a known source, is none."""
    summary[_KEY] = sorted({*summary.get(_KEY, ()), *hashes} - {""})


def add_scenes_of(summary: dict[str, Any], before: Checkpoint) -> None:
    """Add the scenes of a checkpoint that the run begins with or goes on from."""
    add_scenes(summary, trained_on(before))
