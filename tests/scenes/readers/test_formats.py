"""Mesh formats: valid files are read as an independent reader reads them, invalid ones are refused."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from navi_core.errors import MeshError
from navi_core.scenes import read_mesh
from tests.scenes.mesh_files import FLOOR, TABLE, Glb, pack_glb, room, room_ply, write_ply

SQUARE = [[0, 0, 0], [4, 0, 0], [4, 0, 4], [0, 0, 4]]


def simple(**node) -> Glb:
    glb = Glb()
    glb.node(mesh=glb.mesh(FLOOR), **node)
    return glb


GRAPHS = {
    "a node that is its own child": ([{"children": [0], "mesh": 0}], "node 0 is a child of"),
    "two nodes that are each other's child": ([{"children": [1]}, {"children": [0], "mesh": 0}], "among its own"),
    "a cycle nobody reaches": ([{"mesh": 0}, {"children": [2]}, {"children": [1]}], "node 1 is among its own"),
    "a node with two parents": ([{"children": [2]}, {"children": [2]}, {"mesh": 0}], "node 2 is a child of node 0 and"),
    "a child that does not exist": ([{"children": [7], "mesh": 0}], "child 7, but there are 1 nodes"),
    "a child that is no number": ([{"children": ["x"], "mesh": 0}], "child 'x'"),
    "a mesh that does not exist": ([{"mesh": 5}], "mesh 5 does not exist"),
    "a matrix that is not finite": ([{"mesh": 0, "matrix": [1e999] * 16}], "not finite|JSON"),
    "a matrix of nine": ([{"mesh": 0, "matrix": [1] * 9}], "is broken"),
    "a rotation of nothing": ([{"mesh": 0, "rotation": [0, 0, 0, 0]}], "not finite"),
}


@pytest.mark.parametrize("what", GRAPHS)
def test_invalid_scene_graph_is_refused(tmp_path, what):
    nodes, reason = GRAPHS[what]
    with pytest.raises(MeshError, match=reason):
        read_mesh(simple().write(tmp_path / "graph.glb", nodes=nodes, scenes=[{"nodes": [0]}]))


@pytest.mark.parametrize(
    ("extension", "reason"),
    [
        ("KHR_draco_mesh_compression", r"compressed \(Draco.*npx @gltf-transform/cli copy squeezed\.glb"),
        ("EXT_meshopt_compression", r"compressed \(meshopt"),
        ("VENDOR_voxels", "needs the glTF extension 'VENDOR_voxels'"),
    ],
)
def test_undecodable_files_are_refused_with_the_next_step(tmp_path, extension, reason):
    with pytest.raises(MeshError, match=reason):
        read_mesh(simple().write(tmp_path / "squeezed.glb", extensionsRequired=[extension]))


def test_textures_of_any_kind_are_ignored(tmp_path):
    glb = simple()
    glb.document["images"] = [{"uri": "lost.ktx2"}]
    glb.document["textures"] = [{"extensions": {"KHR_texture_basisu": {"source": 0}}}]
    required = ["KHR_texture_basisu", "KHR_materials_unlit", "KHR_texture_transform"]
    assert len(read_mesh(glb.write(tmp_path / "t.glb", extensionsRequired=required)).faces) == 2


def test_a_deep_chain_of_nodes_is_walked_without_recursion(tmp_path):
    nodes = [{"children": [i + 1], "translation": [0.001, 0, 0]} for i in range(5000)] + [{"mesh": 0}]
    mesh = read_mesh(simple().write(tmp_path / "deep.glb", nodes=nodes, scenes=[{"nodes": [0]}]))
    np.testing.assert_allclose(mesh.bounds, [[5, 0, 0], [9, 0, 4]], atol=1e-5)


def test_only_the_default_scene_is_read(tmp_path):
    glb = simple(name="first")
    glb.node(mesh=0, name="second", translation=[0, 1, 0])
    path = glb.write(tmp_path / "two.glb", scenes=[{"nodes": [0]}, {"nodes": [1]}], scene=1)
    assert read_mesh(path).semantic_names == {1: "surface", 2: "second"}


def test_instances_of_the_instancing_extension_are_placed(tmp_path):
    glb = Glb()
    attributes = {
        "TRANSLATION": glb.accessor([[0, 0, 0], [10, 0, 0]], "f4"),
        "ROTATION": glb.accessor([[0, 0, 0, 127], [0, 127, 0, 0]], "i1", normalized=True),
        "SCALE": glb.accessor([[1, 1, 1], [2, 2, 2]], "f4"),
    }
    glb.node(mesh=glb.mesh(FLOOR), translation=[0, 5, 0],
             extensions={"EXT_mesh_gpu_instancing": {"attributes": attributes}})  # fmt: skip
    path = glb.write(tmp_path / "many.glb", extensionsRequired=["EXT_mesh_gpu_instancing"])
    corners = read_mesh(path).triangles.reshape(2, -1, 3)
    np.testing.assert_allclose([corners[0].min(0), corners[0].max(0)], [[0, 5, 0], [4, 5, 4]], atol=1e-6)
    # Half a turn about +Y and twice as large, from x = 10.
    np.testing.assert_allclose([corners[1].min(0), corners[1].max(0)], [[2, 5, -8], [10, 5, 0]], atol=1e-5)
    attributes["SCALE"] = glb.accessor([[1, 1, 1]], "f4")
    with pytest.raises(MeshError, match=r"\[1, 2\] entries"):
        read_mesh(glb.write(tmp_path / "odd.glb"))


@pytest.mark.parametrize(("mode", "faces"), [(4, 1), (5, 2), (6, 2), (1, 0), (0, 0)])
def test_strips_and_fans_become_triangles_of_one_winding(tmp_path, mode, faces):
    glb = Glb()
    order = {5: [0, 1, 3, 2]}.get(mode, [0, 1, 2, 3])
    primitive = {"attributes": {"POSITION": glb.accessor(SQUARE, "f4")}, "mode": mode,
                 "indices": glb.accessor(order, "u1")}  # fmt: skip
    glb.document["meshes"].append({"primitives": [primitive]})
    glb.node(mesh=0)
    path = glb.write(tmp_path / "mode.glb")
    if not faces:
        with pytest.raises(MeshError, match="no triangles"):
            read_mesh(path)
        return
    triangles = read_mesh(path).triangles
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    assert len(triangles) == faces and (normals[:, 1] < 0).all()
    if faces == 2:
        assert abs(normals[:, 1]).sum() / 2 == 16


def test_quantised_sparse_and_interleaved_positions_are_read(tmp_path):
    glb = Glb()
    quantised = glb.accessor(np.array(FLOOR).reshape(-1, 3) * 100, "i2")
    glb.document["meshes"].append({"primitives": [{"attributes": {"POSITION": quantised}}]})
    glb.node(mesh=0, scale=[0.01] * 3)
    rows = np.zeros((6, 5), "<f4")
    rows[:, :3] = np.add(np.reshape(FLOOR, (-1, 3)), [0, 1, 0])
    view = glb.view(rows.tobytes())
    glb.document["bufferViews"][view]["byteStride"] = 20
    base = {"bufferView": view, "componentType": 5126, "count": 6, "type": "VEC3"}
    sparse = {"count": 1, "indices": {"bufferView": glb.view(struct.pack("<H", 1)), "componentType": 5123},
              "values": {"bufferView": glb.view(struct.pack("<fff", 9, 1, 0))}}  # fmt: skip
    glb.document["accessors"].append(base | {"sparse": sparse})
    glb.document["meshes"].append({"primitives": [{"attributes": {"POSITION": 1}}]})
    glb.node(mesh=1)
    path = glb.write(tmp_path / "q.glb", extensionsRequired=["KHR_mesh_quantization"])
    corners = read_mesh(path).triangles
    np.testing.assert_allclose(corners[:2], FLOOR, atol=1e-6)
    np.testing.assert_allclose(corners[2, 1], [9, 1, 0])
    glb.document["accessors"][-1]["sparse"]["count"] = 10**6
    with pytest.raises(MeshError, match=r"q2\.glb"):
        read_mesh(glb.write(tmp_path / "q2.glb"))


def test_an_index_into_the_next_mesh_is_refused(tmp_path):
    glb = Glb()
    for _ in range(2):
        mesh = glb.mesh(FLOOR)
        glb.document["meshes"][mesh]["primitives"][0]["indices"] = glb.accessor([0, 1, 8], "u2")
        glb.node(mesh=mesh)
    with pytest.raises(MeshError, match=r"i\.glb: a face refers to vertex 8, but there are 6"):
        read_mesh(glb.write(tmp_path / "i.glb"))


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_of_every_form_keeps_mixed_polygons_and_ids(tmp_path, form):
    mesh = read_mesh(room_ply(tmp_path / "room.ply", form=form))
    assert len(mesh.faces) == 16
    np.testing.assert_allclose(mesh.bounds, [[0, 0, 0], [4, 2.5, 4]], atol=1e-6)
    quads = write_ply(tmp_path / "quads.ply", SQUARE, [[0, 1, 2, 3]], form=form, ids={"object_id": [7]})
    assert len(read_mesh(quads).faces) == 2
    pentagon = write_ply(tmp_path / "five.ply", [*SQUARE, [-1, 0, 2]], [[0, 1, 2, 3, 4], [0, 1], [0, 1, 2]], form=form)
    assert len(read_mesh(pentagon).faces) == 4


BROKEN_PLY = {
    "no faces": (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
                 b"end_header\n0 0 0\n", "points without faces"),
    "no positions": (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nelement face 0\n"
                     b"property list uchar int vertex_indices\nend_header\n0\n", "no x, y and z"),
    "unknown type": (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty quad x\nend_header\n", "header line"),
    "twice": (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float x\nend_header\n", "twice"),
    "no format": (b"ply\nelement vertex 1\nproperty float x\nend_header\n0\n", "no format"),
    "short text": (b"ply\nformat ascii 1.0\nelement vertex 9\nproperty float x\nend_header\n0\n1\n", "truncated"),
    "words": (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\nfar\n", "'far'"),
    "long list": (b"ply\nformat binary_little_endian 1.0\nelement face 1\nproperty list uint int vertex_indices\n"
                  b"end_header\n\xff\xff\xff\xff", "a list of 4294967295"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN_PLY)
def test_a_broken_ply_is_refused_with_the_fault(tmp_path, what):
    path = tmp_path / "x.ply"
    path.write_bytes(BROKEN_PLY[what][0])
    with pytest.raises(MeshError, match=BROKEN_PLY[what][1]):
        read_mesh(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_binary_ply_cut_anywhere_is_refused(tmp_path, share):
    path = room_ply(tmp_path / "cut.ply")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(MeshError, match=r"truncated|broken"):
        read_mesh(path)


def test_stl_solids_keep_their_names_and_binary_files_may_begin_with_solid(tmp_path):
    text = "".join(
        f"solid {name}\n" + "".join("facet normal 0 0 0\nouter loop\n" + "".join(
            f"vertex {x} {y + high} {z}\n" for x, y, z in triangle) + "endloop\nendfacet\n" for triangle in FLOOR)
        + f"endsolid {name}\n" for name, high in (("floor", 0), ("upper floor", 3)))  # fmt: skip
    path = tmp_path / "text.stl"
    path.write_text(text)
    assert read_mesh(path).semantic_names == {1: "surface", 2: "floor", 3: "upper floor"}
    path.write_text(text[: len(text) // 2])
    with pytest.raises(MeshError, match=r"truncated|broken"):
        read_mesh(path)
    record = np.zeros(len(TABLE), np.dtype([("n", "<f4", 3), ("v", "<f4", (3, 3)), ("a", "<u2")]))
    record["v"] = TABLE
    path.write_bytes(b"solid made by a machine".ljust(80) + struct.pack("<I", len(TABLE)) + record.tobytes())
    assert len(read_mesh(path).faces) == len(TABLE)


def test_an_independent_reader_sees_the_same_surface(tmp_path, real_scenes):
    trimesh = pytest.importorskip("trimesh")
    mixed = Glb()
    turn = {"rotation": [0.1, 0.7, -0.2, 0.67], "scale": [1, 2, 0.5], "translation": [3, 1, -2]}
    child = mixed.node(mesh=mixed.mesh(TABLE, "table"), name="inner", **turn)
    mixed.node(children=[child], mesh=0, name="outer", matrix=[0, 1, 0, 0, -1, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 1])
    for path in (mixed.write(tmp_path / "m.glb", scenes=[{"nodes": [1]}]), real_scenes / "small_house.glb"):
        scene = trimesh.load_scene(str(path), process=False)
        peer = []
        for node in scene.graph.nodes_geometry:
            matrix, key = scene.graph[node]
            geometry = scene.geometry[key]
            peer.append((geometry.vertices @ matrix[:3, :3].T + matrix[:3, 3])[geometry.faces])
        ours, theirs = (np.sort(t.sum(axis=(1, 2))) for t in (read_mesh(path).triangles, np.concatenate(peer)))
        # Ours has lost the faces without area.
        assert len(theirs) - len(ours) <= 4
        if len(ours) == len(theirs):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
        np.testing.assert_allclose(ours.sum(), theirs.sum(), rtol=1e-3)


def test_buffers_inside_the_json_are_read(tmp_path):
    import base64

    glb = simple(name="floor")
    document = {k: v for k, v in glb.document.items() if v} | {"asset": {"version": "2.0"}}
    uri = "data:application/octet-stream;base64," + base64.b64encode(glb.binary).decode()
    document["buffers"] = [{"byteLength": len(glb.binary), "uri": uri}]
    path = tmp_path / "one.gltf"
    path.write_text(json.dumps(document))
    assert read_mesh(path).semantic_names[2] == "floor"
    (tmp_path / "same.glb").write_bytes(pack_glb(document))
    np.testing.assert_array_equal(read_mesh(tmp_path / "same.glb").vertices, read_mesh(path).vertices)


def test_suspicious_units_and_axes_are_reported(tmp_path, caplog):
    path = room(tmp_path / "cm.glb")
    assert np.ptp(read_mesh(path, unit_scale=0.1).bounds[:, 0]) == pytest.approx(0.4)
    with pytest.raises(MeshError, match=r"more than 5000 m.*unit_scale"):
        read_mesh(path, unit_scale=1e4)
    with pytest.raises(MeshError, match=r"less than 0\.05 m.*unit_scale"):
        read_mesh(path, unit_scale=1e-3)


SHEET = "v 0 0 0\nv 4 0 0\nv 4 0 4\nv 0 0 4\n"
OBJ_HANDWRITING = {
    "a byte order mark": "\ufeff" + SHEET + "f -4 -3 -2 -1\n",
    "a continued face": SHEET + "f 1 2 \\\n  3 4\n",
    "a continued face of Windows": SHEET + "f 1 2 \\\r\n3 \\\r\n4\r\n",
    "a continued place": SHEET.replace("v 4 0 0", "v 4 \\\n0 0") + "f 1 2 3 4\n",
    "a name that ends like a continued line": "o C:\\scenes\\\n" + SHEET + "f 1 2 3 4\n",
    "a comment behind a face": SHEET + "f 1 2 3 4 # the floor\n",
}


@pytest.mark.parametrize("what", OBJ_HANDWRITING)
def test_handwritten_obj_variants_are_read(tmp_path, what):
    path = tmp_path / "sheet.obj"
    path.write_bytes(OBJ_HANDWRITING[what].encode())
    mesh = read_mesh(path)
    assert len(mesh.faces) == 2
    assert mesh.bounds.tolist() == [[0, 0, 0], [4, 0, 4]]


def test_obj_error_names_the_line_or_encoding(tmp_path):
    path = tmp_path / "sheet.obj"
    path.write_text(SHEET + "o a # b\nf 1 2 \\\nx 4\n")
    with pytest.raises(MeshError, match="line 6 'f 1 2  x 4'"):
        read_mesh(path)
    path.write_text(SHEET + "f 1 2 3 4\n", encoding="utf-16")
    with pytest.raises(MeshError, match="UTF-16; save it as UTF-8"):
        read_mesh(path)


def test_negative_ply_list_length_is_refused(tmp_path):
    names = "".join(f"property float {axis}\n" for axis in "xyz")
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex 3\n{names}element face 3000\n"
    body = np.array(SQUARE[:3], "<f4").tobytes() + b"\x03\x00\x01\x02" + b"\xff" + bytes(3000)
    path = tmp_path / "negative.ply"
    path.write_bytes(head.encode() + b"property list char uchar vertex_indices\nend_header\n" + body)
    with pytest.raises(MeshError, match="a list of -1 entries"):
        read_mesh(path)


def test_ply_comment_may_contain_end_header(tmp_path):
    path = write_ply(tmp_path / "a.ply", SQUARE, [[0, 1, 2, 3]])
    path.write_bytes(path.read_bytes().replace(b"comment a test", b"comment all up to end_header was made by hand"))
    assert len(read_mesh(path).faces) == 2


def test_a_binary_stl_that_begins_with_solid_is_recognised(tmp_path):
    record = np.zeros(len(TABLE), np.dtype([("n", "<f4", 3), ("v", "<f4", (3, 3)), ("a", "<u2")]))
    record["v"] = TABLE
    whole = b"solid".ljust(80) + struct.pack("<I", len(TABLE)) + record.tobytes()
    path = tmp_path / "solid.stl"
    path.write_bytes(whole + b"\0\0")
    assert len(read_mesh(path).faces) == len(TABLE)
    path.write_bytes(whole[:-7])
    with pytest.raises(MeshError, match="truncated: 12 triangles need 684 bytes, 677 are there"):
        read_mesh(path)
    corners = "".join(f"vertex {x} {y} {z}\n" for x, y, z in FLOOR[0].tolist())
    path.write_text(f"\ufeffsolid a\nfacet normal 0 0 0\nouter loop\n{corners}endloop\nendfacet\nendsolid a\n")
    assert len(read_mesh(path).faces) == 1


def test_geometry_that_is_only_compressed_is_reported_even_if_not_required(tmp_path):
    glb = simple()
    primitive = glb.document["meshes"][0]["primitives"][0]
    del glb.document["accessors"][primitive["attributes"]["POSITION"]]["bufferView"]
    primitive["extensions"] = {"KHR_draco_mesh_compression": {"bufferView": 0, "attributes": {"POSITION": 0}}}
    with pytest.raises(MeshError, match=r"compressed \(Draco"):
        read_mesh(glb.write(tmp_path / "draco.glb"))
    glb = simple()
    glb.document["bufferViews"][0] |= {"buffer": 1, "extensions": {"EXT_meshopt_compression": {"buffer": 0}}}
    with pytest.raises(MeshError, match=r"compressed \(meshopt"):
        read_mesh(glb.write(tmp_path / "meshopt.glb", buffers=[{"byteLength": len(glb.binary)}] * 2))
    del glb.document["bufferViews"][0]["extensions"]
    with pytest.raises(MeshError, match="truncated: buffer 1 claims"):
        read_mesh(glb.write(tmp_path / "second.glb", buffers=[{"byteLength": len(glb.binary)}] * 2))


def test_a_skinned_mesh_is_reported(tmp_path, caplog):
    glb = simple(skin=0)
    glb.node(name="joint")
    read_mesh(glb.write(tmp_path / "skin.glb", skins=[{"joints": [1]}]))
    assert "1 skinned meshes are placed by their nodes" in caplog.text
