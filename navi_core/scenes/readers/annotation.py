"""Semantic annotations of scans: locate the files, parse the category lists, label every face.

Three forms are read. HM3D codes instances by colour in a twin mesh (`X.semantic.glb`, in its textures or its vertex
colours) and lists `id,RRGGBB,"category",region` in `X.semantic.txt`. Matterport3D, Gibson and Replica number the faces
of a PLY (`object_id`, `category_id`) and name the numbers: Matterport3D in `X.house` (version 1.1: `C` rows name
categories, `O` rows give each object its category), Gibson in `X.scn` (`objects` with `id` and `class_`), Replica in
`info_semantic.json` (`classes`, `objects` with `id` and `class_id`). The layouts are those of the datasets' own
releases for Habitat.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.naming import printable_name
from navi_core.scenes.readers.gltf import read_gltf
from navi_core.scenes.readers.part import Part, reading
from navi_core.scenes.readers.ply import read_ply

LEGEND_HEADER = "HM3D Semantic Annotations"
"""First line of a `.semantic.txt`."""
_MAX_BYTES = 64 << 20
"""Size of a list of names; the largest real ones have a few megabytes."""


def read_legend(path: Path) -> dict[int, str]:
    """Parse a `.semantic.txt` legend into categories by colour 0xRRGGBB.

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
            name = printable_name(",".join(fields[2:-1])) or f"object {int_id}"
        except (ValueError, IndexError, csv.Error) as error:
            raise MeshError(f"{path}: line {number} {line[:60]!r} is broken: {error}") from None
        if legend.setdefault(color, name) != name:
            raise MeshError(f"{path}: line {number}: the colour {code} already means {legend[color]!r}, not {name!r}")
    if not legend:
        raise MeshError(f"{path}: lists no colours; download it again, or compile with --semantics object")
    return legend


