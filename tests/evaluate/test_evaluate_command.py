"""`navi evaluate`: advice and scene names beside the numbers."""

from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.policy import build_policy
from tests.conftest import fly_ahead
from tests.models.conftest import CONFIG, POLICY, make_checkpoint  # noqa: F401 - a fixture


def test_evaluate_suggests_recovery_for_a_stuck_policy(make_checkpoint, apartments, tmp_path):  # noqa: F811
    apartments[0].save(tmp_path / "scene.gmdag")
    flat = CONFIG.model_copy(update={"policy": POLICY.model_copy(update={"aux": "off"})})
    checkpoint = make_checkpoint("w.pt", steps=0, policy=fly_ahead(build_policy(flat.policy, 0)), config=flat)
    command = ["evaluate", str(checkpoint), "--scene", str(tmp_path / "scene.gmdag"), "--steps", "60", "--no-record"]
    assert "--recovery frees" in CliRunner().invoke(build_app(), command).stderr
    assert "--recovery frees" not in CliRunner().invoke(build_app(), [*command, "--no-recovery"]).stderr


def test_the_table_names_the_scenes_that_were_flown(tmp_path):
    command = ["evaluate", "random", "--starts", "1", "--steps", "2", "--resolution", "64", "--no-record", "--scene"]
    few = CliRunner().invoke(build_app(), [*command, "maze:3-4"], env={"NAVI_HOME": str(tmp_path)}).stdout
    many = CliRunner().invoke(build_app(), [*command, "maze:3-8"], env={"NAVI_HOME": str(tmp_path)}).stdout
    assert "in maze_0003, maze_0004: coverage" in " ".join(few.split())
    assert "in maze_0003, maze_0004, maze_0005, maze_0006 and 2 more: coverage" in " ".join(many.split())
