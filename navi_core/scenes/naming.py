"""What scenes are called: names that serve as file name, partition key and SQL text, and never change with the company.

Letters and digits of every script stay, composed (NFC), so that one file has one name on every system. Where anything
else had to go, a digest of the file's path tells it from others that look alike after that.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import Counter
from pathlib import Path

__all__ = ["clean_name", "distinct_names", "file_stem", "path_digest"]

_STEM = 160
"""Bytes of a scene's name in a file's name, which has 255 with what is added, in a temporary one too."""


def clean_name(text: str) -> str:
    """Return a text with `_` for what is neither letter, digit, `_`, `.` nor `-`, without dots and `_` around it."""
    return re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", text)).strip("._") or "scene"


def path_digest(path: Path | str) -> str:
    """Return 8 hex digits of a path, the same for every way in which a system spells its letters."""
    text = unicodedata.normalize("NFC", Path(path).as_posix())
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def file_stem(name: str) -> str:
    """Return a scene's name for use in a file's name: cut to what a file system takes, without a dash in front."""
    # A dash reads as an option.
    stem = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", name)).strip("._-")
    return stem.encode()[:_STEM].decode(errors="ignore") or "scene"


def distinct_names(files: dict[Path, tuple[str, Path]]) -> dict[Path, str]:
    """Return names of files that are unique among them.

    A file whose name had to be cleaned carries the digest of its path, whatever lies beside it. Others are called as
    they are, or by their relative paths where several are called the same.

    Args:
        files: File → what it is called, and its path within its folder.
    """
    names = {file: _faithful(own, relative) for file, (own, relative) in files.items()}
    uses = Counter(names.values())
    for file, (_, relative) in files.items():
        if uses[names[file]] > 1:
            names[file] = _faithful(relative.as_posix().replace("/", "_"), relative)
    uses = Counter(names.values())
    for file, (_, relative) in files.items():
        if uses[names[file]] > 1:
            # The bytes themselves: two spellings of one name may lie side by side.
            names[file] += "_" + hashlib.sha256(os.fsencode(relative)).hexdigest()[:8]
    return names


def _faithful(text: str, relative: Path) -> str:
    cleaned = clean_name(text)
    return cleaned if cleaned == unicodedata.normalize("NFC", text) else f"{cleaned}_{path_digest(relative)}"