def color_codes(part: Part, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each face's colour 0xRRGGBB (F,), in the colour space (sRGB or linear) that matches the legend better.

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
    return values[:, 0] << 16 | values[:, 1] << 8 | values[:, 2]  # type: ignore[no-any-return]


def read_names(path: Path) -> dict[str, dict[int, str]]:
    """Parse a category list into names by number, for each face property that it describes.

    Args:
        path: An `info_semantic.json`, `.scn` or `.house`.

    Raises:
        MeshError: The list cannot be read.
    """
    with reading(path):
        if path.suffix.lower() == ".house":
            return _house(_text(path))
        document = json.loads(_text(path))
        return {"object_id": _replica(document) if path.suffix.lower() == ".json" else _gibson(document)}


def _replica(document: dict[str, Any]) -> dict[int, str]:
    classes = {int(row["id"]): printable_name(row["name"]) for row in document["classes"]}
    named = (
        (int(row["id"]), classes.get(int(row["class_id"])) or printable_name(row.get("class_name", "")))
        for row in document["objects"]
    )
    return {number: name for number, name in named if name}


def _gibson(document: dict[str, Any]) -> dict[int, str]:
    return {int(row["id"]): name for row in document["objects"] if (name := printable_name(row["class_"]))}


def _house(text: str) -> dict[str, dict[int, str]]:
    categories: dict[int, str] = {}
    objects: dict[int, str] = {}
    raw: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["C"]:
            # C index, mapping index, mapping name, mpcat40 index, mpcat40 name; blanks are written as '#'.
            categories[int(fields[1])] = printable_name(fields[5].replace("#", " "))
            raw[int(fields[2])] = categories[int(fields[1])]
        elif fields[:1] == ["O"] and int(fields[3]) in categories:
            # O index, region, category, …: the order of the file puts categories before objects.
            objects[int(fields[1])] = categories[int(fields[3])]
    return {"object_id": objects, "category_id": raw}


def _text(path: Path) -> str:
    with reading(path):
        if path.stat().st_size > _MAX_BYTES:
            raise MeshError(f"{path.stat().st_size} bytes, a list of names has at most {_MAX_BYTES}")
        return path.read_bytes().decode("utf-8-sig", "replace")


_NEAR = 0.1
"""Largest distance from a face to the annotated surface that names it [units of the file]."""
_FITTING = 0.5
"""Share of faces that must have an annotated surface near them."""
_PROBES = 2000
"""Faces that decide how the annotated mesh is turned."""
_MAX_IMAGE = 64_000_000
"""Pixels of a texture that are decoded."""


@dataclass(frozen=True)
class Annotation:
    """Semantic annotation files of one mesh."""

    names: Path
    """Legend or list of names."""
    surface: Path | None
    """Annotated twin mesh; None where the mesh itself carries the ids."""


def annotation_key(path: Path) -> str:
    """Return a mesh's base name in annotation files: `X` for `X.glb`, `X.basis.glb` and `X_semantic.ply`."""
    return (
        path.stem.removesuffix(".scene_instance")
        .removesuffix(".basis")
        .removesuffix("_semantic")
        .removesuffix(".semantic")
    )


def find_legend(path: Path) -> Path | None:
    """Find the legend of a mesh's own vertex colours: `X.semantic.txt` beside it."""
    legend = path.parent / f"{annotation_key(path)}.semantic.txt"
    return legend if legend.is_file() else None


def _candidates(path: Path) -> list[tuple[Path, tuple[Path, ...]]]:
    """Return the possible annotated meshes of a mesh, each with the category lists that may belong to it."""
    folder, key = path.parent, annotation_key(path)
    return [
        (folder / f"{key}.semantic.glb", (folder / f"{key}.semantic.txt",)),
        (folder / f"{key}_semantic.ply", (folder / f"{key}.house", folder / f"{key}.scn")),
        (folder / "habitat" / "mesh_semantic.ply", (folder / "habitat" / "info_semantic.json",)),
    ]


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def find_annotation(path: Path) -> Annotation | None:
    """Find the complete semantic annotation beside a mesh; None if there is none.

    Checks file names only; opens no file.
    """
    folder, key = path.parent, annotation_key(path)
    if path.suffix.lower() == ".ply" and path.stem in ("mesh_semantic", f"{key}_semantic"):
        listed = _first((folder / "info_semantic.json", folder / f"{key}.house", folder / f"{key}.scn"))
        return Annotation(listed, None) if listed else None
    for surface, lists in _candidates(path):
        listed = _first(lists)
        beside = surface.parent == folder or path.stem == "mesh"
        if listed is not None and surface.is_file() and surface != path and beside:
            return Annotation(listed, surface)
    return None


def missing_annotation(path: Path) -> tuple[str, ...]:
    """Return the files that a partial annotation of a mesh lacks; empty if there is none or it is complete."""
    if find_annotation(path) is not None:
        return ()
    for surface, lists in _candidates(path):
        listed = _first(lists)
        if surface.is_file() and listed is None:
            return (" or ".join(file.name for file in lists),)
        # A legend alone is whole where the mesh has vertex colours of its own.
        if listed is not None and not surface.is_file():
            return (surface.name,)
    return ()


def annotation_files(path: Path) -> list[Path]:
    """Return the files beside a mesh that give its faces semantic names."""
    annotation = find_annotation(path)
    files = (annotation.names, annotation.surface) if annotation is not None else ()
    return [file for file in (*files, find_legend(path)) if file is not None]


def face_names(
    annotation: Annotation, parts: Sequence[Part], where: Path
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the semantic names, and the (F,) name index of every face of `parts` in order, −1 for unlabelled.

    Args:
        annotation: Of `find_annotation`.
        parts: The mesh.
        where: The mesh's file, for messages.

    Raises:
        MeshError: A file of the annotation is broken, or it annotates another surface.
    """
    if annotation.surface is None:
        return _numbered(annotation, parts, where)
    with reading(annotation.surface):
        is_ply = annotation.surface.suffix.lower() == ".ply"
        annotated = read_ply(annotation.surface) if is_ply else read_gltf(annotation.surface, textures=True)
    coded = _coded if annotation.names.name.endswith(".semantic.txt") else _numbered
    names, index = coded(annotation, annotated, annotation.surface)
    return names, _transfer(annotated, index, parts, annotation.surface, where)


def _numbered(
    annotation: Annotation, parts: Sequence[Part], where: Path
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    by_property = read_names(annotation.names)
    names: dict[str, int] = {}
    index = []
    for part in parts:
        column = next((key for key in by_property if key in part.ids), None)
        if column is None:
            raise MeshError(
                f"{where}: its faces carry none of the properties that {annotation.names.name} names "
                f"({', '.join(by_property)}); compile it with --semantics none"
            )
        values, inverse = np.unique(part.ids[column], return_inverse=True)
        known = [by_property[column].get(int(value)) for value in values]
        table = np.array([-1 if name is None else names.setdefault(name, len(names)) for name in known], np.int64)
        index.append(table[inverse.reshape(-1)])
    return tuple(names), np.concatenate(index) if index else np.zeros(0, np.int64)


def _coded(annotation: Annotation, parts: Sequence[Part], where: Path) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    legend = read_legend(annotation.names)
    codes = np.array(sorted(legend), dtype=np.int64)
    names = tuple(legend[int(code)] for code in codes)
    index = []
    for part in parts:
        shades = _texture_colors(part, where)
        if shades is None and part.colors is None:
            raise MeshError(f"{where}: has neither colour textures nor vertex colours; download it again")
        found = color_codes(part, codes) if shades is None else shades
        place = np.searchsorted(codes, found).clip(max=len(codes) - 1)
        index.append(np.where(codes[place] == found, place, -1))
    return names, np.concatenate(index) if index else np.zeros(0, np.int64)


def _texture_colors(part: Part, where: Path) -> npt.NDArray[np.int64] | None:
    """Sample the texture colour 0xRRGGBB at each face's centre (F,), as stored; None without a texture."""
    if part.uv is None or part.image is None:
        return None
    pixels = _decoded(part.image, where)
    middle = part.uv[part.faces].mean(axis=1)
    if not np.isfinite(middle).all():
        raise MeshError(f"{where}: a texture coordinate is not finite")
    height, width = pixels.shape[:2]
    # Texture coordinates repeat beyond 0…1, and v runs down the image (glTF 2.0, section 3.8.3).
    column, row = (
        (middle[:, k] % 1.0 * size).astype(np.int64).clip(0, size - 1) for k, size in ((0, width), (1, height))
    )
    texel = pixels[row, column].astype(np.int64)
    return texel[:, 0] << 16 | texel[:, 1] << 8 | texel[:, 2]  # type: ignore[no-any-return]


@lru_cache(maxsize=2)
def _decoded(image: bytes, where: Path) -> npt.NDArray[np.uint8]:
    """Decode a texture image into pixels (H, W, 3); cached, since the parts of a scene share a few images."""
    import io

    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(image), formats=("PNG", "JPEG", "WEBP")) as opened:
            if opened.width * opened.height > _MAX_IMAGE:
                raise MeshError(
                    f"{where}: a texture has {opened.width} × {opened.height} pixels, more than {_MAX_IMAGE} in all"
                )
            return np.asarray(opened.convert("RGB"))
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise MeshError(f"{where}: a texture cannot be decoded ({error}); PNG and JPEG are read, KTX2 is not") from None


def _transfer(
    annotated: Sequence[Part], index: npt.NDArray[np.int64], parts: Sequence[Part], surface: Path, where: Path
) -> npt.NDArray[np.int64]:
    """Transfer labels by nearest neighbour: each face gets the name of the annotated triangle nearest its centre.

    A dataset exports the annotated mesh separately from the plain one: its triangles have another order, and it may
    have another up axis. Where both are the same surface, the nearest triangle is the same triangle.
    """
    from navi_core.kernels import TriangleBVH

    middles = np.concatenate([part.points[part.faces].mean(axis=1) for part in parts])
    corners = np.concatenate([part.points[part.faces] for part in annotated]) if annotated else np.zeros((0, 3, 3))
    if not len(corners) or not np.isfinite(corners).all() or not np.isfinite(middles).all():
        raise MeshError(f"{surface}: holds no finite triangles; download it again")
    tree = TriangleBVH(corners)
    probes = middles[np.linspace(0, len(middles) - 1, min(len(middles), _PROBES)).astype(np.int64)]
    best = min(_TURNS, key=lambda turn: float(np.minimum(tree.closest(_turn(probes, turn))[0], 1.0).mean()))
    nearest = tree.closest(_turn(middles, best), _NEAR)[1]
    near = nearest >= 0
    if near.mean() < _FITTING:
        raise MeshError(
            f"{where}: only {100 * near.mean():.0f} % of its faces lie on the annotated surface {surface.name}; they "
            "are not the same scene: correct the files, or compile with --semantics object"
        )
    return np.where(near, index[nearest], -1)


_TURNS = ((0, 1, 2, 1, 1), (0, 2, 1, 1, -1), (0, 2, 1, -1, 1))
"""Axes and signs (x, y, z, sign of y, sign of z): as it stands, z-up to y-up, y-up to z-up."""


def _turn(points: npt.NDArray[np.float64], turn: tuple[int, ...]) -> npt.NDArray[np.float64]:
    return points[:, list(turn[:3])] * np.array([1.0, turn[3], turn[4]])  # type: ignore[no-any-return]
