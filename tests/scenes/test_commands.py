"""`navi scenes` and `navi doctor`: tables for people, one JSON document for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import ConfigError, GmdagError, MeshError, SceneError
from navi_core.record.home import scene_loaders
from navi_core.scenes import load_gmdag, parse_seeds, read_manifest
from navi_core.scenes.manifest import file_hash
from tests.scenes.corpus.test_corpus import write_obj
from tests.scenes.mesh_files import room


@pytest.fixture
def navi():
    """Runs a command and returns its result; errors are left to be looked at."""
    app = build_app(groups=("scenes", "doctor"), plugins=False)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_generate_compiles_and_then_reuses(navi, tmp_path):
    command = ("scenes", "generate", "maze", "--seeds", "0-1", "--resolution", 32, "--out", tmp_path)
    first = json.loads(navi(*command, "--json").stdout)
    second = json.loads(navi(*command, "--json").stdout)
    assert [r["name"] for r in first] == ["maze_0000", "maze_0001"]
    assert [r["skipped"] for r in first + second] == [False, False, True, True]
    assert all(Path(r["gmdag"]).is_file() for r in first)
    table = navi(*command)
    assert table.exit_code == 0
    assert "0 compiled, 2 unchanged" in table.stdout


def test_generated_scenes_go_to_the_navi_home_by_default(navi, monkeypatch, tmp_path):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    rows = json.loads(navi("scenes", "generate", "maze", "--resolution", 32, "--json").stdout)
    assert Path(rows[0]["gmdag"]).parent == tmp_path / "home" / "scenes"


def test_discover_compile_inspect_and_qualify_follow_one_another(navi, tmp_path):
    write_obj(tmp_path / "meshes" / "tent.obj")
    out = tmp_path / "out"
    found = json.loads(navi("scenes", "discover", tmp_path / "meshes", "--json").stdout)
    assert found == [
        {"name": "tent", "dataset": "meshes", "source": str(tmp_path / "meshes" / "tent.obj"), "compiled": False}
    ]
    made = json.loads(
        navi(
            "scenes", "compile", tmp_path / "meshes", "--out", out, "--resolution", 32, "--unit-scale", 2, "--json"
        ).stdout
    )
    facts = json.loads(navi("scenes", "inspect", made[0]["gmdag"], "--json").stdout)[0]
    assert (facts["version"], facts["resolution"], facts["size"]) == (2, 32, [4.0, 4.0, 4.0])
    assert facts["semantic_names"] == {"1": "surface", "2": "wall"}
    assert 0 < facts["nodes_stored"] < facts["nodes"]
    assert 0 < facts["items_stored"] < facts["items"]
    assert facts["decimation"] is None
    folder = Path(made[0]["gmdag"]).parent
    assert json.loads(navi("scenes", "inspect", str(folder), "--json").stdout)[0] == facts
    empty = tmp_path / "no scenes"
    empty.mkdir()
    reported = str(navi("scenes", "inspect", str(empty)).exception)
    assert (
        reported == f"{empty}: the folder holds no .gmdag file; compile its meshes with: navi scenes compile '{empty}'"
    )
    mesh = navi("scenes", "inspect", str(tmp_path / "meshes" / "tent.obj")).exception
    assert f"navi scenes compile {tmp_path / 'meshes' / 'tent.obj'} " in str(mesh)
    shown = navi("scenes", "inspect", made[0]["gmdag"]).stdout
    assert "tent" in shown and "in metres" in " ".join(shown.split())


def test_discover_reports_scenes_compiled_in_the_navi_home(navi, monkeypatch, tmp_path):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    for name in ("a tent", "tent"):
        write_obj(tmp_path / "meshes" / f"{name}.obj")
    first = tmp_path / "meshes" / "a tent.obj"
    navi("scenes", "compile", first, "--resolution", 32)
    found = json.loads(navi("scenes", "discover", tmp_path / "meshes", "--json").stdout)
    assert [row["compiled"] for row in found] == [row["source"] == str(first) for row in found]


def test_qualify_judges_and_stores_the_verdict(navi, tmp_path):
    made = json.loads(
        navi("scenes", "generate", "maze", "--resolution", 64, "--out", tmp_path, "--json").stdout
    )[0]  # fmt: skip
    row = json.loads(navi("scenes", "qualify", made["gmdag"], "--write", "--json").stdout)[0]
    assert row["verdict"] == "PASS"
    assert row["viable"] >= 4
    assert load_gmdag(made["gmdag"]).verdict == "PASS"
    assert load_gmdag(made["gmdag"]).name == "maze_0000"


def test_stored_verdict_is_written_to_the_manifest(navi, tmp_path):
    for name in ("tent", "other"):
        write_obj(tmp_path / "meshes" / f"{name}.obj")
    out = tmp_path / "out"
    navi("scenes", "compile", tmp_path / "meshes", "--resolution", 32, "--out", out)
    before = {row.name: row for row in read_manifest(out / "manifest.json").rows}
    assert before["tent"].verdict is None
    reported = json.loads(navi("scenes", "qualify", before["tent"].gmdag, "--write", "--json").stdout)[0]
    after = {row.name: row for row in read_manifest(out / "manifest.json").rows}
    assert after["other"] == before["other"] and after["tent"].verdict == reported["verdict"]
    assert after["tent"].gmdag_hash == file_hash(after["tent"].gmdag) != before["tent"].gmdag_hash


def test_faults_reach_the_caller_as_navi_errors(navi, tmp_path):
    assert isinstance(navi("scenes", "generate", "maize").exception, ConfigError)
    assert isinstance(navi("scenes", "generate", "maze", "--resolution", 100).exception, ConfigError)
    assert isinstance(navi("scenes", "generate", "maze", "--seeds", "3-1").exception, ConfigError)
    assert isinstance(navi("scenes", "inspect", tmp_path / "none.gmdag").exception, GmdagError)
    bad = tmp_path / "bad.obj"
    bad.write_text("v 0 0 0\n")
    assert isinstance(navi("scenes", "compile", bad, "--out", tmp_path / "out").exception, MeshError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (3,)), ("0-3", (0, 1, 2, 3)), ("1,4,7", (1, 4, 7)), ("0-2,2,9", (0, 1, 2, 9))]
)
def test_seeds_are_read_as_numbers_lists_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "4-2", "1,,2", "0-999999999"])
def test_unreadable_seeds_are_refused(text):
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(text)


def test_doctor_separates_good_doubtful_and_broken_files(navi, tmp_path):
    write_obj(tmp_path / "a" / "good.obj")
    (tmp_path / "broken.glb").write_bytes(b"glTF")
    (tmp_path / "cut.gmdag").write_bytes(b"GDAG\x01\0\0\0")
    (tmp_path / "small.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    result = navi("doctor", tmp_path, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 3
    assert {row["file"]: row["state"] for row in report["files"]} == {
        "a/good.obj": "ok",
        "broken.glb": "broken",
        "cut.gmdag": "broken",
        "small.obj": "warning",
    }
    assert any("broken.glb" in step for step in report["next"])
    assert any("navi scenes compile" in step for step in report["next"])
    assert "broken.glb" in navi("doctor", tmp_path).stdout


def test_doctor_of_an_empty_folder_prints_the_next_command(navi, tmp_path):
    result = navi("doctor", tmp_path)
    assert result.exit_code == 0
    assert "navi scenes generate" in result.stdout
    assert isinstance(navi("doctor", tmp_path / "none").exception, Exception)


def test_inspect_and_doctor_report_a_file_without_a_surface(navi, tmp_path):
    from tests.scenes.conftest import chain, v1_bytes

    (tmp_path / "empty.gmdag").write_bytes(v1_bytes(chain(semantic=0)))
    (tmp_path / "full.gmdag").write_bytes(v1_bytes(chain(distance=0.0, semantic=1)))
    files = (tmp_path / "empty.gmdag", tmp_path / "full.gmdag")
    result = navi("scenes", "inspect", *files, "--json")
    assert [row["surface"] for row in json.loads(result.stdout)] == [False, True]
    assert "empty.gmdag: holds no surface" in result.stderr and "full.gmdag" not in result.stderr
    rows = {row["file"]: row for row in json.loads(navi("doctor", tmp_path, "--json").stdout)["files"]}
    assert (rows["empty.gmdag"]["state"], rows["full.gmdag"]["state"]) == ("warning", "ok")
    assert "no surface" in rows["empty.gmdag"]["detail"]


def test_meshes_of_one_file_name_are_separate_scenes_in_the_given_order(tmp_path):
    first, second = write_obj(tmp_path / "b" / "scan.obj"), write_obj(tmp_path / "a" / "scan.obj", "chair")
    loaders = scene_loaders([str(first), "maze:0", str(second)], 32)
    assert [load().name for _, load in loaders] == [name for name, _ in loaders]
    assert len({name for name, _ in loaders}) == 3 and loaders[1][0] == "maze_0000"
    assert loaders[0][1]().semantic_names != loaders[2][1]().semantic_names
    assert "chair" in loaders[2][1]().semantic_names.values()


def test_a_folder_names_its_meshes_as_scenes(tmp_path):
    write_obj(tmp_path / "scans" / "hall.obj")
    write_obj(tmp_path / "scans" / "up" / "loft.obj")
    other = write_obj(tmp_path / "elsewhere" / "hall.obj")
    assert [name for name, _ in scene_loaders([str(tmp_path / "scans")], 32)] == ["hall", "loft"]
    loaders = scene_loaders([str(tmp_path / "scans"), str(other), str(tmp_path / "elsewhere")], 32)
    assert [name for name, _ in loaders] == ["scans_hall", "loft", "elsewhere_hall"]
    assert [load().name for _, load in loaders] == [name for name, _ in loaders]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SceneError, match="no scene found"):
        scene_loaders([str(tmp_path / "empty")], 32)


def test_scenes_of_two_folders_have_distinct_names(navi, tmp_path):
    for folder in ("a", "b"):
        write_obj(tmp_path / folder / "flat.obj")
    command = ("scenes", "compile", "--out", tmp_path / "out", "--resolution", 16, "--json")
    rows = json.loads(navi(*command, tmp_path / "a", tmp_path / "b").stdout)
    assert [row["name"] for row in rows] == ["a_flat", "b_flat"]
    write_obj(tmp_path / "c" / "hall.obj")
    assert navi(*command, tmp_path / "c").exit_code == 0
    assert len(read_manifest(tmp_path / "out" / "manifest.json").rows) == 3


def test_qualify_skips_a_broken_scene_and_applies_the_up_axis(navi, tmp_path):
    room(tmp_path / "meshes" / "a.glb")
    (tmp_path / "meshes" / "b.glb").write_bytes(b"glTF")
    reported = navi("scenes", "qualify", tmp_path / "meshes", "--out", tmp_path, "--resolution", 32, "--up-axis", "z")
    assert isinstance(reported.exception, SceneError)
    assert "1 of 2 scenes could not be judged" in str(reported.exception)
    assert "failed: b: " in reported.stderr
    made = json.loads(
        navi("scenes", "compile", tmp_path / "meshes" / "a.glb", "--out", tmp_path, "--resolution", 32,
             "--up-axis", "z", "--json").stdout
    )  # fmt: skip
    assert made[0]["skipped"]
