"""JSON documents between assets, hashes of plain data, and folders of the package."""

import hashlib
import json
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.record.durable import write_durably
from navi_core.record.home import navi_home

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of the package."""


def shipped_folder(name: str) -> Path:
    """Return a folder of the package, or the one beside it that a checkout has a link to.

    Git leaves a file of text where a disk, or its `core.symlinks`, knows no links; so do some that unpack archives.
    """
    inside = PACKAGE / name
    return (inside if inside.is_dir() else PACKAGE.parent / name).resolve()


def pipeline_folder() -> Path:
    """Return the folder of the assets' documents, made if missing."""
    folder = navi_home() / "pipeline"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def content_key(*parts: object) -> str:
    """Return 16 hex digits that name plain data by content."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document whole or not at all.

    Raises:
        RecordError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error


def read_document(path: Path, *, made_by: str) -> dict[str, Any]:
    """Read a document.

    Args:
        path: The file.
        made_by: Asset that makes it, named when it is missing.

    Raises:
        RecordError: The file is missing or broken.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist; materialize {made_by} first") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is broken ({error}); materialize {made_by} again") from error
    if not isinstance(document, dict):
        raise RecordError(f"{path} holds {type(document).__name__}, not an object; materialize {made_by} again")
    return document
