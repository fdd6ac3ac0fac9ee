"""Reader of glTF 2.0 meshes (.glb, .gltf): every instance of every triangle mesh, placed by the scene graph.

Unlike general libraries, this reader keeps names, vertex colours and instancing, reads no textures from disk, and
decodes nothing that `gltf_check` has not measured. Section numbers are of the glTF 2.0 specification.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.gltf_check import COMPONENTS, DTYPES, GltfFile, open_gltf
from navi_core.scenes.readers.part import MAX_TRIANGLES, Float64, MeshFacts, Part, face_majority, rotation_matrix

_TRIANGLES, _STRIP, _FAN = 4, 5, 6
_INSTANCING = "EXT_mesh_gpu_instancing"
_TRANSFORM = (("translation", (0, 0, 0)), ("rotation", (0, 0, 0, 1)), ("scale", (1, 1, 1)))
"""Parts of a transform and their defaults."""
_MAX_DEPTH_WORK = 5_000_000
_MAX_INSTANCES = 1_000_000
"""Instances of one node."""
_log = logging.getLogger(__name__)


def read_gltf_facts(path: Path) -> MeshFacts:
    """Read a glTF file's mesh facts (triangle count, bounds) from its JSON alone.

    The bounds are those of the accessors' own minima and maxima, which the specification demands.

    Raises:
        MeshError: As `read_gltf`.
    """
    gltf = open_gltf(path)
    accessors = gltf.document.get("accessors", [])
    total, corners = 0, []
    for _, _, primitive, placements in _instances_of_primitives(gltf):
        attributes, mode = primitive.get("attributes", {}), primitive.get("mode", _TRIANGLES)
        if mode not in (_TRIANGLES, _STRIP, _FAN) or "POSITION" not in attributes:
            continue
        position = accessors[_index(attributes["POSITION"], len(accessors), "accessor")]
        order = accessors[primitive["indices"]] if "indices" in primitive else position
        count = int(order["count"]) // 3 if mode == _TRIANGLES else max(int(order["count"]) - 2, 0)
        total += count * len(placements)
        if "min" in position and "max" in position and not position.get("normalized"):
            box = np.array(np.meshgrid(*zip(position["min"], position["max"], strict=True))).reshape(3, -1).T
            corners.append(_moved(box, placements))
    every = np.concatenate(corners) if corners else np.zeros((0, 3))
    bounds = np.stack([every.min(axis=0), every.max(axis=0)]) if len(every) and np.isfinite(every).all() else None
    return MeshFacts(total, True, bounds)


def read_gltf(path: Path, *, textures: bool = False) -> list[Part]:
    """Read a glTF file: one part per primitive and instance, in the order of the scene graph.

    Args:
        path: A .glb or .gltf file.
        textures: Also return texture coordinates and the encoded base-colour image of each part.

    Raises:
        MeshError: The file is broken, compressed, or not glTF 2.0.
    """
    gltf = open_gltf(path)
    meshes, nodes = gltf.document.get("meshes", []), gltf.document.get("nodes", [])
    cache: dict[tuple[int, int], Part | None] = {}
    parts: list[Part] = []
    total = bent = 0
    for node, key, primitive, placements in _instances_of_primitives(gltf):
        bent += "skin" in node and key[1] == 0
        if key not in cache:
            cache[key] = _primitive(gltf, primitive, textures)
        shape = cache[key]
        if shape is None:
            continue
        names = tuple(str(n) for n in (node.get("name"), meshes[key[0]].get("name")) if n)
        total += len(shape.faces) * len(placements)
        if total > MAX_TRIANGLES:
            raise MeshError(f"its instances have more than {MAX_TRIANGLES} triangles; split the scene")
        parts.append(_placed_part(shape, placements, names))
    if bent:
        _log.warning(
            "%s: %d skinned meshes are placed by their nodes, without their joints: they may lie elsewhere or have "
            "another size; export it with its pose applied", gltf.path, bent,
        )  # fmt: skip
    if not parts and not nodes and meshes:
        raise MeshError("its meshes are in no node, so nothing is placed; export the scene, not only its meshes")
    return parts


def _instances_of_primitives(
    gltf: GltfFile,
) -> Iterator[tuple[dict[str, Any], tuple[int, int], dict[str, Any], Float64]]:
    """Yield (node, (mesh, number in the mesh), primitive, placements (N, 4, 4)) in scene-graph order."""
    meshes = gltf.document.get("meshes", [])
    for node, world in _placed(gltf.document):
        if "mesh" not in node:
            continue
        index = _index(node["mesh"], len(meshes), "mesh")
        placements = world[None] if _INSTANCING not in node.get("extensions", {}) else _instances(gltf, node, world)
        for number, primitive in enumerate(meshes[index]["primitives"]):
            yield node, (index, number), primitive, placements


def _moved(points: Float64, placements: Float64) -> Float64:
    """Transform points (V, 3) by each of N matrices; return (N·V, 3)."""
    return (points @ placements[:, :3, :3].transpose(0, 2, 1) + placements[:, None, :3, 3]).reshape(-1, 3)


def _placed_part(shape: Part, placements: Float64, names: tuple[str, ...]) -> Part:
    """Return all instances of a primitive as one part, so that thousands of instances stay cheap."""
    count = len(placements)
    shift = np.arange(count)[:, None, None] * len(shape.points)
    colors, uv = (None if values is None else np.tile(values, (count, 1)) for values in (shape.colors, shape.uv))
    faces = (shape.faces + shift).reshape(-1, 3)
    points = _moved(shape.points, placements)
    return replace(shape, points=points, faces=faces, objects=names, colors=colors, uv=uv)  # type: ignore[arg-type]


def _placed(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Float64]]:
    """Depth-first scene-graph traversal: yield every node and its world matrix; `gltf_check` has excluded cycles."""
    nodes, scenes = document.get("nodes", []), document.get("scenes", [])
    if scenes:
        roots = scenes[_index(document.get("scene", 0), len(scenes), "scene")].get("nodes", [])
    else:
        inner = {child for node in nodes for child in node.get("children", [])}
        roots = [index for index in range(len(nodes)) if index not in inner]
    stack = [(_index(root, len(nodes), "node"), np.eye(4)) for root in reversed(roots)]
    local = _local_matrices(nodes)
    work = 0
    while stack:
        index, above = stack.pop()
        work += 1
        if work > _MAX_DEPTH_WORK:
            raise MeshError(f"its scenes list more than {_MAX_DEPTH_WORK} nodes; split the scene")
        node = nodes[index]
        with np.errstate(invalid="ignore", over="ignore"):
            world = above @ local[index]
        if not np.isfinite(world).all():
            raise MeshError(f"the transform of node {index} ({str(node.get('name', ''))[:60]!r}) is not finite")
        yield node, world
        stack += [(child, world) for child in reversed(node.get("children", []))]


def _local_matrices(nodes: list[dict[str, Any]]) -> Float64:
    """Return the local matrices (N, 4, 4) of nodes (section 3.5.3): column-major, or translation · rotation · scale.

    All at once: a long chain of nodes must cost no more than a file of its length.
    """
    translation, rotation, scale = (
        np.array([node.get(name, default) for node in nodes], dtype=np.float64).reshape(len(nodes), len(default))
        for name, default in _TRANSFORM
    )
    matrices = _compose(translation, rotation, scale)
    for index, node in enumerate(nodes):
        if "matrix" in node:
            matrices[index] = np.array(node["matrix"], dtype=np.float64).reshape(4, 4).T
    return matrices


def _compose(translation: Float64, rotation: Float64, scale: Float64) -> Float64:
    """Compose matrices (N, 4, 4) from translations (N, 3), quaternions x, y, z, w (N, 4) and scales (N, 3)."""
    with np.errstate(invalid="ignore"):  # callers refuse what is not finite
        x, y, z, w = (rotation / np.linalg.norm(rotation, axis=1, keepdims=True)).T
    matrix = np.zeros((len(translation), 4, 4))
    matrix[:, :3, :3] = rotation_matrix(x, y, z, w).transpose(2, 0, 1) * scale[:, None, :]
    matrix[:, :3, 3] = translation
    matrix[:, 3, 3] = 1
    return matrix


def _instances(gltf: GltfFile, node: dict[str, Any], world: Float64) -> Float64:
    attributes = node["extensions"][_INSTANCING]["attributes"]
    known = {name.upper(): default for name, default in _TRANSFORM}
    values = {name: _accessor(gltf, attributes[name]) for name in known if name in attributes}
    counts = {len(value) for value in values.values()}
    if len(counts) != 1:
        raise MeshError(f"{_INSTANCING}: its attributes have {sorted(counts)} entries; one number is needed")
    count = counts.pop()
    if count > _MAX_INSTANCES:
        raise MeshError(f"{_INSTANCING}: {count} instances, more than {_MAX_INSTANCES}; split the scene")
    rows = [values.get(name, np.tile(np.array(default, float), (count, 1))) for name, default in known.items()]
    placements = np.asarray(world @ _compose(rows[0], rows[1], rows[2]))
    if not np.isfinite(placements).all():
        raise MeshError(f"the transform of an instance of {_INSTANCING} is not finite")
    return placements


def _primitive(gltf: GltfFile, primitive: dict[str, Any], textures: bool) -> Part | None:
    mode, attributes = primitive.get("mode", _TRIANGLES), primitive.get("attributes", {})
    if mode not in (_TRIANGLES, _STRIP, _FAN) or "POSITION" not in attributes:
        return None
    points = _accessor(gltf, attributes["POSITION"])
    if points.shape[1] != 3:
        raise MeshError(f"a POSITION has {points.shape[1]} components, not 3")
    if "indices" in primitive:
        order = _accessor(gltf, primitive["indices"])[:, 0].astype(np.int64)
    else:
        order = np.arange(len(points), dtype=np.int64)
    faces = _faces(order, mode)
    if not len(faces):
        return None
    Part(points, faces)  # proves the indices before they index anything else
    colors = uv = image = None
    if "COLOR_0" in attributes:
        shades = _accessor(gltf, attributes["COLOR_0"], len(points))[:, :3].astype(np.float32)
        colors = face_majority(shades, faces) if shades.shape[1] == 3 else None
    material = gltf.document.get("materials", [])
    material = material[_index(primitive["material"], len(material), "material")] if "material" in primitive else {}
    if textures and "TEXCOORD_0" in attributes:
        texture = material.get("pbrMetallicRoughness", {}).get("baseColorTexture", {})
        if "index" in texture:
            uv = _accessor(gltf, attributes[f"TEXCOORD_{int(texture.get('texCoord', 0))}"], len(points))
            image = _image(gltf, texture["index"])
    if len(points) > faces.size:
        # Many primitives may share one huge vertex buffer; each keeps what it uses.
        used, inverse = np.unique(faces, return_inverse=True)
        points, faces, uv = points[used], inverse.reshape(-1, 3), uv[used] if uv is not None else None
    return Part(points, faces, (), str(material.get("name") or ""), colors, True, uv=uv if image else None, image=image)


def _faces(order: npt.NDArray[np.int64], mode: int) -> npt.NDArray[np.int64]:
    """Convert indices to triangles by primitive mode (section 3.7.2.1): lists, strips (odd ones flipped), fans."""
    if mode == _TRIANGLES:
        return order[: len(order) // 3 * 3].reshape(-1, 3)
    if len(order) < 3:
        return np.zeros((0, 3), np.int64)
    if mode == _FAN:
        return np.stack([order[1:-1], order[2:], np.full(len(order) - 2, order[0])], axis=1)
    faces = np.stack([order[:-2], order[1:-1], order[2:]], axis=1)
    faces[1::2] = faces[1::2][:, [0, 2, 1]]
    return faces


def _accessor(gltf: GltfFile, index: object, rows: int | None = None) -> npt.NDArray[np.float64]:
    """Decode an accessor into (count, components) float64; indices stay exact below 2⁵³."""
    accessors = gltf.document["accessors"]
    accessor = accessors[_index(index, len(accessors), "accessor")]
    count, width, dtype = (
        int(accessor["count"]),
        COMPONENTS[accessor["type"]],
        np.dtype(DTYPES[accessor["componentType"]]),
    )
    if rows is not None and count != rows:
        raise MeshError(f"accessor {index} has {count} entries for {rows} vertices")
    raw = np.zeros((count, width), dtype)
    if count and "bufferView" in accessor:
        data, view = gltf.view(int(accessor["bufferView"])), gltf.document["bufferViews"][int(accessor["bufferView"])]
        stride = int(view.get("byteStride", 0)) or dtype.itemsize * width
        offset = int(accessor.get("byteOffset", 0))
        raw = np.ndarray((count, width), dtype, data, offset, (stride, dtype.itemsize)).copy()
    if "sparse" in accessor:
        _apply_sparse(gltf, accessor["sparse"], raw)
    values = raw.astype(np.float64)
    if accessor.get("normalized") and dtype.kind in "iu":
        # Section 3.6.2.2: signed integers reach −1 at two values.
        values = np.maximum(values / np.iinfo(dtype).max, -1.0)
    return values


def _apply_sparse(gltf: GltfFile, sparse: dict[str, Any], raw: npt.NDArray[Any]) -> None:
    count = int(sparse["count"])
    indices, values = sparse["indices"], sparse["values"]
    where = np.frombuffer(
        gltf.view(int(indices["bufferView"])),
        DTYPES[indices["componentType"]],
        count,
        int(indices.get("byteOffset", 0)),
    ).astype(np.int64)
    new = np.frombuffer(
        gltf.view(int(values["bufferView"])), raw.dtype, count * raw.shape[1], int(values.get("byteOffset", 0))
    )
    if count and not 0 <= where.min() <= where.max() < len(raw):
        raise MeshError(f"a sparse accessor changes entry {where.max()} of {len(raw)}")
    raw[where] = new.reshape(count, raw.shape[1])


def _image(gltf: GltfFile, index: object) -> bytes | None:
    """Return the encoded bytes of a texture's image; None if it is in an extension's format (KTX2)."""
    textures, images = gltf.document.get("textures", []), gltf.document.get("images", [])
    texture = textures[_index(index, len(textures), "texture")]
    if "source" not in texture:
        return None
    image = images[_index(texture["source"], len(images), "image")]
    return gltf.view(_index(image["bufferView"], len(gltf.document["bufferViews"]), "bufferView")) if (
        "bufferView" in image
    ) else None  # fmt: skip


def _index(value: object, count: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise MeshError(f"{what} {value!r} does not exist, there are {count}")
    return value
