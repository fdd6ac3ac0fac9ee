"""COLLADA files: units, scene graphs, polygons, names; and files made to do harm."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from navi_core.errors import MeshError
from navi_core.scenes import read_mesh
from navi_core.scenes.corpus.layouts import split_scenes
from navi_core.scenes.readers.collada import collada_up_axis, read_collada
from navi_core.scenes.readers.mesh_file import read_facts
from navi_core.scenes.readers.part import join_holes, triangulate
from navi_core.scenes.readers.xml_files import read_xml
from tests.scenes.world_files import CUBE, collada, geometry


def write(folder, text, name="a.dae"):
    file = folder / name
    file.write_text(text)
    return file


def test_every_instance_is_placed_in_metres_and_named(tmp_path):
    nodes = """<node name="outer"><translate>100 0 0</translate><rotate>0 0 1 90</rotate>
      <node name="crate"><matrix>2 0 0 0  0 1 0 50  0 0 1 0  0 0 0 1</matrix>
        <instance_geometry url="#cube"><bind_material><technique_common>
          <instance_material symbol="wood" target="#wood"/></technique_common></bind_material></instance_geometry>
      </node></node>
      <node id="lone"><scale>1 1 3</scale><instance_geometry url="#cube"/></node>"""
    first, second = read_collada(write(tmp_path, collada(nodes)))
    # Doubled along x and moved by 0.5 m along y, then a quarter turn to the left, then 1 m along x.
    loose = CUBE.reshape(-1, 3) / 100
    inner = loose * [2, 1, 1] + [0, 0.5, 0]
    expected = np.stack([-inner[:, 1] + 1, inner[:, 0], inner[:, 2]], axis=1)
    np.testing.assert_allclose(first.points[first.faces].reshape(-1, 3), expected, atol=1e-12)
    assert first.objects == ("crate", "cube mesh") and first.material == "oak wood"
    np.testing.assert_allclose(second.points[second.faces].reshape(-1, 3), loose * [1, 1, 3], atol=1e-12)
    assert second.objects == ("lone", "cube mesh") and second.material == "wood"


def test_library_nodes_are_placed_per_reference(tmp_path):
    library = """<library_nodes><node id="pair"><instance_geometry url="#cube"/>
      <node><translate>0 200 0</translate><instance_geometry url="#cube"/></node></node></library_nodes>"""
    pair = '<instance_node url="#pair"/>'
    nodes = f"<node>{pair}</node><node><translate>500 0 0</translate>{pair}</node>"
    parts = read_collada(write(tmp_path, collada(nodes, more=library)))
    assert [part.points.mean(axis=0).round(6).tolist() for part in parts] == [
        [0, 0, 0],
        [0, 2, 0],
        [5, 0, 0],
        [5, 2, 0],
    ]


def test_unit_with_a_decimal_comma_is_read(tmp_path):
    point, comma = (read_mesh(write(tmp_path, collada().replace("0.01", unit))).bounds for unit in ("0.01", "0,010000"))
    assert np.array_equal(point, comma)


@pytest.mark.parametrize(("up", "config"), [("Z_UP", "y"), ("Z_UP", "z"), ("Y_UP", "z"), ("Y_UP", "y")])
def test_up_axis_of_the_file_is_applied_once(tmp_path, up, config):
    nodes = '<node name="post"><scale>1 1 4</scale><translate>0 0 50</translate><instance_geometry url="#cube"/></node>'
    mesh = read_mesh(write(tmp_path, collada(nodes, up=up)), up_axis=config)
    high = (up, config) != ("Y_UP", "y")
    assert np.allclose(mesh.bounds, [[-0.5, 0, -0.5], [0.5, 4, 0.5]] if high else [[-0.5, -0.5, 0], [0.5, 0.5, 4]])
    assert list(mesh.semantic_names.values()) == ["surface", "post"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_up_axis_is_read_from_the_xml(tmp_path, encoding):
    text = collada().replace("<unit", "<!-- <up_axis>Y_UP</up_axis> --><unit").replace("utf-8", encoding)
    file = tmp_path / "a.dae"
    file.write_bytes(text.encode(encoding))
    assert collada_up_axis(file) == "z" and len(read_mesh(file).faces) == 12


def test_up_axis_of_a_file_that_is_refused_later_expands_no_entities(tmp_path):
    entities = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in itertools.pairwise("abcdefgh"))
    bomb = f'<!DOCTYPE l [<!ENTITY a "lol">{entities}]><COLLADA><asset><up_axis>&h;</up_axis></asset></COLLADA>'
    with pytest.raises(MeshError, match="declares a document type"):
        collada_up_axis(write(tmp_path, bomb))
    assert collada_up_axis(write(tmp_path, '<?xml version="1.0" encoding="none"?><COLLADA/>')) == "y"


def test_polygon_outline_survives_every_list_type(tmp_path):
    # An L of three squares; a fan from its first corner would cover the missing one.
    points = "<float_array id='a' count='18'>2 0 0 2 1 0 1 1 0 1 2 0 0 2 0 0 0 0</float_array>"
    source = f"""<source id='p'>{points}<technique_common><accessor source='#a' count='6' stride='3'/>
      </technique_common></source><vertices id='v'><input semantic='POSITION' source='#p'/></vertices>"""
    vertex = "<input semantic='VERTEX' source='#v' offset='0'/>"
    lists = {
        "polylist": "<vcount>6</vcount><p>0 1 2 3 4 5</p>",
        "polygons": "<p>0 1 2 3 4 5</p>",
        "trifans": "<p/><p>5 0 1 2</p><p>5 2 3 4</p>",
        "tristrips": "<p>5 0 2 1</p><p>5 2 4 3</p>",
    }
    for kind, text in lists.items():
        mesh = f"<geometry id='cube'><mesh>{source}<{kind} count='1'>{vertex}{text}</{kind}></mesh></geometry>"
        (part,) = read_collada(write(tmp_path, collada(geometries=mesh, unit="1")))
        a, b, c = np.moveaxis(part.points[part.faces], 1, 0)
        normal = np.cross(b - a, c - a)[:, 2] / 2
        assert (len(part.faces), normal.min() > 0, round(normal.sum(), 9)) == (4, True, 3.0), kind


@pytest.mark.parametrize("flip", [1, -1])
def test_holes_of_a_polygon_stay_open(tmp_path, flip):
    # A wall of 10 × 4 m, standing on y, with a door and two windows; windows are listed the one or the other way round.
    rings = [[(0, 0), (10, 0), (10, 4), (0, 4)]]
    rings += [[(x, 1), (x + 1, 1), (x + 1, 2), (x, 2)][::flip] for x in (1, 5)] + [[(8, 0.5), (9, 0.5), (8.5, 3.5)]]
    flat = [(x, 7.0, z) for ring in rings for x, z in ring]
    numbers = iter(range(len(flat)))
    listed = [" ".join(str(next(numbers)) for _ in ring) for ring in rings]
    holed = f"<ph><p>{listed[0]}</p>{''.join(f'<h>{ring}</h>' for ring in listed[1:])}</ph>"
    text = " ".join(f"{x} {y} {z}" for x, y, z in flat)
    mesh = f"""<geometry id='cube'><mesh><source id='p'><float_array id='a'>{text}</float_array>
      <technique_common><accessor source='#a' count='{len(flat)}' stride='3'/></technique_common></source>
      <vertices id='v'><input semantic='POSITION' source='#p'/></vertices><polygons count='1'>
      <input semantic='VERTEX' source='#v' offset='0'/>{holed}</polygons></mesh></geometry>"""
    (part,) = read_collada(write(tmp_path, collada(geometries=mesh, unit="1")))
    a, b, c = np.moveaxis(part.points[part.faces], 1, 0)
    facing = np.cross(b - a, c - a)[:, 1] / 2
    assert facing.max() <= 0 and facing.sum() == pytest.approx(-(40 - 1 - 1 - 1.5))
    for x, z in ((1.5, 1.5), (5.5, 1.5), (8.5, 1.0)):
        corners = part.points[part.faces][:, :, [0, 2]] - (x, z)
        one, two = corners, np.roll(corners, -1, axis=1)
        side = (one[..., 0] * two[..., 1] - one[..., 1] * two[..., 0]).T
        assert not ((side < 0).all(axis=0) | (side > 0).all(axis=0)).any(), (x, z)


def test_joining_holes_reads_only_the_polygon_points():
    points = np.zeros((1_000_000, 3))
    points[-8:, :2] = [(0, 0), (3, 0), (3, 3), (0, 3), (1, 1), (2, 1), (2, 2), (1, 2)]
    corners = np.arange(8) + len(points) - 8
    tracemalloc.start()
    ring = join_holes(points, corners[:4], [corners[4:]])
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert set(ring) == set(corners) and len(ring) == 10


def test_numbers_on_separate_lines_need_no_extra_memory(tmp_path):
    file = write(tmp_path, f"<a>{chr(10).join(['12'] * 300_000)}</a>")
    tracemalloc.start()
    root = read_xml(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(root.text.split()) == 300_000 and peak < 8 * file.stat().st_size


def test_many_holes_are_joined_without_crossing():
    rng = np.random.default_rng(0)
    for _ in range(150):
        rings = [np.array([[-1, -1], [9, -1], [9, 7], [4, 7], [4, 6.5], [3.9, 6.5], [3.9, 7], [-1, 7]])]
        for cell in rng.permutation(12)[: rng.integers(2, 9)].tolist():
            angle = rng.uniform(0, 6) + 2 * np.pi * np.arange(corners := int(rng.integers(3, 9))) / corners
            middle = np.array([1 + 2 * (cell // 3), 1 + 2 * (cell % 3)]) + rng.uniform(-0.2, 0.2, 2)
            rings.append(middle + rng.uniform(0.2, 0.7) * np.stack([np.cos(angle), np.sin(angle)], axis=1))
        points = np.insert(np.concatenate(rings), 2, 0.0, axis=1)
        outline, *holes = np.split(np.arange(len(points)), np.cumsum([len(ring) for ring in rings])[:-1])
        ring = join_holes(points, outline, holes)
        faces, _ = triangulate(points, ring, np.array([len(ring)]))
        a, b, c = np.moveaxis(points[faces], 1, 0)
        area = [abs(np.sum(r[:, 0] * np.roll(r[:, 1], -1) - r[:, 1] * np.roll(r[:, 0], -1))) / 2 for r in rings]
        assert np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2 == pytest.approx(area[0] - sum(area[1:]))


def test_accessor_offset_and_unnamed_params_are_respected(tmp_path):
    text = collada(unit="1").replace('count="36" stride="3">', 'count="36" stride="3" offset="2">')
    bare = read_collada(write(tmp_path, collada(unit="1")))[0]
    moved = read_collada(write(tmp_path, text.replace("-50.0 ", "7 8 -50.0 ", 1)))[0]
    np.testing.assert_array_equal(moved.points, bare.points)
    with pytest.raises(MeshError, match="from 2 on, 108 are there"):
        read_collada(write(tmp_path, text))
    wide = collada(unit="1").replace('stride="3">', 'stride="4"><param type="float"/>').replace('"36"', '"27"')
    skipped = read_collada(write(tmp_path, wide.replace(geometry_indices(36), geometry_indices(27))))[0]
    np.testing.assert_array_equal(skipped.points, CUBE.reshape(-1, 4)[:, 1:])


def geometry_indices(count):
    return " ".join(f"{i} 0" for i in range(count))


def test_geometries_without_a_scene_are_read_as_they_are(tmp_path):
    text = collada()
    cut = text[: text.index("<library_visual")] + "</COLLADA>"
    assert len(read_collada(write(tmp_path, "\n\n" + cut))[0].faces) == 12
    unnamed = text.replace('<scene><instance_visual_scene url="#Scene"/></scene>', "")
    assert read_collada(write(tmp_path, unnamed))[0].objects[0] == "crate"


@pytest.mark.parametrize(
    ("name", "limit"), [("_MAX_BYTES", "bytes of XML"), ("_MAX_ELEMENTS", "more than 20 elements")]
)
def test_xml_limits_are_enforced(tmp_path, monkeypatch, name, limit):
    monkeypatch.setattr(f"navi_core.scenes.readers.xml_files.{name}", 20)
    with pytest.raises(MeshError, match=limit):
        read_collada(write(tmp_path, collada()))


def test_a_polygon_of_too_many_corners_with_holes_is_refused():
    with pytest.raises(MeshError, match="1027 corners"):
        join_holes(np.zeros((1024, 3)), np.arange(1024), [np.arange(3), np.arange(2)])


def test_a_node_may_have_the_name_of_its_geometry(tmp_path):
    nodes = '<node id="cube"><instance_geometry url="#cube"/></node>'
    assert len(read_collada(write(tmp_path, collada(nodes)))[0].faces) == 12


@pytest.mark.parametrize("ending", [".glb", ".gltf", ".obj", ".ply", ".stl"])
def test_exported_copy_is_not_listed_as_a_scene(tmp_path, ending):
    write(tmp_path, collada(), "house.dae")
    write(tmp_path, collada(), "shed.DAE")
    write(tmp_path, "", f"house{ending}")
    meshes = [tmp_path / name for name in ("house.dae", "shed.DAE", f"house{ending}")]
    assert split_scenes(meshes) == (sorted(meshes[1:]), {meshes[0]: f"the same scene as house{ending}"})


def test_facts_estimate_the_triangles_of_the_file(tmp_path):
    file = write(tmp_path, collada())
    assert read_facts(file).triangles == 12
    lying = write(tmp_path, collada().replace('<triangles count="12"', '<triangles count="99999999999"'))
    assert read_facts(lying).triangles < lying.stat().st_size


def test_triangle_count_of_unclosed_tags_terminates(tmp_path):
    assert read_facts(write(tmp_path, '<triangles count="3' * 40_000 + "<triangles " * 100_000)).triangles > 0


LAUGHS = '<!DOCTYPE COLLADA [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
FILES = '<!DOCTYPE COLLADA [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
SELF = '<library_nodes><node id="n"><instance_node url="#n"/></node></library_nodes>'
DOUBLES = (
    "<library_nodes>"
    + "".join(
        f'<node id="n{i}"><instance_node url="#n{i + 1}"/><instance_node url="#n{i + 1}"/></node>' for i in range(40)
    )
    + '<node id="n40"/></library_nodes>'
)

CROWDED = f"""<library_nodes><node id="m">{"<scale>1 1 1</scale>" * 200}</node>
  <node id="n">{'<instance_node url="#m"/>' * 200}</node></library_nodes>"""


def placing(node, text):
    """Let the scene place a node of the library."""
    return text.replace('instance_geometry url="#cube"', f'instance_node url="#{node}"')


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.replace("<COLLADA", LAUGHS + "<COLLADA"), "document type"),
        (lambda t: t.replace("<COLLADA", FILES + "<COLLADA"), "document type"),
        (lambda t: t.replace("<asset>", "<a>" * 300 + "</a>" * 300 + "<asset>"), "256 deep"),
        (lambda t: t[: len(t) // 2], "broken or truncated"),
        (lambda t: t.replace("COLLADA", "svg"), "not <COLLADA>"),
        (lambda t: t.replace("#cube", "#cone"), "not there"),
        (lambda t: t.replace('url="#cube"', 'url="http://far.away/x.dae#cube"'), "outside of the file"),
        (lambda t: t.replace('count="36" stride', 'count="37" stride'), "truncated"),
        (lambda t: t.replace('stride="3"', 'stride="99999999999999999999"'), "truncated"),
        (lambda t: t.replace("<p>0 0", "<p>-1 0"), "vertex -1"),
        (lambda t: t.replace("<p>0 0", "<p>36 0"), "vertex 36"),
        (lambda t: t.replace("<p>0 0", "<p>0"), "groups of 2"),
        (lambda t: t.replace("<p>0 0", "<p>zero 0"), "is broken"),
        (lambda t: t.replace(">-50.0 ", ">nan "), "NaN or infinite"),
        (lambda t: t.replace(">-50.0 ", ">-50,0 "), "is broken"),
        (lambda t: t.replace('meter="0.01"', 'meter="-1"'), "unit"),
        (lambda t: t.replace('meter="0.01"', 'meter="1e400"'), "unit"),
        (lambda t: t.replace("Z_UP", "X_UP"), "up_axis is 'X_UP'"),
        (lambda t: t.replace("<p>", "<ph><p>0 0 1 0 2 0</p><h>3 0 99 0 4 0</h></ph><p>"), "vertex 99"),
        (lambda t: t.replace('name="crate">', 'name="crate"><lookat>0 0 0 1 0 0 0 0 1</lookat>'), "'crate' is placed"),
        (lambda t: t.replace('name="crate">', 'name="crate"><matrix>1 2 3</matrix>'), "is broken"),
        (lambda t: placing("n", t.replace("<library_g", SELF + "<library_g")), "no end"),
        (lambda t: placing("n0", t.replace("<library_g", DOUBLES + "<library_g")), "more than 10000 nodes"),
        (lambda t: placing("n", t.replace("<library_g", CROWDED + "<library_g")), "more than 10000 nodes"),
    ],
)  # fmt: skip
def test_a_broken_or_hostile_file_is_refused_by_its_fault(tmp_path, monkeypatch, change, reason):
    monkeypatch.setattr("navi_core.scenes.readers.collada._MAX_INSTANCES", 10_000)
    file = write(tmp_path, change(collada()))
    with pytest.raises(MeshError, match=reason) as reported:
        read_mesh(file)
    assert str(file) in str(reported.value)


def test_instances_are_counted_before_they_are_placed(tmp_path, monkeypatch):
    monkeypatch.setattr("navi_core.scenes.readers.collada.MAX_TRIANGLES", 30)
    nodes = '<node><instance_geometry url="#cube"/></node>' * 3
    with pytest.raises(MeshError, match="more than 30 triangles"):
        read_collada(write(tmp_path, collada(nodes, geometry("cube"))))


def test_skinned_mesh_keeps_its_bind_pose_with_a_warning(tmp_path, caplog):
    skin = """<library_controllers><controller id="c"><skin source="#cube">
      <bind_shape_matrix>1 0 0 100 0 1 0 0 0 0 1 0 0 0 0 1</bind_shape_matrix></skin></controller>
      </library_controllers>"""
    nodes = '<node><instance_controller url="#c"/></node>'
    (part,) = read_collada(write(tmp_path, collada(nodes, more=skin)))
    assert part.points.mean(axis=0).tolist() == [1, 0, 0]
    assert "1 skins are not applied" in caplog.text
