"""Gazebo worlds: placements by hand, skipped parts, refusals, and discovery, doctor and compilation."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.errors import MeshError, SceneError
from navi_core.scenes import read_mesh
from navi_core.scenes.corpus.corpus import compile_corpus
from navi_core.scenes.corpus.discovery import discover_root, scenes_named
from navi_core.scenes.corpus.examination import examine
from navi_core.scenes.readers.gazebo.files import VARIABLES
from navi_core.scenes.readers.mesh_file import hash_source, read_parts
from tests.conftest import box_triangles
from tests.scenes.mesh_files import Glb
from tests.scenes.world_files import BOX, CUBE, MESH, collada, include, package, visual


@pytest.fixture(autouse=True)
def _no_models_of_this_machine(monkeypatch, tmp_path_factory):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def centres(file):
    """Return the middle of every placed part, +Z up, rounded."""
    return [((p.points.min(axis=0) + p.points.max(axis=0)) / 2).round(4).tolist() for p in read_parts(file)]


def test_a_world_equals_its_meshes_placed_by_hand(tmp_path):
    # A quarter turn about z in a model, in which a crate is turned by an eighth about x and moved.
    table = include("crate", "2 0 1 0.785398163397 0 0") + visual(BOX, "0 0 0.5 0 0 0")
    world = package(tmp_path, include("table", "10 5 0 0 0 1.570796326795"), table=table)
    c = s = np.sqrt(0.5)
    crate = CUBE / 100 @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]]).T + [2, 0, 1]
    box = box_triangles((-0.5, -1, -1), (0.5, 1, 2))
    glb = Glb()
    for triangles in (box, crate):
        x, y, z = np.moveaxis(triangles, -1, 0)
        # The turn, the place, then Z up to Y up.
        glb.document["nodes"].append({"mesh": glb.mesh(np.stack([10 - y, z, -(5 + x)], axis=-1))})
    by_hand = read_mesh(glb.write(tmp_path / "by_hand.glb")).triangles
    mesh = read_mesh(world)
    np.testing.assert_allclose(mesh.triangles[12:], by_hand[12:], atol=1e-6)
    # The sides of a box may be cut along either diagonal.
    corners = [np.unique(some.reshape(-1, 3).round(5) + 0.0, axis=0) for some in (mesh.triangles[:12], by_hand[:12])]
    np.testing.assert_allclose(*corners, atol=1e-9)
    assert [mesh.semantic_names[i] for i in mesh.face_semantic[[0, 12]].tolist()] == ["table", "crate"]


@pytest.mark.parametrize("config", ["y", "z"])
def test_world_is_z_up_for_any_up_axis_setting(tmp_path, config):
    mesh = read_mesh(package(tmp_path, include("crate", "1 2 3 0 0 0")), up_axis=config)
    np.testing.assert_allclose(mesh.bounds.mean(axis=0), [1, 3, -2], atol=1e-9)


POSED = "<pose>1 0 0 0 0 0</pose>" + visual(MESH)
FRAMES = """<frame name='a'><pose>0 0 1 0 0 1.570796326795</pose></frame>
  <frame name='b' attached_to='link'><pose relative_to='a'>1 0 0 0 0 0</pose></frame>
  <link name='link'><pose relative_to='a'>0 2 0 0 0 0</pose>
  <visual name='v'><pose relative_to='b'>0 0 3 0 0 0</pose><geometry>""" + (MESH + "</geometry></visual></link>")


@pytest.mark.parametrize(
    ("world", "model", "expected"),
    [
        (include("it"), POSED, [1, 0, 0]),
        # The include's pose replaces the model's.
        (include("it", "0 5 0 0 0 0"), POSED, [0, 5, 0]),
        ("<model name='m'><pose>0 0 7 0 0 1.570796326795</pose>" + include("it") + "</model>", POSED, [0, 1, 7]),
        (include("it", "<!-- none -->"), visual(MESH, "1 2 3 0 0 0"), [1, 2, 3]),
        # a is a quarter turn at z = 1; b lies one metre along its x, three metres below the visual.
        (include("it"), FRAMES, [0, 1, 4]),
        # That frame stands where the model is put.
        (include("it", "5 5 5 0 0 0", "<placement_frame>b</placement_frame>"), FRAMES, [5, 5, 8]),
        ("<include><uri>model://it</uri><pose degrees='true'>0 0 0 0 0 90</pose></include>",
         visual(MESH, "1 0 0 0 0 0"), [0, 1, 0]),
        ("<include><uri>model://it</uri><pose rotation_format='quat_xyzw'>0 0 2 0 0 0.7071067811865 0.7071067811865"
         "</pose></include>", visual(MESH, "1 0 0 0 0 0"), [0, 1, 2]),
        # A quarter turn about y takes x down, one about x takes y up.
        ("<include><uri>model://it</uri><pose rotation_format='quat_xyzw'>0 0 0 0 0.7071067811865 0 0.7071067811865"
         "</pose></include>", visual(MESH, "1 2 0 0 0 0"), [0, 2, -1]),
        ("<include><uri>model://it</uri><pose rotation_format='quat_xyzw'>0 0 0 0.7071067811865 0 0 0.7071067811865"
         "</pose></include>", visual(MESH, "1 2 0 0 0 0"), [1, 0, 2]),
        # Relative to a frame of the world, to another model, and to a frame in that model.
        ("<frame name='f'><pose>0 0 9 0 0 0</pose></frame><include><uri>model://it</uri>"
         "<pose relative_to='f'>1 0 0 0 0 0</pose></include>", visual(MESH), [1, 0, 9]),
        ("<include><uri>model://it</uri><pose relative_to='other::in'>1 0 0 0 0 0</pose></include>"
         "<model name='other'><pose>0 4 0 0 0 0</pose><frame name='in'><pose>0 0 2 0 0 0</pose></frame></model>",
         visual(MESH), [1, 4, 2]),
        # A frame without relative_to is relative to what it is attached to.
        (include("it"), "<frame name='f' attached_to='arm'><pose>0 0 1 0 0 0</pose></frame><link name='arm'>"
         "<pose>0 3 0 0 0 0</pose></link><link name='hand'><pose relative_to='f'/><visual name='v'><geometry>" + MESH
         + "</geometry></visual></link>", [0, 3, 1]),
        # Gazebo before SDF 1.7 wrote an empty frame into every pose.
        ("<include><uri>model://it</uri><pose frame=''>1 2 3 0 0 0</pose></include>", visual(MESH), [1, 2, 3]),
        # Where a joint's pose is asked for, it is relative to its child.
        (include("it"), "<link name='arm'><pose>0 0 3 0 0 0</pose></link><joint name='j'><child>arm</child>"
         "<pose>0 1 0 0 0 0</pose></joint><link name='hand'><pose relative_to='j'>1 0 0 0 0 0</pose>"
         "<visual name='v'><geometry>" + MESH + "</geometry></visual></link>", [1, 1, 3]),
        # What is merged is the including model's own: its frames go by their bare names.
        ("<model name='m'><include merge='true'><uri>model://it</uri><pose>0 0 5 0 0 1.570796326795</pose></include>"
         "<model name='n'><pose relative_to='arm'/>" + visual(MESH) + "</model></model>",
         "<link name='arm'><pose>2 0 0 0 0 0</pose></link>", [0, 2, 5]),
    ],
)  # fmt: skip
def test_poses_and_frames_are_those_of_the_specification(tmp_path, world, model, expected):
    assert centres(package(tmp_path, world, it=model)) == [expected]


def test_saved_state_overrides_the_poses(tmp_path):
    state = """<state world_name='default'>
      <model name='shelf_1'><pose frame=''>3 0 0 0 0 0</pose><scale>2 2 2</scale>
        <link name='link'><pose>3 0 1 0 0 0</pose></link>
        <model name='inner'><pose>0 8 0 0 0 0</pose></model></model>
      <model name='heavy'><pose>0 0 6 0 0 0</pose></model></state>"""
    shelf = (
        f"<model name='shelf_1'><pose>9 9 9 0 0 0</pose>{visual(MESH)}<model name='inner'>{visual(BOX)}</model></model>"
    )
    world = package(tmp_path, state + shelf + include("crate", "9 9 9 0 0 0", "<name>heavy</name>"))
    # All of the state is in the world's coordinates; the model that it does not name stays.
    assert centres(world) == [[3, 0, 1], [0, 8, 0], [0, 0, 6]]
    assert np.ptp(read_parts(world)[0].points, axis=0).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("shape", "low", "high", "area"),
    [
        ("<box><size>1 2 3</size></box>", [-0.5, -1, -1.5], [0.5, 1, 1.5], 22),
        ("<sphere><radius>2</radius></sphere>", [-2, -2, -2], [2, 2, 2], 16 * np.pi),
        ("<ellipsoid><radii>1 2 3</radii></ellipsoid>", [-1, -2, -3], [1, 2, 3], 48.882),
        ("<cylinder><radius>1</radius><length>4</length></cylinder>", [-1, -1, -2], [1, 1, 2], 10 * np.pi),
        ("<capsule><radius>1</radius><length>4</length></capsule>", [-1, -1, -3], [1, 1, 3], 12 * np.pi),
        ("<cone><radius>3</radius><length>4</length></cone>", [-3, -3, -2], [3, 3, 2], 24 * np.pi),
        ("<polyline><point>0 0</point><point>2 0</point><point>2 1</point><point>1 1</point><point>1 2</point>"
         "<point>0 2</point><height>3</height></polyline>", [0, 0, 0], [2, 2, 3], 30),
    ],
)  # fmt: skip
def test_simple_shapes_have_their_size(tmp_path, shape, low, high, area):
    (part,) = read_parts(package(tmp_path, f"<model name='m'>{visual(shape)}</model>"))
    a, b, c = np.moveaxis(part.points[part.faces], 1, 0)
    np.testing.assert_allclose([part.points.min(axis=0), part.points.max(axis=0)], [low, high], atol=1e-9)
    # What is round is cut into 32 sides; every side looks outwards.
    assert np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2 == pytest.approx(area, rel=0.01)
    assert np.einsum("fi,fi->f", a, np.cross(b, c)).sum() > 0


@pytest.mark.parametrize(
    "ground", ["model://ground_plane", "https://fuel.gazebosim.org/1.0/OpenRobotics/models/Ground Plane"]
)
def test_ground_plane_is_clipped_to_the_other_models(tmp_path, ground):
    ground = f"<include><uri>{ground}</uri></include>"
    world = package(tmp_path, ground + include("crate", "4 0 0.5 0 0 0") + include("sun"))
    mesh = read_mesh(world)
    np.testing.assert_allclose(mesh.bounds, [[3.5, 0, -0.5], [4.5, 1, 0.5]], atol=1e-9)
    ground = mesh.triangles[12:]
    np.testing.assert_allclose([ground.min(axis=(0, 1)), ground.max(axis=(0, 1))], [[3.5, 0, -0.5], [4.5, 0, 0.5]])


def test_vertical_planes_are_walls_and_bound_the_floor(tmp_path):
    wall = visual("<plane><normal>1 0 0</normal><size>2 6</size></plane>")
    walls = "".join(
        f"<model name='w{turn}'><pose>{x} {y} 1 0 0 {turn}</pose>{wall}</model>"
        for x, y, turn in ((-3, 0, 0), (3, 0, 3.14159265359), (0, 3, 1.57079632679), (0, -3, -1.57079632679))
    )
    apart = f"<model name='m'><pose>90 0 0 0 0 0</pose>{visual('<plane><size>4 2</size></plane>')}</model>"
    parts = read_parts(package(tmp_path, walls + include("ground_plane") + apart))
    np.testing.assert_allclose([np.ptp(part.points, axis=0) for part in parts[:2]], [[0, 6, 2], [0, 6, 2]], atol=1e-9)
    np.testing.assert_allclose([parts[4].points.min(axis=0), parts[4].points.max(axis=0)], [[-3, -3, 0], [3, 3, 0]])
    # A distant plane is a separate part.
    np.testing.assert_allclose(np.ptp(parts[5].points, axis=0), [4, 2, 0], atol=1e-9)


def test_ramp_keeps_its_length_and_is_no_ground(tmp_path):
    ramp = f"<model name='ramp'>{visual('<plane><size>8 2</size></plane>', '0 0 0 0 -0.785398163397 0')}</model>"
    ceiling = (
        f"<model name='c'>{visual('<plane><normal>0 0 -1</normal><size>9 1</size></plane>', '0 0 3 0 0 0')}</model>"
    )
    parts = read_parts(package(tmp_path, include("crate") + ramp + ceiling))
    np.testing.assert_allclose(np.ptp(parts[1].points, axis=0), [np.sqrt(32), 2, np.sqrt(32)], atol=1e-9)
    np.testing.assert_allclose(np.ptp(parts[2].points, axis=0), [np.sqrt(32), 1, 0], atol=1e-9)


def test_missing_parts_are_skipped_with_a_warning(tmp_path, caplog):
    away = include("crate", "0 0 343582 0 0 0")
    hill = "<model name='hill'>" + visual("<heightmap><uri>file://hill.png</uri></heightmap>") + "</model>"
    outline = "<polyline><point>0 0</point><point>2 0</point><point>0 2</point><height>1</height></polyline>"
    hill += f"<model name='ring'>{visual(outline * 2)}</model>"
    broken = "<model name='cut'>" + visual("<mesh><uri>model://crate/meshes/cut.dae</uri></mesh>") + "</model>"
    world = package(tmp_path, include("crate") + include("chair") * 3 + away + hill + broken + "<actor name='walker'/>")
    (tmp_path / "models" / "crate" / "meshes" / "cut.dae").write_text(collada()[:900])
    assert centres(world) == [[0, 0, 0]]
    (reported,) = caplog.messages
    for text in (
        "(8)",
        "<polyline> with holes of ring",
        "model://chair (3×)",
        "343,582 m away",
        "<heightmap> of hill",
        "cut.dae",
        "<actor> walker",
    ):
        assert text in reported
    assert "GAZEBO_MODEL_PATH" in reported


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (include("ground_plane") + include("zoo"), r"1 of 1 things .*model://zoo.*GAZEBO_MODEL_PATH"),
        (include("crate") + include("zoo") * 10, "10 of 11 things"),
        (include("ground_plane") + include("sun"), "nothing but ground planes"),
        ("", "nothing but"),
        ("<model name='m'><pose>1 2 3</pose></model>", "<pose> is '1 2 3', not 6 numbers"),
        (include("lost"), "is '1 2 3', not 6 numbers, in the model 'lost' of .*models/lost/model.sdf"),
        (include("crate", "nan 0 0 0 0 0"), "not 6 numbers"),
        (include("crate", "1e999 0 0 0 0 0"), "not 6 numbers"),
        ("<include><uri>model://crate</uri><pose rotation_format='matrix'>1</pose></include>", "rotation_format"),
        ("<include><uri>model://crate</uri><pose relative_to='moon'>0 0 0 0 0 0</pose></include>", "'moon'"),
        ("<model name='m'><frame name='a'><pose relative_to='b'/></frame><frame name='b'><pose relative_to='a'/>"
         "</frame><link name='l'><pose relative_to='a'/></link></model>", "relative to itself: a → b → a"),
        ("".join(f"<model name='{i}'><pose relative_to='{i + 1}'/></model>" for i in range(1500)) + include("crate"),
         "a chain that is too long"),
        # Only merged includes are addressed by their bare name.
        (include("crate") + "<model name='n'><pose relative_to='link'/></model>", "'link', which is no frame"),
        ("<model name='a'>" * 40 + "</model>" * 40, "more than 32 deep"),
        (include("loop"), "includes itself"),
        (include("doubling0"), "includes itself has no end"),
        ("<model name='m'>" + visual("<box><size>0 1 1</size></box>") + "</model>", "which is no size"),
        ("<model name='m'>" + visual(MESH.replace("<uri>", "<scale>1 2</scale><uri>")) + "</model>", "<scale> is"),
    ],
)  # fmt: skip
def test_a_world_is_refused_by_its_fault(tmp_path, monkeypatch, world, reason):
    monkeypatch.setattr("navi_core.scenes.readers.gazebo.plan._MAX_SHAPES", 2000)
    doubling = {f"doubling{i}": include(f"doubling{i + 1}") * 2 for i in range(20)}
    file = package(tmp_path, world, loop=include("loop"), lost=visual(MESH, "1 2 3"), **doubling)
    with pytest.raises(MeshError, match=reason) as reported:
        read_mesh(file)
    assert str(reported.value).startswith(str(file))


def test_non_world_files_are_refused_by_reason(tmp_path):
    world = package(tmp_path, include("crate"))
    with pytest.raises(MeshError, match="holds no <world>, but a model: name a world that includes it"):
        read_mesh(tmp_path / "models" / "crate" / "model.sdf")
    world.write_text('<!DOCTYPE sdf [<!ENTITY a SYSTEM "file:///etc/passwd">]><sdf><world/></sdf>')
    with pytest.raises(MeshError, match="document type"):
        read_mesh(world)
    world.write_text("define map model (size [16 16 0.5])  # Stage's worlds end in .world too")
    with pytest.raises(MeshError, match="broken or truncated"):
        read_mesh(world)


def test_link_without_visuals_uses_its_collisions(tmp_path):
    hull = "<collision name='c'><geometry><box><size>9 9 9</size></box></geometry></collision>"
    ghost = visual(BOX, more="<transparency>1</transparency>").replace("</link>", hull + "</link>")
    glass = visual(BOX, more="<transparency>0.9</transparency>").replace("</link>", hull + "</link>")
    bare = f"<link name='l'>{hull}</link>"
    hollow = visual("<empty/>").replace("</link>", hull + "</link>")
    world = package(
        tmp_path, "".join(f"<model name='{'abcd'[i]}'>{m}</model>" for i, m in enumerate((ghost, glass, bare, hollow)))
    )
    sizes = [np.ptp(part.points, axis=0).tolist() for part in read_parts(world)]
    assert sizes == [[9, 9, 9], [1, 2, 3], [9, 9, 9], [9, 9, 9]]


def test_model_names_drop_instance_suffixes(tmp_path, caplog):
    inline = "".join(f"<model name='{n}'>{visual(BOX)}</model>" for n in ("book_12", "book_clone_3", "wall 2 (3)", "7"))
    named = include("crate", more="<name>crate_0815</name>") + include("crate", more="<name>heavy</name>")
    sensor = "<model name='drone'>" + visual(BOX).replace("</link>", "<sensor type='imu'/></link>") + "</model>"
    fixed = sensor.replace("drone", "camera").replace("<link", "<static>true</static><link")
    held = include("arm", more="<static>true</static>")
    arm = visual(BOX).replace("</link>", "<sensor type='imu'/></link>")
    world = package(tmp_path, inline + named + sensor + fixed + held, arm=arm)
    names = [part.objects[0] for part in read_parts(world)]
    assert names == ["book", "book", "wall", "7", "crate", "crate", "drone", "camera", "arm"]
    assert "like furniture: drone; remove robots" in caplog.text


def test_a_mesh_without_triangles_bounds_no_ground(tmp_path):
    world = package(tmp_path, include("ground_plane") + include("crate"))
    mesh = tmp_path / "models" / "crate" / "meshes" / "crate.dae"
    mesh.write_text(collada(nodes=""))
    with pytest.raises(MeshError, match=r"1 of 1 things .*crate.dae: holds no triangles"):
        read_mesh(world)


def test_vertices_that_no_face_uses_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("navi_core.scenes.readers.gazebo.world.MAX_TRIANGLES", 1000)
    mesh = MESH.replace("crate.dae", "cloud.ply")
    world = package(tmp_path, f"<model name='m'>{visual(mesh)}</model>" * 4)
    head = "ply\nformat ascii 1.0\nelement vertex 900\nproperty float x\nproperty float y\nproperty float z\n"
    faces = "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    corners = "0 0 0\n1 0 0\n0 1 0\n" * 300
    (tmp_path / "models" / "crate" / "meshes" / "cloud.ply").write_text(head + faces + corners + "3 0 1 2\n")
    with pytest.raises(MeshError, match="more than 1000 triangles"):
        read_parts(world)


def test_frame_pose_is_resolved_once(tmp_path, monkeypatch):
    from navi_core.scenes.readers.gazebo import poses as sdf_poses

    asked = []
    monkeypatch.setattr(
        sdf_poses, "read_pose", lambda pose, read=sdf_poses.read_pose: (asked.append(pose), read(pose))[1]
    )
    frames = "".join(f"<frame name='{i}'><pose relative_to='{i + 1}'>0 0 1 0 0 0</pose></frame>" for i in range(20))
    links = visual(BOX).replace("<link name='link'>", "<link name='link'><pose relative_to='0'/>") * 30
    world = package(tmp_path, f"<model name='m'>{frames}<frame name='20'/>{links}</model>")
    assert centres(world) == [[0, 0, 20]] * 30
    assert len(asked) < 100


def test_broken_file_is_read_once(tmp_path, monkeypatch, caplog):
    from navi_core.scenes.readers.gazebo import plan as world_plan

    asked = []
    monkeypatch.setattr(
        world_plan, "read_xml", lambda path, read=world_plan.read_xml: (asked.append(path), read(path))[1]
    )
    world = package(tmp_path, include("crate") + include("cut") * 5, cut="<link>")
    assert centres(world) == [[0, 0, 0]]
    assert len(asked) == len(set(asked)) and "cut/model.sdf: its XML is broken or truncated" in caplog.text


def test_very_long_names_are_read_in_linear_time(tmp_path):
    names = ("1" * 100_000 + "x", "_clone" * 100_000, "model://" + "models/" * 50_000 + "\n")
    inline = "".join(f"<model name='{name}'>{visual(BOX)}</model>" for name in names)
    world = package(tmp_path, inline + f"<include><uri>https://a/{names[2]}</uri></include>" + include("crate"))
    (tmp_path / "models" / "crate" / "model.config").write_text(
        f"<model><sdf version='{'9' * 9000}'>model.sdf</sdf></model>"
    )
    assert len(read_parts(world)) == 4


@pytest.mark.parametrize(
    "uri",
    [
        "model://crate",
        "file://models/crate",
        "package://models/crate",
        "../models/crate/model.sdf",
        "model://CRATE",
        "https://fuel.gazebosim.org/1.0/OpenRobotics/models/Crate/3",
        "https://fuel.ignitionrobotics.org/1.0/open%20robotics/models/crate",
        "file:///home/author/models/crate",
    ],
)
def test_models_are_found_by_every_kind_of_uri(tmp_path, uri):
    assert centres(package(tmp_path, f"<include><uri>{uri}</uri></include>")) == [[0, 0, 0]]


def test_renamed_model_finds_its_meshes(tmp_path, caplog):
    world = package(tmp_path, include("renamed") + include("near") + include("lamp"), renamed="", near="", lamp="")
    models = tmp_path / "models"
    for name, mesh in (("renamed", "model://original/meshes/own.dae"), ("near", "meshes/own.dae")):
        text = f"<sdf version='1.6'><model name='m'>{visual(f'<mesh><uri>{mesh}</uri></mesh>')}</model></sdf>"
        (models / name / "model.sdf").write_text(text)
        (models / name / "meshes" / "own.dae").write_text(collada())
    # The package's file, not the requesting model's.
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes" / "own.dae").write_text("")
    (models / "lamp" / "model.sdf").write_text("<sdf version='1.6'><light name='lamp'/></sdf>")
    # A light is not reported as missing.
    assert len(centres(world)) == 2 and not caplog.messages


def test_models_are_found_where_gazebo_looks_for_them(tmp_path, monkeypatch, caplog):
    package(tmp_path / "elsewhere", "", chair=visual(BOX), bed=visual(BOX))
    world = package(tmp_path / "here", include("crate") + include("chair") + include("bed") + include("lamp"))
    assert len(centres(world)) == 1 and "model://chair, model://bed, model://lamp" in caplog.text
    before = hash_source(world)
    monkeypatch.setenv("GAZEBO_MODEL_PATH", f"{tmp_path}/nowhere{os.pathsep}{tmp_path}/elsewhere/models")
    cached = f"{os.environ['HOME']}/.gz/fuel/fuel.gazebosim.org/openrobotics/models/lamp"
    for version, pose in (("2", "0 0 1 0 0 0"), ("10", "0 0 4 0 0 0")):
        os.makedirs(f"{cached}/{version}")
        with open(f"{cached}/{version}/model.sdf", "w") as stream:
            stream.write(f"<sdf version='1.9'><model name='lamp'>{visual(BOX, pose)}</model></sdf>")
    assert centres(world)[1:] == [[0, 0, 0], [0, 0, 0], [0, 0, 4]]
    assert hash_source(world) != before


def test_linked_world_finds_models_beside_its_target(tmp_path):
    world = package(tmp_path / "package", include("crate"))
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen" / "shop.world").symlink_to(world)
    assert centres(tmp_path / "chosen" / "shop.world") == [[0, 0, 0]]


def test_files_outside_the_model_folders_are_not_read(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.dae").write_text(collada())
    deep = tmp_path / "1" / "2" / "3" / "4" / "5"
    climbing = f"model://crate/{'../' * 12}{outside.relative_to('/')}/secret.dae"
    for number, uri in enumerate((climbing, f"file://{outside}/secret.dae", str(outside / "secret.dae"))):
        mesh = MESH.replace("model://crate/meshes/crate.dae", uri)
        world = package(deep / str(number), f"<model name='m'>{visual(mesh)}</model>")
        with pytest.raises(MeshError, match="1 of 1 things"):
            read_mesh(world)


@pytest.mark.parametrize("name", ["crate.dae", "CRATE.dae"])
def test_link_out_of_the_model_folders_is_not_followed(tmp_path, monkeypatch, name):
    outside, deep = tmp_path / "outside", tmp_path / "1" / "2" / "3" / "4" / "5"
    outside.mkdir()
    (outside / "secret.dae").write_text(collada())
    world = package(deep, f"<model name='m'>{visual(MESH)}</model>")
    mesh = deep / "models" / "crate" / "meshes" / "crate.dae"
    mesh.unlink()
    mesh.with_name(name).symlink_to(outside / "secret.dae")
    with pytest.raises(MeshError, match="1 of 1 things"):
        read_mesh(world)
    world = package(deep / "by_model", include("lamp"), lamp=visual(BOX))
    description = deep / "by_model" / "models" / "lamp" / "model.sdf"
    description.rename(outside / "model.sdf")
    description.symlink_to(outside / "model.sdf")
    with pytest.raises(MeshError, match="leads out of the folders of models"):
        read_mesh(world)
    # A user links models into the folders that Gazebo looks in.
    monkeypatch.setenv("GAZEBO_MODEL_PATH", str(deep / "by_model" / "models"))
    assert centres(world) == [[0, 0, 0]]


def test_newest_listed_model_description_is_used(tmp_path):
    world = package(tmp_path, include("crate"))
    folder = tmp_path / "models" / "crate"
    (folder / "model-1_10.sdf").write_text(
        f"<sdf version='1.10'><model name='c'>{visual(MESH, '0 0 5 0 0 0')}</model></sdf>"
    )
    listed = "<sdf version='1.10'>model-1_10.sdf</sdf><sdf version='1.6'>model.sdf</sdf><sdf version='2'>gone.sdf</sdf>"
    listed += "<sdf version='3'>../other.sdf</sdf>"
    (folder.parent / "other.sdf").write_text((folder / "model.sdf").read_text())
    (folder / "model.config").write_text(f"<model>{listed}</model>")
    assert centres(world) == [[0, 0, 5]]
    # A bare & in the author's name breaks the file, as it does in published models; model.sdf is what there is then.
    (folder / "model.config").write_text(f"<model>{listed}<author>A & B</author></model>")
    assert centres(world) == [[0, 0, 0]]


def test_a_submesh_is_taken_alone_and_centred(tmp_path):
    two = MESH.replace("</mesh>", "<submesh><name>lid</name><center>true</center></submesh></mesh>")
    world = package(tmp_path, f"<model name='m'>{visual(two, '0 0 1 0 0 0')}</model>")
    nodes = '<node name="{}"><translate>0 {} 0</translate><instance_geometry url="#cube"/></node>'
    mesh = tmp_path / "models" / "crate" / "meshes" / "crate.dae"
    mesh.write_text(collada(nodes.format("body", 0) + nodes.format("lid", 300)))
    assert centres(world) == [[0, 0, 1]]


def test_source_hash_covers_every_file_of_a_world(tmp_path):
    world = package(tmp_path, include("crate"))
    seen = {hash_source(world)}
    for name in ("meshes/crate.dae", "model.sdf", "model.config"):
        file = tmp_path / "models" / "crate" / name
        file.write_text(file.read_text() + "<!-- changed -->")
        seen.add(hash_source(world))
    assert len(seen) == 4


def test_the_buffers_of_a_text_gltf_are_hashed_too(tmp_path):
    glb = Glb()
    glb.document["nodes"].append({"mesh": glb.mesh(CUBE)})
    folder = tmp_path / "models" / "crate" / "meshes"
    world = package(tmp_path, f"<model name='m'>{visual(MESH.replace('.dae', '.gltf'))}</model>" + include("crate"))
    glb.document["buffers"] = [{"uri": "crate.bin", "byteLength": len(glb.binary)}]
    (folder / "crate.gltf").write_text(json.dumps(glb.document))
    seen = {hash_source(world)}
    for content in (glb.binary, glb.binary[::-1]):
        (folder / "crate.bin").write_bytes(content)
        seen.add(hash_source(world))
    # A broken one is left out of the scene, which needs no hash of it.
    (folder / "crate.gltf").write_text("{")
    seen.add(hash_source(world))
    assert len(seen) == 4


def test_the_worlds_of_a_package_are_its_scenes(tmp_path):
    world = package(tmp_path, include("crate"), rack=visual(MESH))
    (tmp_path / "worlds" / "new.sdf").write_text(world.read_text())
    (tmp_path / "worlds" / "robot.sdf").write_text("<sdf version='1.6'><model name='robot'/></sdf>")
    (tmp_path / "scan.ply").write_text("ply")
    # Also what has no model.config.
    (tmp_path / "models" / "loose.dae").write_text(collada())
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes" / "loose.stl").write_text("solid")
    sources = discover_root(tmp_path)
    assert [source.name for source in sources] == ["new", "scan", "shop"]
    with pytest.raises(SceneError, match=r"no scene found; 2 meshes are parts, first .*crate.dae: of the Gazebo model"):
        discover_root(tmp_path / "models" / "crate")
    assert [source.name for source in scenes_named([str(world)])] == ["shop"]


def test_world_hides_only_its_own_meshes_from_discovery(tmp_path):
    package(
        tmp_path / "package", visual("<mesh><uri>meshes/hall.dae</uri></mesh>").join(["<model name='m'>", "</model>"])
    )
    (tmp_path / "package" / "worlds" / "shop.world").rename(tmp_path / "shop.world")
    for name in ("meshes/hall.dae", "meshes/scan.ply", "models/flat.glb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(collada())
    assert [source.name for source in discover_root(tmp_path)] == ["flat", "scan", "shop"]
    # A file that is no Gazebo world hides no meshes.
    (tmp_path / "shop.world").write_text("define block model()")
    assert [source.name for source in discover_root(tmp_path)] == ["flat", "hall", "scan", "shop"]


def test_doctor_reports_a_package_and_its_missing_models(tmp_path):
    package(tmp_path, include("crate", "0 0 0.5 0 0 0") + include("ground_plane") + include("chair"))
    report = examine(tmp_path)
    assert report["layout"]["name"] == "Gazebo worlds" and report["layout"]["up_axis"] == "y"
    (scene,) = report["scenes"]
    assert (scene["name"], scene["format"], scene["triangles"], scene["size"]) == ("shop", "world", 14, [1, 1, 1])
    assert scene["missing"] == ["model://chair"] and scene["annotation"] == "objects"
    by_file = {row["file"]: row for row in report["files"]}
    assert by_file["worlds/shop.world"]["state"] == "warning"
    assert by_file["models/crate/meshes/crate.dae"]["detail"] == "of the Gazebo model crate"
    assert by_file["models/crate/model.sdf"]["kind"] == "part"
    assert any(step.startswith(f"navi scenes compile {tmp_path} ") for step in report["next"])


def test_world_is_recompiled_only_after_a_model_change(tmp_path):
    package(tmp_path, include("crate") + include("chair") + include("crate", "3 0 0 0 0 0"))
    reports = []

    def build():
        compile_corpus(discover_root(tmp_path), tmp_path / "out", CompileConfig(resolution=32), done=reports.append)

    build()
    build()
    mesh = tmp_path / "models" / "crate" / "meshes" / "crate.dae"
    mesh.write_text(mesh.read_text().replace('meter="0.01"', 'meter="0.02"'))
    build()
    assert [report.skipped for report in reports] == [False, True, False]
    assert "model://chair" in reports[0].notes[0] and set(reports[0].vocabulary.values()) == {"surface", "crate"}
