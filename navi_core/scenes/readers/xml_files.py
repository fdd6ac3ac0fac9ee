"""Safe XML parser for untrusted files: no entities, bounded size, depth and element count."""

import contextlib
import xml.etree.ElementTree as ET
from pathlib import Path
from xml.parsers import expat

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import reading

_MAX_BYTES = 1 << 30
_MAX_DEPTH = 256
_MAX_ELEMENTS = 5_000_000
"""An element takes four bytes in the file and hundreds in memory."""
_BLOCK = 1 << 20


class _Tree(ET.TreeBuilder):
    """XML tree builder that strips namespaces; parsing stops at the first of some tags below the root."""

    def __init__(self, stop_at: tuple[str, ...]) -> None:
        super().__init__()
        self._depth = self._elements = 0
        self._stop_at = stop_at

    def start(self, tag: str, attrs: dict[str, str]) -> ET.Element:
        self._depth += 1
        self._elements += 1
        if self._depth > _MAX_DEPTH:
            raise MeshError(f"its XML is nested more than {_MAX_DEPTH} deep")
        if self._elements > _MAX_ELEMENTS:
            raise MeshError(f"its XML has more than {_MAX_ELEMENTS} elements")
        tag = tag.rpartition("}")[2]
        if self._depth == 2 and tag in self._stop_at:
            raise _Found(tag)
        return super().start(tag, attrs)

    def end(self, tag: str) -> ET.Element:
        self._depth -= 1
        return super().end(tag.rpartition("}")[2])


def _no_doctype(*_: object) -> None:
    # Entities are declared there: some expand to gigabytes, some name files of this machine.
    raise MeshError("its XML declares a document type (<!DOCTYPE>), which is not read; remove it")


class _Found(Exception):  # noqa: N818 — an answer, no error
    """Control-flow exception that ends parsing early, once the requested tag is found."""


def read_xml(path: Path, stop_at: tuple[str, ...] = ()) -> ET.Element:
    """Parse an XML file safely and return its root; all tags are without namespaces.

    Args:
        path: The file.
        stop_at: Tags that end the reading where one is found right below the root, see `first_child`.

    Raises:
        MeshError: The file is no XML, broken, or too large or deep.
    """
    with reading(path):
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise MeshError(f"{size} bytes of XML are more than {_MAX_BYTES}; split it")
        tree = _Tree(stop_at)
        parser = expat.ParserCreate(namespace_separator="}")
        # A line of text comes in two pieces: a number on each line would take twenty times its bytes.
        parser.buffer_text, parser.buffer_size = True, _BLOCK
        parser.StartElementHandler, parser.EndElementHandler = tree.start, tree.end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = tree.data, _no_doctype
        try:
            with path.open("rb") as stream:
                # An empty line in front of the declaration is a fault that Gazebo forgives.
                parser.Parse(stream.read(_BLOCK).lstrip(), False)
                while block := stream.read(_BLOCK):
                    parser.Parse(block, False)
            parser.Parse(b"", True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise MeshError(f"its XML is broken or truncated: {error}") from None
        return tree.close()


def first_child(path: Path, tags: tuple[str, ...]) -> str:
    """Return which of the given tags occurs first directly below the root of an XML file; empty if none does.

    Reads only as much as needed; a file that is not XML has no tags.
    """
    try:
        with contextlib.suppress(MeshError):
            read_xml(path, tags)
    except _Found as found:
        return str(found)
    return ""


def first_text(path: Path, tag: str, size: int) -> str:
    """Return the text of the first element of a tag within the first `size` bytes; empty if there is none.

    Raises:
        MeshError: The file declares a document type.
    """
    parser, tree = expat.ParserCreate(namespace_separator="}"), _FirstText(tag)
    parser.StartElementHandler, parser.EndElementHandler = tree.start, tree.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = tree.data, _no_doctype
    with path.open("rb") as stream, contextlib.suppress(expat.ExpatError, LookupError, ValueError):
        try:
            parser.Parse(stream.read(size).lstrip(), False)
        except _Found as found:
            return str(found)
    return ""


class _FirstText:
    """Handlers of an XML parser that stop at the end of the first element of a tag."""

    def __init__(self, tag: str) -> None:
        self._tag, self._text, self._inside = tag, "", False

    def start(self, tag: str, _: dict[str, str]) -> None:
        self._inside = tag.rpartition("}")[2] == self._tag

    def data(self, text: str) -> None:
        self._text += text if self._inside else ""

    def end(self, _: str) -> None:
        if self._inside:
            raise _Found(self._text.strip())
