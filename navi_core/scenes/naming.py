"""Naming of scenes and surfaces: sanitised file names, unique scene names, semantic vocabularies.

A scene's name is valid as file name, partition key and SQL text. Letters and digits of every script stay, composed
(NFC), so that one file has one name on every system. Where sanitised names collide, a digest of the path makes them
unique. Surfaces have 1-based semantic ids: 1 is the unknown surface, the other names follow in sorted order.
"""

import difflib
import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from navi_core.errors import SceneError, as_argument, printable

_STEM = 160
"""Bytes of a scene's name in a file's name, which has 255 with what is added, in a temporary one too."""


def clean_name(text: str) -> str:
    """Sanitise a name: `_` for all but letters, digits, `_`, `.` and `-`; no leading or trailing `.` or `_`."""
    return re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", text)).strip("._") or "scene"


def path_digest(path: Path | str) -> str:
    """Return an 8-digit hex digest of a path, invariant under Unicode normalisation."""
    text = unicodedata.normalize("NFC", Path(path).as_posix())
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def file_stem(name: str) -> str:
    """Return a scene name as a safe file stem: truncated to file-system limits, without a leading dash."""
    # A dash reads as an option.
    stem = clean_name(name).strip("._-")
    return stem.encode()[:_STEM].decode(errors="ignore") or "scene"


def own_stem(name: str) -> str:
    """Return the file stem of a per-scene file: the scene's name if valid, else a sanitised stem with a digest."""
    stem = file_stem(name)
    return stem if stem == name else f"{stem}-{path_digest(name)}"


def missing_file(path: Path, names: Iterable[str], kind: str, command: str) -> str:
    """Format the error message for a missing file, with the similar files of its folder.

    Args:
        path: The file.
        names: Those of the folder that it may be confused with.
        kind: What they are.
        command: What to do next; its last argument is the folder.
    """
    if not path.parent.is_dir():
        return f"does not exist, and neither does the folder {path.parent}"
    known = sorted(names)
    near = difflib.get_close_matches(path.name, known, n=3, cutoff=0.4) or known[:3]
    there = f"did you mean {', '.join(near)}?" if near else f"{path.parent} holds no {kind}."
    return f"does not exist; {there} {command} {as_argument(path.parent)}"


def distinct_names(files: dict[Path, tuple[str, Path]]) -> dict[Path, str]:
    """Assign unique scene names to files.

    A scene's name is its file's sanitised name. Where sanitised names collide, the file whose name was clean keeps it,
    and the others get a digest of their paths. Files of the same name are named by their relative paths.

    Args:
        files: File → what it is called, and its path within its folder.
    """
    names = {file: clean_name(own) for file, (own, _) in files.items()}
    uses, owns = Counter(names.values()), Counter(_composed(own) for own, _ in files.values())
    for file, (own, relative) in files.items():
        if uses[clean_name(own)] == 1:
            continue
        if owns[_composed(own)] > 1:
            names[file] = clean_name(relative.as_posix().replace("/", "_"))
        elif clean_name(own) != _composed(own):
            names[file] += f"_{path_digest(relative)}"
    uses = Counter(names.values())
    for file, (_, relative) in files.items():
        if uses[names[file]] > 1:
            # The bytes themselves: two spellings of one name may lie side by side.
            names[file] += "_" + hashlib.sha256(os.fsencode(relative)).hexdigest()[:8]
    return names


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


UNKNOWN = 1
"""Id of a surface that nobody named."""
UNKNOWN_NAME = "surface"
"""Name that belongs to `UNKNOWN`."""
MAX_SEMANTIC = 65535
"""Largest id: the file format keeps 16 bits for it (0 means "no surface")."""


_MAX_NAME = 200


def printable_name(text: object) -> str:
    """Normalise a name for storage: no control characters, single spaces, at most 200 characters."""
    return printable(" ".join(str(text).split()))[:_MAX_NAME].strip()


def build_vocabulary(names: Iterable[str]) -> dict[int, str]:
    """Build a semantic vocabulary: ids 1…n for `names`; 1 is "surface", the others are sorted by name.

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
    """Merge the semantic vocabularies of several scenes into the corpus-wide one."""
    return build_vocabulary(name for vocabulary in vocabularies for name in vocabulary.values())
