"""`navi doctor`: which dataset a folder is, what it holds, what is missing, and the next command."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from navi_core.cli.doctor import check_environment, check_machine
from navi_core.cli.main import main
from navi_core.config import CompileConfig, CorpusConfig
from navi_core.errors import MeshError, SceneError
from navi_core.scenes import compile_corpus, discover, discover_root, read_mesh
from navi_core.scenes.corpus.examination import examine
from navi_core.scenes.readers.mesh_file import read_facts
from tests.scenes.corpus.test_corpus import write_obj
from tests.scenes.mesh_files import FLOOR, LEGEND, TABLE, Glb, annotated_room, room, room_ply
from tests.scenes.readers.test_semantics import HOUSE


def hm3d(root: Path) -> Path:
    whole, partial = root / "val" / "00800-TEEsavR23oF", root / "val" / "00801-HaxA7YrQdEC"
    room(whole / "TEEsavR23oF.glb")
    room(whole / "TEEsavR23oF.basis.glb")
    annotated_room(whole / "TEEsavR23oF.semantic.glb", "texture")
    (whole / "TEEsavR23oF.semantic.txt").write_text(LEGEND)
    (whole / "TEEsavR23oF.basis.navmesh").write_bytes(b"MSET")
    room(partial / "HaxA7YrQdEC.basis.glb")
    annotated_room(partial / "HaxA7YrQdEC.semantic.glb", "texture")
    return root


def matterport(root: Path) -> Path:
    room(root / "17DRP5sb8fy" / "17DRP5sb8fy.glb")
    room_ply(root / "17DRP5sb8fy" / "17DRP5sb8fy_semantic.ply", z_up=True)
    (root / "17DRP5sb8fy" / "17DRP5sb8fy.house").write_text(HOUSE)
    up = {"stages": {"default_attributes": {"up": [0, 0, 1], "front": [0, 1, 0]}}}
    (root / "mp3d.scene_dataset_config.json").write_text(json.dumps(up))
    return root


def gibson(root: Path) -> Path:
    room(root / "Allensville.glb")
    room_ply(root / "Allensville_semantic.ply")
    (root / "Allensville.scn").write_text('{"objects": []}')
    write_obj(root / "raw" / "Beechwood" / "mesh.obj")
    write_obj(root / "raw" / "Beechwood" / "mesh_z_up.obj")
    return root


def replica(root: Path) -> Path:
    room_ply(root / "apartment_0" / "mesh.ply", ids={})
    room_ply(root / "apartment_0" / "habitat" / "mesh_semantic.ply")
    (root / "apartment_0" / "habitat" / "info_semantic.json").write_text('{"classes": [], "objects": []}')
    return root


def replica_cad(root: Path) -> Path:
    """A stage, a table that stands by its middle, a stool with a centre of mass, and a door that is not read."""
    stage = Glb()
    stage.node(mesh=stage.mesh(FLOOR), name="floor")
    stage.write(root / "stages" / "frl_apartment_stage.glb")
    for name in ("frl_apartment_table_01", "frl_apartment_stool_02"):
        glb = Glb()
        glb.node(mesh=glb.mesh(TABLE), name="Mesh_0")
        glb.write(root / "objects" / f"{name}.glb")
    files = {
        "replicaCAD.scene_dataset_config.json": {"scene_instances": {"paths": {".json": ["configs/scenes"]}}},
        "configs/stages/frl_apartment_stage.stage_config.json": {
            "render_asset": "../../stages/frl_apartment_stage.glb"
        },
        "configs/objects/frl_apartment_table_01.object_config.json": {
            "render_asset": "../../objects/frl_apartment_table_01.glb",
            "semantic_id": 5,
        },
        "configs/objects/frl_apartment_stool_02.object_config.json": {
            "render_asset": "../../objects/frl_apartment_stool_02.glb",
            "COM": [1.5, 0.5, 1.5],
            "units_to_meters": 0.5,
        },
        "configs/ssd/replicaCAD_semantic_lexicon.json": {"classes": [{"id": 5, "name": "table"}]},
        "configs/scenes/apt_0.scene_instance.json": {
            "stage_instance": {"template_name": "stages/frl_apartment_stage"},
            "object_instances": [
                {"template_name": "frl_apartment_table_01", "translation": [2, 0.65, 2], "translation_origin": "COM",
                 "rotation": [0.7071067811865476, 0, 0.7071067811865476, 0]},
                {"template_name": "objects/frl_apartment_stool_02", "translation": [1, 0, 3], "uniform_scale": 2},
                {"template_name": "frl_apartment_table_01", "translation": [0, 1, 0],
                 "translation_origin": "asset_local"},
            ],
            "articulated_object_instances": [{"template_name": "door2"}],
        },
    }  # fmt: skip
    for name, document in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(document))
    return root


EXPECTED = {
    hm3d: ("HM3D", "z", {"TEEsavR23oF": "complete", "HaxA7YrQdEC": "partial"}),
    matterport: ("Matterport3D", "z", {"17DRP5sb8fy": "complete"}),
    gibson: ("Gibson", "z", {"Allensville": "complete", "Beechwood": "none"}),
    replica: ("Replica", "z", {"apartment_0": "complete"}),
    replica_cad: ("Habitat scenes", "y", {"apt_0": "objects"}),
}


@pytest.mark.parametrize("build", EXPECTED, ids=lambda build: build.__name__)
def test_each_dataset_is_recognised_and_its_advice_works(build, tmp_path, monkeypatch, capsys):
    name, up_axis, annotations = EXPECTED[build]
    root = build(tmp_path / "my data")
    report = examine(root, CompileConfig(resolution=32))
    assert (report["layout"]["name"], report["layout"]["up_axis"]) == (name, up_axis)
    assert {scene["name"]: scene["annotation"] for scene in report["scenes"]} == annotations
    assert not [row for row in report["files"] if row["state"] == "broken"], report["files"]
    assert all(scene["triangles"] > 0 and scene["memory_mb"] > 0 for scene in report["scenes"])
    # The same scenes are what a corpus takes, and the command that doctor gives compiles them.
    assert {source.name for source in discover_root(root)} == set(annotations)
    command = next(step for step in report["next"] if step.startswith("navi scenes compile"))
    words = shlex.split(command.split("   ")[0])[1:]
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit) as ended:
        main([*words, "--resolution", "32", "--json"])
    assert ended.value.code == 0
    assert len(json.loads(capsys.readouterr().out)) == len(annotations)


def test_missing_files_are_named_with_the_next_step(tmp_path):
    report = examine(hm3d(tmp_path))
    partial = next(scene for scene in report["scenes"] if scene["annotation"] == "partial")
    assert partial["missing"] == ["HaxA7YrQdEC.semantic.txt"]
    assert any("HaxA7YrQdEC.semantic.txt" in step for step in report["next"])
    for file in tmp_path.rglob("*.semantic.*"):
        file.unlink()
    assert any("no scene is annotated: get X.semantic.glb" in step for step in examine(tmp_path)["next"])


def test_scene_instances_place_their_objects_as_habitat_does(tmp_path, caplog):
    root = replica_cad(tmp_path)
    path = root / "configs" / "scenes" / "apt_0.scene_instance.json"
    mesh = read_mesh(path)
    assert "1 articulated objects" in caplog.text
    assert set(mesh.semantic_names.values()) == {"surface", "floor", "table", "frl_apartment_stool_02"}
    boxes = {}
    for key, name in mesh.semantic_names.items():
        corners = mesh.triangles[mesh.face_semantic == key].reshape(-1, 3)
        boxes[name] = corners
    # By its middle at (2, 0.65, 2); and by its own origin, 1 m up.
    table = boxes["table"].reshape(-1, 36, 3)
    np.testing.assert_allclose([table[0].min(0), table[0].max(0)], [[1.5, 0.5, 1.5], [2.5, 0.8, 2.5]], atol=1e-6)
    np.testing.assert_allclose([table[1].min(0), table[1].max(0)], [[1, 1.5, 1], [2, 1.8, 2]], atol=1e-6)
    # Half metres, twice as large, its centre of mass (1.5, 0.5, 1.5) at (1, 0, 3).
    stool = boxes["frl_apartment_stool_02"]
    np.testing.assert_allclose([stool.min(0), stool.max(0)], [[0.5, 0, 2.5], [1.5, 0.3, 3.5]], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"object_instances": [{"template_name": "lost"}]}, "template 'lost' is nowhere under"),
        ({"object_instances": [{}]}, "template 'None' is nowhere"),
        ({"object_instances": "x"}, "not a list"),
        ({"object_instances": [], "stage_instance": None}, "neither a stage_instance"),
        ({"object_instances": [{"template_name": "frl_apartment_table_01", "rotation": [0, 0, 0, 0]}]}, "not finite"),
        ({"object_instances": [{"template_name": "frl_apartment_table_01", "translation": [1]}]}, "broken"),
    ],
)
def test_a_broken_scene_instance_is_refused(tmp_path, change, reason):
    path = replica_cad(tmp_path) / "configs" / "scenes" / "apt_0.scene_instance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SceneError, match=reason):
        read_mesh(path)


def test_large_files_are_examined_by_header_and_small_files_are_read(tmp_path, monkeypatch):
    path = room(tmp_path / "large.glb")
    monkeypatch.setattr("navi_core.scenes.corpus.examination._WHOLE_FILE", 10)
    monkeypatch.setattr("navi_core.scenes.corpus.examination.read_mesh", lambda *a, **k: pytest.fail("read whole"))
    scene = examine(tmp_path)["scenes"][0]
    assert (scene["triangles"], scene["exact"], scene["size"]) == (16, True, [4.0, 2.5, 4.0])
    monkeypatch.undo()
    assert examine(tmp_path, deep=True)["files"][0]["detail"] == "16 triangles, 4.0 × 2.5 × 4.0 m, 3 semantic names"
    path.write_bytes(path.read_bytes()[:-1])
    assert examine(tmp_path)["files"][0]["state"] == "broken"


@pytest.mark.parametrize("suffix", [".glb", ".obj", ".ply", ".stl"])
def test_header_triangle_count_is_an_upper_estimate(tmp_path, suffix):
    trimesh = pytest.importorskip("trimesh")
    path = tmp_path / f"ball{suffix}"
    trimesh.creation.icosphere(subdivisions=5).export(str(path))
    facts = read_facts(path)
    assert 20480 <= facts.triangles <= 3 * 20480


def test_compiled_scenes_are_current_until_their_source_changes(tmp_path):
    path = room(tmp_path / "meshes" / "flat.glb")
    config, out = CompileConfig(resolution=32), tmp_path / "out"
    states = [examine(path.parent, config, out)["scenes"][0]["compiled"]]
    compile_corpus(discover_root(path.parent), out, config)
    states.append(examine(path.parent, config, out)["scenes"][0]["compiled"])
    room(path, ("floor", "desk", "wall"))
    states.append(examine(path.parent, config, out)["scenes"][0]["compiled"])
    assert states == ["no", "current", "outdated"]


def test_advice_for_compiled_scenes_names_the_whole_folder(tmp_path):
    for name in ("one", "two"):
        write_obj(tmp_path / "in" / f"{name}.obj")
    compile_corpus(discover_root(tmp_path / "in"), tmp_path / "out", CompileConfig(resolution=32))
    (tmp_path / "out" / "manifest.json").unlink()
    judges, trains = examine(tmp_path / "out")["next"]
    assert judges.startswith(f"navi scenes qualify {tmp_path / 'out'}   #")
    assert trains.startswith(f"NAVI_SCENES={tmp_path / 'out'} navi train ppo")
    write_obj(tmp_path / "out" / "mesh.obj")
    assert not any("qualify" in step for step in examine(tmp_path / "out")["next"]), "meshes come first"


def test_doctor_finds_compiled_scenes_by_their_clean_names(tmp_path):
    meshes, out, config = tmp_path / "meshes", tmp_path / "out", CompileConfig(resolution=32)
    for file in ("my house.glb", "a/scan.glb", "b/scan.glb"):
        room(meshes / file)
    room(meshes / "b" / "scan.glb", ("floor", "desk", "wall"))

    def states():
        return {scene["name"]: scene["compiled"] for scene in examine(meshes, config, out)["scenes"]}

    mine = "my_house"
    assert states() == {mine: "no", "a_scan.glb": "no", "b_scan.glb": "no"}
    compile_corpus(discover(CorpusConfig(scenes=(str(meshes / "a" / "scan.glb"),))), out, config)
    assert states() == {mine: "no", "a_scan.glb": "current", "b_scan.glb": "no"}
    compile_corpus(discover_root(meshes), out, config)
    assert set(states().values()) == {"current"}


def _house(path: Path, extent: tuple[float, float, float]) -> None:
    corners = [[x, y, z] for x in (0, extent[0]) for y in (0, extent[1]) for z in (0, extent[2])]
    lines = ["v {} {} {}".format(*corner) for corner in corners]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "f 1 2 4 3", "f 5 6 8 7", "f 1 2 6 5", "f 3 4 8 7"]))


@pytest.mark.parametrize("size", [(900, 600, 290), (1900, 1140, 300)])
def test_suspected_unit_scale_is_in_the_suggested_commands(size, tmp_path):
    """A house of 9 × 6 m, or 19 × 11 m, 3 m high, in centimetres and +Z up: one report names both."""
    _house(tmp_path / "house.obj", size)
    report = examine(tmp_path)
    assert "(--unit-scale 0.01); if it lies on its side: --up-axis z" in report["files"][0]["detail"]
    printed, axis, compiles, trains = report["next"]
    assert "1 scenes seem to lie on their side, first house.obj" in axis and "--up-axis z" in axis
    assert "as if in centimetres" in printed and "--unit-scale 0.01   #" in compiles
    assert "--set compile.unit_scale=0.01   #" in trains


@pytest.mark.parametrize("size", [(400, 20, 300), (30, 80, 30)])
def test_large_scenes_in_metres_raise_no_unit_doubt(size, tmp_path):
    _house(tmp_path / "scan.obj", size)
    assert not any("unit" in step for step in examine(tmp_path)["next"])


@pytest.mark.parametrize("other", [(9.0, 2.9, 6.0), (4000.0, 2600.0, 3000.0), (1900.0, 40.0, 1600.0)])
def test_mixed_units_suggest_no_unit_scale(other, tmp_path):
    _house(tmp_path / "a.obj", (900, 290, 600))
    _house(tmp_path / "b.obj", other)
    printed, compiles, trains = examine(tmp_path)["next"]
    assert "of 2 scenes may not be in metres, first a.obj; keep those of another unit in a folder" in printed
    assert "--unit-scale" not in compiles and "unit_scale" not in trains


def test_unusable_files_are_reported_with_the_reason(tmp_path):
    for name in ("house.fbx", "cloud.las", "archive.zip", "robot.urdf"):
        (tmp_path / name).write_bytes(b"x")
    room(tmp_path / "a.glb").write_bytes(b"glTF")
    report = examine(tmp_path)
    reasons = {row["file"]: (row["state"], row["detail"]) for row in report["files"]}
    assert "GLB" in reasons["house.fbx"][1] and "point cloud" in reasons["cloud.las"][1]
    assert "unpack" in reasons["archive.zip"][1] and reasons["a.glb"][0] == "broken"
    with pytest.raises(SceneError, match="no such folder"):
        examine(tmp_path / "none")


def test_large_folder_is_sampled_and_reported_as_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr("navi_core.scenes.corpus.layouts._MAX_FILES", 5)
    for number in range(9):
        write_obj(tmp_path / f"{number}.obj")
    report = examine(tmp_path)
    assert report["totals"]["files"] == 5 and "too large" in report["next"][0]


def test_escapes_in_file_names_do_not_reach_the_terminal(tmp_path, capsys):
    write_obj(tmp_path / "\x1b[31mred.obj")
    with pytest.raises(SystemExit):
        main(["doctor", str(tmp_path)])
    reported = capsys.readouterr()
    assert "\x1b[31m" not in reported.out + reported.err and "?[31mred" in reported.out


def test_doctor_gives_the_reason_of_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "navi"))
    monkeypatch.setattr("os.access", lambda *_: False)
    home = next(row for row in check_machine() if row["what"] == "NAVI_HOME")
    assert home["state"] == "broken" and "is not writable; set NAVI_HOME to a folder that is" in home["detail"]


@pytest.mark.slow
def test_doctor_measures_the_environment_and_its_imports():
    packages, times = check_environment()
    assert float(packages["detail"].split()[0]) > 0.5 and packages["detail"].endswith("site-packages")
    assert [part.split()[0] for part in times["detail"].split(", ")] == [
        "navi_core.cli.main",
        "torch",
        "navi_core.learn",
    ]
    assert 0 < float(times["detail"].split()[1]) < 60


def test_doctor_without_a_folder_checks_the_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path / "lost"))
    rows = {row["what"]: row for row in check_machine()}
    assert rows["NAVI_SCENES"]["state"] == "broken" and "lost" in rows["NAVI_SCENES"]["detail"]
    assert rows["NAVI_PLUGINS"]["state"] == "ok"
    monkeypatch.setenv("NAVI_PLUGINS", "my_missing")
    broken = next(row for row in check_machine() if row["what"] == "NAVI_PLUGINS")
    assert broken["state"] == "broken" and "there is no module my_missing" in broken["detail"]
    monkeypatch.delenv("NAVI_PLUGINS")
    assert rows["ray kernels"]["state"] in ("ok", "warning") and "cores" in rows["hardware"]["detail"]
    monkeypatch.delenv("NAVI_SCENES")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json"])
    assert ended.value.code == 0
    assert {row["what"] for row in json.loads(capsys.readouterr().out)["machine"]} >= {"hardware", "NAVI_HOME", "GPU"}
    assert not os.path.exists(os.environ["NAVI_HOME"]) or os.path.isdir(os.environ["NAVI_HOME"])


@pytest.mark.parametrize("way", ["..", "link", "unconfigured link"])
def test_a_mesh_outside_of_the_dataset_is_refused(tmp_path, way):
    root = replica_cad(tmp_path / "data")
    stage = root / "stages" / "frl_apartment_stage.glb"
    stage.rename(tmp_path / "secret.glb")
    config = root / "configs/stages/frl_apartment_stage.stage_config.json"
    if way == "unconfigured link":
        config.unlink()
    if "link" in way:
        stage.symlink_to(tmp_path / "secret.glb")
    else:
        config.write_text(json.dumps({"render_asset": "../../../secret.glb"}))
    with pytest.raises(MeshError, match="outside the dataset"):
        read_mesh(root / "configs/scenes/apt_0.scene_instance.json")
