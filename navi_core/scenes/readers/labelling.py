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


def label_faces(
    path: Path, parts: Sequence[Part], semantics: str = "auto"
) -> tuple[dict[int, str], npt.NDArray[np.int32]]:
    """Return the vocabulary and the semantic id of every face of `parts` in order, shape (F,).

    A face without a name has the id 1, "surface". `auto` takes the first source there is: a complete annotation beside
    the file, vertex colours with a legend beside the file, else `object`, which falls back to the material face by
    face.

    Args:
        path: The mesh file; annotations and legends are looked for beside it.
        parts: Its parts, at least one.
        semantics: As `CompileConfig.semantics`.

    Raises:
        ConfigError: `semantics` is unknown.
        MeshError: The source asked for is missing or broken.
        SceneError: There are more names than ids.
    """
    if semantics not in _SOURCES:
        raise ConfigError(f"semantics {semantics!r} is not one of: {', '.join(_SOURCES)}")
    annotation, legend = find_annotation(path), find_legend(path)
    colored = any(part.colors is not None for part in parts)
    if semantics == "auto" and annotation is None:
        semantics = "vertex_color" if colored and legend is not None else "object"
    if semantics in ("auto", "annotation"):
        if annotation is None:
            raise MeshError(
                f"{path}: no complete annotation lies beside it; see what is missing with: navi doctor "
                f"{as_argument(path.parent)}"
            )
        names, index = face_names(annotation, parts, path)
    elif semantics == "vertex_color":
        if not colored:
            raise MeshError(f"{path}: has no vertex colours; use --semantics auto, object or material")
        names, index = _by_color(path, parts, legend)
    else:
        names = tuple(_part_name(part, path, semantics) for part in parts)
        index = np.repeat(np.arange(len(parts)), [len(part.faces) for part in parts])
    used = {names[i] for i in np.unique(index[index >= 0]).tolist()}
    vocabulary = build_vocabulary(used)
    ids = {name: i for i, name in vocabulary.items()}
    # The last entry serves index −1: a face that nobody named.
    table = np.array([*(ids.get(name, 0) for name in names), ids[UNKNOWN_NAME]], dtype=np.int32)
    return vocabulary, table[index]


def _by_color(path: Path, parts: Sequence[Part], listed: Path | None) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    legend = read_legend(listed) if listed is not None else {}
    known = np.array(sorted(legend), dtype=np.int64)
    found = [color_codes(part, known) if part.colors is not None else np.full(len(part.faces), -1) for part in parts]
    colors, inverse = np.unique(np.concatenate(found), return_inverse=True)
    if listed is None:
        if len(colors) > _MAX_COLORS:
            raise MeshError(
                f"{path}: {len(colors)} different vertex colours are no classes; list theirs in "
                f'{path.stem}.semantic.txt (id,RRGGBB,"category",region), or use --semantics object'
            )
        legend = {code: f"#{code:06x}" for code in colors.tolist() if code >= 0}
    return tuple(legend.get(code, UNKNOWN_NAME) for code in colors.tolist()), inverse.reshape(-1)


def _part_name(part: Part, path: Path, source: str) -> str:
    """Return the first name of the asked kind that an author, not an exporter, chose."""
    candidates = {"object": (*part.objects, part.material), "material": (part.material,)}.get(source, ())
    for name in candidates:
        text = printable_name(name)
        if text and text not in (path.name, path.stem) and not _GENERIC.match(text):
            return text
    return UNKNOWN_NAME
