"""Face labels from annotation, vertex colours, object names and materials, in one documented order."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from navi_core.config import CompileConfig
from navi_core.errors import ConfigError, MeshError, as_argument
from navi_core.scenes.naming import UNKNOWN_NAME, build_vocabulary, printable_name
from navi_core.scenes.readers.annotation import color_codes, face_names, find_annotation, find_legend, read_legend
from navi_core.scenes.readers.part import Part

_SOURCES = get_args(CompileConfig.model_fields["semantics"].annotation)
_MAX_COLORS = 1024
"""Different vertex colours that can be classes without a legend; a photographed surface has millions."""
_GENERIC = re.compile(
    r"^(world|scene|root|geometry|mesh|node|object|default|unnamed|material|none)?[._ -]?\d{0,2}$", re.I
)
"""Names that exporters generate, without semantic meaning."""


def label_source(path: Path, parts: Sequence[Part], semantics: str = "auto") -> str:
    """Return which source names the faces: `annotation`, `vertex_color`, `object`, `material` or `none`.

    `auto` takes the first there is: a complete annotation beside the file, vertex colours with a legend beside the
    file, else `object`, which falls back to the material face by face.

    Args:
        path: The mesh file.
        parts: Its parts.
        semantics: As `CompileConfig.semantics`.

    Raises:
        ConfigError: `semantics` is unknown.
        MeshError: The source asked for is not there.
    """
    if semantics not in _SOURCES:
        raise ConfigError(f"semantics {semantics!r} is not one of: {', '.join(_SOURCES)}")
    annotated, colored = find_annotation(path) is not None, any(part.colors is not None for part in parts)
    if semantics == "annotation" and not annotated:
        raise MeshError(
            f"{path}: no complete annotation lies beside it; see what is missing with: navi doctor "
            f"{as_argument(path.parent)}"
        )
    if semantics == "vertex_color" and not colored:
        raise MeshError(f"{path}: has no vertex colours; use --semantics auto, object or material")
    if semantics != "auto":
        return semantics
    if annotated:
        return "annotation"
    return "vertex_color" if colored and find_legend(path) is not None else "object"


def label_faces(
    path: Path, parts: Sequence[Part], semantics: str = "auto"
) -> tuple[dict[int, str], npt.NDArray[np.int32]]:
    """Return the vocabulary and the semantic id of every face of `parts` in order, shape (F,).

    A face without a name has the id 1, "surface".

    Args:
        path: The mesh file; annotations and legends are looked for beside it.
        parts: Its parts, at least one.
        semantics: As `CompileConfig.semantics`.

    Raises:
        ConfigError: `semantics` is unknown.
        MeshError: The source asked for is missing or broken.
        SceneError: There are more names than ids.
    """
    source = label_source(path, parts, semantics)
    annotation = find_annotation(path)
    if source == "annotation" and annotation is not None:
        names, index = face_names(annotation, parts, path)
    elif source == "vertex_color":
        names, index = _by_color(path, parts)
    else:
        per_part = [_part_name(part, path, source) for part in parts]
        names = tuple(dict.fromkeys(per_part))
        rank = {name: i for i, name in enumerate(names)}
        index = np.concatenate(
            [np.full(len(part.faces), rank[name]) for part, name in zip(parts, per_part, strict=True)]
        )
    used = {names[i] for i in np.unique(index[index >= 0]).tolist()}
    vocabulary = build_vocabulary(used)
    ids = {name: i for i, name in vocabulary.items()}
    # The last entry serves index −1: a face that nobody named.
    table = np.array([*(ids.get(name, 0) for name in names), ids[UNKNOWN_NAME]], dtype=np.int32)
    return vocabulary, table[index]


def _by_color(path: Path, parts: Sequence[Part]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    listed = find_legend(path)
    legend = read_legend(listed) if listed is not None else {}
    known = np.array(sorted(legend), dtype=np.int64)
    found = [color_codes(part, known) if part.colors is not None else np.full(len(part.faces), -1) for part in parts]
    colors, inverse = np.unique(np.concatenate(found), return_inverse=True)
    if listed is None and len(colors) > _MAX_COLORS:
        raise MeshError(
            f"{path}: {len(colors)} different vertex colours are no classes; list theirs in "
            f'{path.stem}.semantic.txt (id,RRGGBB,"category",region), or use --semantics object'
        )
    names = [legend.get(code, UNKNOWN_NAME) if listed is not None else f"#{code:06x}" for code in colors.tolist()]
    names = [UNKNOWN_NAME if code < 0 else name for code, name in zip(colors.tolist(), names, strict=True)]
    unique = tuple(dict.fromkeys(names))
    rank = np.array([unique.index(name) for name in names], dtype=np.int64)
    return unique, rank[inverse.reshape(-1)]


def _part_name(part: Part, path: Path, source: str) -> str:
    """Return the first name of the asked kind that an author, not an exporter, chose."""
    candidates = {"object": (*part.objects, part.material), "material": (part.material,)}.get(source, ())
    for name in candidates:
        text = printable_name(name)
        if text and text not in (path.name, path.stem) and not _GENERIC.match(text):
            return text
    return UNKNOWN_NAME
