"""Lists of semantic names as datasets ship them: HM3D legends, Matterport houses, Gibson and Replica JSON.

Formats: HM3D's `.semantic.txt`; Matterport3D's `.house` (version 1.1: `C` rows name categories, `O` rows give each
object its category); Gibson's `.scn` (`objects` with `id` and `class_`); Replica's `info_semantic.json` (`classes`,
`objects` with `id` and `class_id`).
"""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import Part
from navi_core.scenes.semantics import clean_name

LEGEND_HEADER = "HM3D Semantic Annotations"
"""First line of a `.semantic.txt`."""
_MAX_BYTES = 64 << 20
"""Size of a list of names; the largest real ones have a few megabytes."""


def read_legend(path: Path) -> dict[int, str]:
    """Return the category of each colour 0xRRGGBB of a `.semantic.txt`.

    Lines are `id,RRGGBB,"category",region`; a quoted category may contain commas and doubled quotes. The header line
    may be missing.

    Raises:
        MeshError: A line cannot be read, or one colour has two categories; the line is named.
    """
    legend: dict[int, str] = {}
    lines = _text(path).splitlines()
    first = 1 if lines and LEGEND_HEADER in lines[0] else 0
    for number, line in enumerate(lines[first:], start=first + 1):
        if not line.strip():
            continue
        try:
            fields = next(csv.reader([line]))
            code = fields[1].strip().removeprefix("#")
            if len(fields) < 4 or not 0 < len(code) <= 6:
                raise ValueError("it needs id, RRGGBB, category, region")
            color, int_id = int(code, 16), int(fields[0])
            # Unquoted categories with commas are cut by some writers' readers; here they are put together again.
            name = clean_name(",".join(fields[2:-1])) or f"object {int_id}"
        except (ValueError, IndexError, csv.Error) as error:
            raise MeshError(f"{path}: line {number} {line[:60]!r} is broken: {error}") from None
        if legend.setdefault(color, name) != name:
            raise MeshError(f"{path}: line {number}: the colour {code} already means {legend[color]!r}, not {name!r}")
    if not legend:
        raise MeshError(f"{path}: lists no colours; download it again, or compile with --semantics object")
    return legend


def color_codes(part: Part, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each face's colour 0xRRGGBB (F,), in the colour space in which more faces are in the legend.

    glTF stores linear light while legends list sRGB, and writers disagree on whether to convert.

    Args:
        part: A part with colours.
        codes: Sorted colours of the legend.
    """
    assert part.colors is not None
    plain = _code(part.colors)
    if not part.linear:
        return plain
    light = np.clip(np.nan_to_num(part.colors), 0.0, 1.0)
    # IEC 61966-2-1.
    converted = _code(np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055))
    return converted if np.isin(converted, codes).sum() > np.isin(plain, codes).sum() else plain


def _code(colors: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    values = np.rint(np.clip(np.nan_to_num(colors), 0, 1) * 255).astype(np.int64)
    return values[:, 0] << 16 | values[:, 1] << 8 | values[:, 2]


def read_names(path: Path) -> dict[str, dict[int, str]]:
    """Return, by the face property they belong to, the names of the numbers a list knows.

    Args:
        path: An `info_semantic.json`, `.scn` or `.house`.

    Raises:
        MeshError: The list cannot be read.
    """
    try:
        if path.suffix.lower() == ".house":
            return _house(_text(path))
        document = json.loads(_text(path))
        found = _replica(document) if path.suffix.lower() == ".json" else _gibson(document)
        return {"object_id": found}
    except MeshError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MeshError(f"{path}: is broken: {type(error).__name__} {error}") from None


def _replica(document: Any) -> dict[int, str]:
    classes = {int(row["id"]): clean_name(row["name"]) for row in document["classes"]}
    found = {}
    for row in document["objects"]:
        name = classes.get(int(row["class_id"])) or clean_name(row.get("class_name", ""))
        if name:
            found[int(row["id"])] = name
    return found


def _gibson(document: Any) -> dict[int, str]:
    return {int(row["id"]): name for row in document["objects"] if (name := clean_name(row["class_"]))}


def _house(text: str) -> dict[str, dict[int, str]]:
    categories: dict[int, str] = {}
    objects: dict[int, str] = {}
    raw: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["C"]:
            # C index, mapping index, mapping name, mpcat40 index, mpcat40 name; blanks are written as '#'.
            categories[int(fields[1])] = clean_name(fields[5].replace("#", " "))
            raw[int(fields[2])] = categories[int(fields[1])]
        elif fields[:1] == ["O"] and int(fields[3]) in categories:
            # O index, region, category, …: the order of the file puts categories before objects.
            objects[int(fields[1])] = categories[int(fields[3])]
    return {"object_id": objects, "category_id": raw}


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise MeshError(f"{path}: {path.stat().st_size} bytes, a list of names has at most {_MAX_BYTES}")
        return path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise MeshError(f"{path}: cannot be read: {error.strerror or error}") from None
