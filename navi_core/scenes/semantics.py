"""Semantic ids: 1-based, id 1 is the unknown surface, the other names follow in sorted order."""

from collections.abc import Iterable, Mapping

from navi_core.errors import SceneError, printable

UNKNOWN = 1
"""Id of a surface that nobody named."""
UNKNOWN_NAME = "surface"
"""Name that belongs to `UNKNOWN`."""
MAX_SEMANTIC = 65535
"""Largest id: the file format keeps 16 bits for it (0 means "no surface")."""


_MAX_NAME = 200


def clean_name(text: object) -> str:
    """Return a name as it is stored: no control characters, single blanks, at most 200 characters."""
    return printable(" ".join(str(text).split()))[:_MAX_NAME].strip()


def build_vocabulary(names: Iterable[str]) -> dict[int, str]:
    """Return ids 1…n for `names`: 1 is "surface", the others are sorted by name.

    Args:
        names: Names in any order, possibly repeated; "surface" needs not be among them.

    Raises:
        SceneError: There are more than 65,535 different names.
    """
    others = sorted(set(names) - {UNKNOWN_NAME})
    if len(others) + 1 > MAX_SEMANTIC:
        raise SceneError(
            f"{len(others) + 1} semantic names do not fit 16 bits (at most {MAX_SEMANTIC}); name objects by class"
        )
    return {UNKNOWN: UNKNOWN_NAME} | {i: name for i, name in enumerate(others, start=UNKNOWN + 1)}


def merge_vocabularies(vocabularies: Iterable[Mapping[int, str]]) -> dict[int, str]:
    """Return the corpus-wide vocabulary that holds every name of several scenes' vocabularies."""
    return build_vocabulary(name for vocabulary in vocabularies for name in vocabulary.values())
