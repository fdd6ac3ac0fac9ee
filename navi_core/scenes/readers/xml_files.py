"""Safe reader of untrusted XML: no entities, bounded size, depth and count."""

import xml.etree.ElementTree as ET
from pathlib import Path
from xml.parsers import expat

from navi_core.errors import MeshError

_MAX_BYTES = 1 << 30
_MAX_DEPTH = 256
_MAX_ELEMENTS = 5_000_000
"""An element takes four bytes in the file and hundreds in memory."""
_BLOCK = 1 << 20


class _Tree(ET.TreeBuilder):
    """Builds the tree; tags without their namespaces."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._elements = 0

    def start(self, tag: str, attrs: dict[str, str]) -> ET.Element:  # type: ignore[override]
        self._depth += 1
        self._elements += 1
        if self._depth > _MAX_DEPTH:
            raise MeshError(f"its XML is nested more than {_MAX_DEPTH} deep")
        if self._elements > _MAX_ELEMENTS:
            raise MeshError(f"its XML has more than {_MAX_ELEMENTS} elements")
        return super().start(tag.rpartition("}")[2], attrs)

    def end(self, tag: str) -> ET.Element:
        self._depth -= 1
        return super().end(tag.rpartition("}")[2])


def _no_doctype(*_: object) -> None:
    # Entities are declared there: some expand to gigabytes, some name files of this machine.
    raise MeshError("its XML declares a document type (<!DOCTYPE>), which is not read; remove it")


def read_xml(path: Path) -> ET.Element:
    """Return the root of an XML file, all tags without their namespaces.

    Raises:
        MeshError: The file is no XML, broken, or too large or deep.
    """
    tree = _Tree()
    parser = expat.ParserCreate(namespace_separator="}")
    # A line of text comes in two pieces: a number on each line would take twenty times its bytes.
    parser.buffer_text, parser.buffer_size = True, _BLOCK
    parser.StartElementHandler, parser.EndElementHandler = tree.start, tree.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = tree.data, _no_doctype
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise MeshError(f"{size} bytes of XML are more than {_MAX_BYTES}; split it")
        with path.open("rb") as stream:
            # An empty line in front of the declaration is a fault that Gazebo forgives.
            parser.Parse(stream.read(_BLOCK).lstrip(), False)
            while block := stream.read(_BLOCK):
                parser.Parse(block, False)
        parser.Parse(b"", True)
        root = tree.close()
    except OSError as error:
        raise MeshError(f"{path}: cannot be read: {error.strerror or error}") from None
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise MeshError(f"{path}: its XML is broken or truncated: {error}") from None
    if not isinstance(root, ET.Element):
        raise MeshError(f"{path}: its XML is broken or truncated: it has no root")
    return root


class _Found(Exception):  # noqa: N818 — an answer, no error
    """The tag, found in the middle of a file."""


class _Peek:
    """Ends the parsing at the first tag looked for below the root."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._tags, self._depth = tags, 0

    def start(self, tag: str, attrs: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 2 and tag in self._tags:
            raise _Found(tag)

    def end(self, tag: str) -> None:
        self._depth -= 1

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("entities are not expanded")

    def close(self) -> None:
        pass


def first_child(path: Path, tags: tuple[str, ...]) -> str:
    """Return which of some tags comes first right below the root of an XML file; empty where none does.

    Only as much as is needed is read; what is no XML has no tags.
    """
    parser = ET.XMLParser(target=_Peek(tags))
    try:
        with path.open("rb") as stream:
            block = stream.read(_BLOCK).lstrip()
            while block:
                parser.feed(block)
                block = stream.read(_BLOCK)
    except _Found as found:
        return str(found)
    except (OSError, ET.ParseError, ValueError, LookupError):
        pass
    return ""
