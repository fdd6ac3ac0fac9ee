"""`navi compare --maps`: a picture per scene, or a refusal with its reason."""

from dataclasses import replace
from types import SimpleNamespace

from typer.testing import CliRunner

from navi_core.cli.evaluate import draw_maps
from navi_core.cli.main import build_app
from navi_core.errors import ConfigError

COURSE = ["--scene", "apartment:9003", "--starts", "1", "--steps", "5", "--resolution", "64"]


def test_a_picture_of_each_scene_is_written(tmp_path):
    command = ["compare", "forward-plus", "random", *COURSE, "--maps", str(tmp_path / "maps"), "--json"]
    done = CliRunner().invoke(build_app(), command)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "maps" / "apartment_9003.png").read_bytes().startswith(b"\x89PNG")


def test_map_of_a_hostile_scene_name_stays_in_the_folder(apartments, tmp_path):
    names = ("../../elsewhere", "a/b", "a_b")
    scenes = [replace(apartments[0], name=name) for name in names]
    rows = [{"scene": name, "c_vis_final": 0.5, "collisions": 0} for name in names]
    result = SimpleNamespace(summary={"subject": "nobody"}, episodes=rows, trajectories_of=lambda _: [])
    draw_maps(tmp_path / "deep" / "maps", [result], scenes)
    files = list(tmp_path.rglob("*.png"))
    assert len(files) == 3 and {file.parent for file in files} == {tmp_path / "deep" / "maps"}


def test_maps_of_loaded_results_are_refused(tmp_path):
    out = str(tmp_path / "random.json")
    assert CliRunner().invoke(build_app(), ["evaluate", "random", *COURSE, "--out", out]).exit_code == 0
    done = CliRunner().invoke(build_app(), ["compare", out, out, "--maps", str(tmp_path / "maps")])
    assert isinstance(done.exception, ConfigError) and "keep no paths" in str(done.exception)
    assert not (tmp_path / "maps").exists()
