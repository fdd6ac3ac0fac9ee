"""Semantics: every source of names reaches the ray's hit, in one documented order."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.errors import ConfigError, MeshError
from navi_core.scenes import compile_mesh, compile_to_file, load_gmdag, read_mesh
from navi_core.scenes.readers.annotation import read_legend, read_names
from navi_core.scenes.readers.mesh_file import hash_source
from navi_core.world import Field
from tests.scenes.mesh_files import COLORS, FLOOR, LEGEND, NAMES, TABLE, WALL, Glb, annotated_room, room, room_ply

HITS = {"floor": ((3.0, 1.5, 3.0), (0, -1, 0)), "table": ((1.5, 1.5, 1.5), (0, -1, 0)), "wall": ((3, 1, 2), (0, 0, 1))}
"""Rays that see the floor, the table and the wall of the room."""


def seen(path, **config) -> tuple[str, ...]:
    """Compile a file, store and load it, cast the three rays, and return the names of what they hit."""
    done = compile_to_file(path, path.parent / "compiled", CompileConfig(resolution=64, **config))
    field = Field([load_gmdag(done.path)], threads=1)
    names = []
    for origin, direction in HITS.values():
        rays = torch.tensor([direction], dtype=torch.float32)
        hit = field.cast_rays(torch.tensor([origin], dtype=torch.float32), rays, torch.zeros(1, dtype=torch.int32), 9.0)
        names.append(field.semantic_names[int(hit.semantic.reshape(-1)[0])])
    return tuple(names)


@pytest.mark.parametrize("how", ["texture", "linear", "srgb"])
def test_hm3d_annotations_reach_the_hit_by_name(tmp_path, how):
    mesh = room(tmp_path / "TEEsavR23oF.basis.glb")
    annotated_room(tmp_path / "TEEsavR23oF.semantic.glb", how)
    (tmp_path / "TEEsavR23oF.semantic.txt").write_text(LEGEND)
    assert seen(mesh) == NAMES
    assert read_mesh(mesh).name == "TEEsavR23oF"
    assert seen(mesh, semantics="object") == ("chunk_a", "chunk_b", "chunk_c")


def test_replica_face_ids_reach_the_hit_by_name(tmp_path):
    names = {
        "classes": [{"id": 7, "name": "floor"}, {"id": 40, "name": "table"}, {"id": 93, "name": "wall"}],
        "objects": [{"id": 0, "class_id": 7}, {"id": 1, "class_id": 40}, {"id": 2, "class_id": 93}],
    }
    folder = tmp_path / "apartment_0" / "habitat"
    semantic = room_ply(folder / "mesh_semantic.ply", z_up=True)
    (folder / "info_semantic.json").write_text(json.dumps(names))
    assert seen(semantic, up_axis="z") == ("floor", "table", "wall")
    # The surface beside it takes the names of its twin.
    plain = room_ply(tmp_path / "apartment_0" / "mesh.ply", z_up=True, ids={})
    assert seen(plain, up_axis="z") == ("floor", "table", "wall")


HOUSE = """ASCII 1.1
H x y 0 0 0 0 0 3 3 1 0 1 0 0 0 0 0 0 0 0 4 4 3 0 0 0 0 0
C 0 11 floor#tile 2 floor 0 0 0 0 0
C 1 12 coffee#table 5 table 0 0 0 0 0
C 2 13 wall 1 wall 0 0 0 0 0
O 0 0 0 0 0 0 1 0 0 0 1 0 1 1 1 0 0 0 0 0 0 0 0
O 1 0 1 0 0 0 1 0 0 0 1 0 1 1 1 0 0 0 0 0 0 0 0
O 2 0 2 0 0 0 1 0 0 0 1 0 1 1 1 0 0 0 0 0 0 0 0
"""


def test_matterport_names_survive_another_up_axis(tmp_path):
    mesh = room(tmp_path / "17DRP5sb8fy.glb")
    room_ply(tmp_path / "17DRP5sb8fy_semantic.ply", z_up=True)
    (tmp_path / "17DRP5sb8fy.house").write_text(HOUSE)
    assert seen(mesh) == ("floor", "table", "wall")
    categories = {"category_id": [11, 13, *([12] * len(TABLE))]}
    part = room_ply(tmp_path / "17DRP5sb8fy_semantic.ply", ids=categories)
    assert seen(part) == ("floor", "table", "wall")


def test_gibson_ids_reach_the_hit_by_name(tmp_path):
    mesh = room(tmp_path / "Allensville.glb")
    room_ply(tmp_path / "Allensville_semantic.ply")
    objects = [{"id": 1, "class_": "dining table", "location": None, "size": None}, {"id": 2, "class_": "wall"}]
    (tmp_path / "Allensville.scn").write_text(json.dumps({"objects": objects}))
    # Gibson names objects only; the floor has the unnamed id 0.
    assert seen(mesh) == ("surface", "dining table", "wall")


def test_object_names_take_precedence_over_materials(tmp_path):
    glb = Glb()
    glb.document["materials"] = [{"name": "oak"}, {"name": "plaster"}]
    glb.node(mesh=glb.mesh(FLOOR, material=0), name="Mesh_01")
    glb.node(mesh=glb.mesh(TABLE, "desk", material=0), name="node12")
    glb.node(mesh=glb.mesh(WALL, material=1), name="north wall")
    path = glb.write(tmp_path / "house.glb")
    assert seen(path) == ("oak", "desk", "north wall")
    assert seen(path, semantics="material") == ("oak", "oak", "plaster")
    assert seen(path, semantics="none") == ("surface", "surface", "surface")


@pytest.mark.parametrize("how", ["linear", "srgb"])
def test_vertex_colours_count_in_auto_only_with_a_legend(tmp_path, how):
    path = annotated_room(tmp_path / "scan.glb", how)
    assert seen(path) == ("surface",) * 3
    before = hash_source(path)
    (tmp_path / "scan.semantic.txt").write_text(LEGEND)
    assert seen(path) == NAMES
    # The legend decides the result: without it in the hash an edited one would be ignored.
    assert hash_source(path) != before


def test_colours_without_a_legend_are_named_by_their_code(tmp_path):
    path = room_ply(tmp_path / "scan.ply", ids={}, face_colors=[COLORS[0], COLORS[2], *[COLORS[1]] * len(TABLE)])
    assert seen(path, semantics="vertex_color") == ("#a0c020", "#10f0e8", "#10f0e9")
    many = [[i % 256, i // 256, 0] for i in range(3000)]
    rows = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(1000)]
    from tests.scenes.mesh_files import write_ply

    photo = write_ply(tmp_path / "photo.ply", np.random.default_rng(0).random((3000, 3)), rows * 2,
                      face_colors=many[:2000])  # fmt: skip
    with pytest.raises(MeshError, match=r"2000 different vertex colours .*photo\.semantic\.txt"):
        read_mesh(photo, semantics="vertex_color")


def test_missing_semantics_source_is_refused(tmp_path):
    path = room(tmp_path / "plain.glb")
    with pytest.raises(MeshError, match=r"no complete annotation .*navi doctor"):
        read_mesh(path, semantics="annotation")
    with pytest.raises(MeshError, match="no vertex colours"):
        read_mesh(path, semantics="vertex_color")
    with pytest.raises(ConfigError, match=r"semantics 'class' .*annotation"):
        read_mesh(path, semantics="class")


def test_an_annotation_of_another_scene_is_refused(tmp_path):
    glb = Glb()
    glb.node(mesh=glb.mesh(FLOOR + 100.0, COLOR_0=glb.accessor(np.zeros((6, 3)), "f4")))
    glb.write(tmp_path / "a.semantic.glb")
    (tmp_path / "a.semantic.txt").write_text(LEGEND)
    with pytest.raises(MeshError, match=r"only 0 % of its faces .*not the same scene"):
        read_mesh(room(tmp_path / "a.glb"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lists no colours"),
        ("HM3D Semantic Annotations\n", "lists no colours"),
        ('1,ZZ0000,"wall",0\n', "line 1"),
        ("1,FF0000\n", "line 1"),
        ('1,FF0000,"wall",0\n2,ff0000,"floor",0\n', "line 2: the colour ff0000 already means 'wall'"),
        ('1,FF00FF00FF,"wall",0\n', "line 1"),
        ('1,FF0000,"wall,0\n', "line 1"),
    ],
)
def test_a_broken_legend_is_refused_by_line(tmp_path, text, reason):
    path = tmp_path / "x.semantic.txt"
    path.write_text(text)
    with pytest.raises(MeshError, match=reason):
        read_legend(path)


def test_legend_names_with_quotes_and_escapes_are_sanitised(tmp_path):
    path = tmp_path / "x.semantic.txt"
    path.write_bytes(
        b'\xef\xbb\xbfHM3D Semantic Annotations\r\n1,FF0000,"a, ""b""",0\r\n2,00FF00,sofa, grey,3\n'
        b'3,0000FF,"\x1b[31mred\x07",1\n4,000001,"",1\n5,A,"short code",1\n'
    )
    names = read_legend(path)
    assert names == {0xFF0000: 'a, "b"', 0x00FF00: "sofa, grey", 0x0000FF: "?[31mred?", 1: "object 4", 10: "short code"}


