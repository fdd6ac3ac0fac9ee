"""Mesh files: instances placed, names kept, broken files refused by name and reason."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.errors import ConfigError, MeshError
from navi_core.scenes import compile_to_file, read_mesh
from navi_core.scenes.readers.mesh_file import hash_source
from tests.scenes.mesh_files import pack_glb

trimesh = pytest.importorskip("trimesh")


@pytest.fixture
def furnished_glb(tmp_path) -> Path:
    """A GLB with one table, instanced chairs (turned, moved, scaled) and a nested group."""
    scene = trimesh.Scene()
    scene.add_geometry(trimesh.creation.box((2, 1, 2)), node_name="table", geom_name="table")
    chair = trimesh.creation.box((0.4, 1.0, 0.4))
    turn = trimesh.transformations.rotation_matrix(np.pi / 2, [0, 0, 1])
    turn[:3, 3] = (5, 0, 0)
    scene.add_geometry(chair, node_name="red_chair", geom_name="chair", transform=turn)
    scene.graph.update(
        frame_to="group", frame_from="world", matrix=trimesh.transformations.translation_matrix([0, 10, 0])
    )
    scale = np.diag([3.0, 3.0, 3.0, 1.0])
    scene.graph.update(frame_to="blue_chair", frame_from="group", matrix=scale, geometry="chair")
    file = tmp_path / "furnished.glb"
    scene.export(str(file))
    return file


def part(mesh, name: str) -> np.ndarray:
    """Return the bounds (2, 3) of one semantic."""
    key = next(i for i, n in mesh.semantic_names.items() if n == name)
    points = mesh.triangles[mesh.face_semantic == key].reshape(-1, 3)
    return np.stack([points.min(axis=0), points.max(axis=0)])


def test_transforms_of_the_scene_graph_place_every_instance(furnished_glb):
    mesh = read_mesh(furnished_glb)
    assert mesh.semantic_names == {1: "surface", 2: "blue_chair", 3: "red_chair", 4: "table"}
    assert len(mesh.faces) == 36
    np.testing.assert_allclose(part(mesh, "table"), [[-1, -0.5, -1], [1, 0.5, 1]], atol=1e-6)
    np.testing.assert_allclose(part(mesh, "red_chair"), [[4.5, -0.2, -0.2], [5.5, 0.2, 0.2]], atol=1e-6)
    np.testing.assert_allclose(part(mesh, "blue_chair"), [[-0.6, 8.5, -0.6], [0.6, 11.5, 0.6]], atol=1e-6)


def test_up_axis_and_unit_scale_turn_and_scale(furnished_glb):
    plain, turned = read_mesh(furnished_glb), read_mesh(furnished_glb, up_axis="z", unit_scale=0.5)
    x, y, z = (plain.vertices * 0.5).T
    np.testing.assert_allclose(turned.vertices, np.stack([x, z, -y], axis=1), atol=1e-12)
    # A turn, not a mirror: the volume keeps its sign.
    sign = [np.sign(np.einsum("ij,ij->i", t[:, 0], np.cross(t[:, 1], t[:, 2])).sum()) for t in
            (plain.triangles, turned.triangles)]  # fmt: skip
    assert sign[0] == sign[1]


def test_impossible_options_are_refused(furnished_glb):
    with pytest.raises(ConfigError, match="up_axis"):
        read_mesh(furnished_glb, up_axis="x")
    with pytest.raises(ConfigError, match="unit_scale"):
        read_mesh(furnished_glb, unit_scale=0.0)


@pytest.mark.parametrize("suffix", [".glb", ".gltf", ".obj", ".ply", ".stl"])
def test_every_supported_type_gives_the_same_surface(tmp_path, suffix):
    box = trimesh.creation.box((4, 2.5, 3))
    file = tmp_path / f"room{suffix}"
    if suffix == ".gltf":
        for name, data in trimesh.exchange.gltf.export_gltf(trimesh.Scene(box)).items():
            (tmp_path / (file.name if name == "model.gltf" else name)).write_bytes(data)
    else:
        box.export(str(file))
    mesh = read_mesh(file)
    assert len(mesh.faces) == 12
    np.testing.assert_allclose(mesh.bounds, [[-2, -1.25, -1.5], [2, 1.25, 1.5]], atol=1e-6)
    assert mesh.name == "room"
    assert len(mesh.source_hash) == 64


def test_obj_objects_keep_their_names_even_when_they_share_a_material(tmp_path):
    file = tmp_path / "two.obj"
    file.write_text(
        "mtllib none.mtl\no chair\nv 0 0 0\nv 1 0 0\nv 0 1 0\nv 1 1 0\nusemtl wood\nf 1 2 4 3\n"
        "o table\nv 0 0 5\nv 1 0 5\nv 0 1 5\nusemtl wood\nf -3/1/1 -2/2/1 -1/3/1\n"
    )
    mesh = read_mesh(file)
    assert mesh.semantic_names == {1: "surface", 2: "chair", 3: "table"}
    assert np.bincount(mesh.face_semantic).tolist() == [0, 0, 2, 1]
    np.testing.assert_allclose(part(mesh, "table")[:, 2], 5.0)


def test_a_side_file_is_part_of_the_source_hash(tmp_path):
    file = tmp_path / "a.gltf"
    box = trimesh.creation.box((1, 1, 1))
    for name, data in trimesh.exchange.gltf.export_gltf(trimesh.Scene(box)).items():
        (tmp_path / (file.name if name == "model.gltf" else name)).write_bytes(data)
    before = hash_source(file)
    binary = next(tmp_path.glob("*.bin"))
    data = bytearray(binary.read_bytes())
    data[5] ^= 1
    binary.write_bytes(bytes(data))
    assert hash_source(file) != before
    binary.unlink()
    with pytest.raises(MeshError, match=r"\.bin"):
        read_mesh(file)


def accessor_glb(count: int, view: int = 12, buffer: int = 12) -> bytes:
    return pack_glb(
        {
            "asset": {"version": "2.0"},
            "buffers": [{"byteLength": buffer}],
            "bufferViews": [{"buffer": 0, "byteLength": view}],
            "accessors": [{"bufferView": 0, "componentType": 5126, "count": count, "type": "VEC3"}],
        },
        bytes(12),
    )


BROKEN = {
    "unsupported.fbx": (b"x", r"'.fbx' is not supported; allowed: \.glb, \.gltf"),
    "compiled.gmdag": (b"GDAG", "load_gmdag"),
    "empty.glb": (b"", "0 bytes"),
    "short.glb": (b"glTF\x02\0\0\0", "truncated: 8 bytes"),
    "magic.glb": (b"GLTF" + bytes(40), "wrong magic"),
    "version.glb": (struct.pack("<4sII", b"glTF", 1, 40) + bytes(28), "version 1"),
    "length.glb": (pack_glb({"asset": {"version": "2.0"}}, length=9999), "promises 9999 bytes"),
    "json.glb": (pack_glb({"asset": {}})[:-6] + b"\xff" * 6, "JSON is broken"),
    "no_surface.glb": (pack_glb({"asset": {"version": "2.0"}}), "broken|no triangles"),
    "huge_accessor.glb": (accessor_glb(2**40), "claims 1099511627776 elements"),
    "long_accessor.glb": (accessor_glb(4000), r"needs 48000 bytes"),
    "long_view.glb": (accessor_glb(1, view=5000), "ends at byte 5000"),
    "long_buffer.glb": (accessor_glb(1, buffer=5000), "claims 5000 bytes"),
    "not_an_object.gltf": (b"[]", "not an object"),
    "half.gltf": (b'{"asset": {"version"', "broken or truncated"),
    "missing_buffer.gltf": (b'{"buffers": [{"byteLength": 4, "uri": "lost.bin"}]}', "lost.bin"),
    "nonsense.gltf": (b'{"accessors": [{"count": "many"}]}', "is broken"),
    "bad_face.obj": (b"v 0 0 0\nv 1 0 0\nf 1 2 3\n", "line 3 .*vertex 3 does not exist"),
    "half.obj": (b"v 0 0 0\nv 1 0\n", "line 2"),
    "points.obj": (b"v 0 0 0\nv 1 0 0\n", "no triangles"),
    "nan.obj": (b"v 0 0 0\nv nan 0 0\nv 0 1 0\nf 1 2 3\n", "vertex 1 = "),
    "flat.obj": (b"v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n", "zero area"),
    "magic.ply": (b"plx\n", "does not begin with 'ply'"),
    "huge.ply": (b"ply\nformat binary_little_endian 1.0\nelement vertex 4000000000\nend_header\n", "truncated"),
    "half.ply": (b"ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\n", "broken"),
    "short.stl": (bytes(50), "truncated: 50 bytes"),
    "half.stl": (bytes(80) + struct.pack("<I", 100) + bytes(50), "100 triangles need 5084"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_refused_without_output(name, tmp_path):
    data, reason = BROKEN[name]
    file, out = tmp_path / name, tmp_path / "out"
    file.write_bytes(data)
    with pytest.raises(MeshError, match=reason) as caught:
        read_mesh(file)
    assert name in str(caught.value) or "lost.bin" in str(caught.value)
    assert caught.value.exit_code != 0
    with pytest.raises(MeshError):
        compile_to_file(file, out, CompileConfig(resolution=16))
    assert not out.exists()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95, 0.999])
def test_a_glb_cut_anywhere_is_refused(furnished_glb, share):
    data = furnished_glb.read_bytes()
    furnished_glb.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(MeshError, match=r"truncated|broken"):
        read_mesh(furnished_glb)


def test_a_damaged_glb_is_read_or_refused_but_never_crashes(furnished_glb):
    rng = np.random.default_rng(0)
    whole = furnished_glb.read_bytes()
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for position in rng.integers(len(data), size=4):
            data[position] = int(rng.integers(256))
        furnished_glb.write_bytes(bytes(data))
        try:
            read_mesh(furnished_glb)
        except MeshError:
            refused += 1
    assert refused > 10


def test_missing_file_error_suggests_similar_names(tmp_path, furnished_glb):
    with pytest.raises(MeshError, match=r"did you mean furnished\.glb\?.*navi scenes list"):
        read_mesh(tmp_path / "furnishd.glb")
    with pytest.raises(MeshError, match="neither does the folder"):
        read_mesh(tmp_path / "no" / "x.glb")
    (tmp_path / "folder.glb").mkdir()
    with pytest.raises(MeshError, match="not a file"):
        read_mesh(tmp_path / "folder.glb")


def test_the_real_house_is_read_whole(real_scenes):
    mesh = read_mesh(real_scenes / "small_house.glb")
    assert 145_000 < len(mesh.faces) <= 145_844
    assert len(mesh.semantic_names) == 86
    np.testing.assert_allclose(mesh.bounds[1] - mesh.bounds[0], [19, 3, 11.4], atol=0.01)