@pytest.mark.parametrize("name", ["x.scn", "info_semantic.json", "x.house"])
@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"objects": 3}', b"C 1\nO x", b"\xff\xfe", b'{"objects": [{}]}'])
def test_a_broken_list_of_names_is_an_error_or_empty(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    names, message = {}, name
    try:
        names = read_names(path)
    except MeshError as error:
        message = str(error)
    assert not any(names.values())
    assert name in message


def test_control_characters_in_names_are_neutralised(tmp_path):
    glb = Glb()
    glb.node(mesh=glb.mesh(FLOOR), name="\x1b[2Jfloor\u202e\n")
    mesh = read_mesh(glb.write(tmp_path / "evil.glb"))
    assert mesh.semantic_names == {1: "surface", 2: "?[2Jfloor?"}
    assert compile_mesh(mesh, CompileConfig(resolution=16)).semantic_names == mesh.semantic_names


@pytest.mark.parametrize(
    "image", [b"", b"\xabKTX 20\xbb\r\n\x1a\n" + bytes(64), b"GIF89a" + bytes(64), b"\x89PNG\r\n\x1a\n"]
)
def test_an_annotation_texture_that_cannot_be_decoded_is_refused(tmp_path, image):
    glb = Glb()
    material = glb.texture(np.zeros((2, 2, 3)))
    glb.document["images"][0] = {"bufferView": glb.view(image)}
    uv = glb.accessor(np.zeros((6, 2)), "f4")
    glb.node(mesh=glb.mesh(FLOOR, material=material, TEXCOORD_0=uv))
    glb.write(tmp_path / "a.semantic.glb")
    (tmp_path / "a.semantic.txt").write_text(LEGEND)
    with pytest.raises(MeshError, match=r"a\.semantic\.glb: .*(texture cannot be decoded|neither colour)"):
        read_mesh(room(tmp_path / "a.glb"))


def test_an_annotation_texture_of_a_gigapixel_is_refused_before_it_is_decoded(tmp_path):
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0))
    image = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    glb = Glb()
    material = glb.texture(np.zeros((2, 2, 3)))
    glb.document["images"][0] = {"bufferView": glb.view(image)}
    glb.node(mesh=glb.mesh(FLOOR, material=material, TEXCOORD_0=glb.accessor(np.zeros((6, 2)), "f4")))
    glb.write(tmp_path / "a.semantic.glb")
    (tmp_path / "a.semantic.txt").write_text(LEGEND)
    with pytest.raises(MeshError, match="9000 × 9000 pixels"):
        read_mesh(room(tmp_path / "a.glb"))
