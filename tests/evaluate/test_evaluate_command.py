"""`navi evaluate`: what it says beside the numbers."""

from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.policy import build_policy
from tests.conftest import fly_ahead
from tests.models.conftest import CONFIG, POLICY, make_checkpoint  # noqa: F401 - a fixture


def test_who_evaluates_a_policy_that_pushes_against_walls_is_told_of_recovery(make_checkpoint, apartments, tmp_path):  # noqa: F811
    apartments[0].save(tmp_path / "scene.gmdag")
    flat = CONFIG.model_copy(update={"policy": POLICY.model_copy(update={"aux": "off"})})
    checkpoint = make_checkpoint("w.pt", steps=0, policy=fly_ahead(build_policy(flat.policy, 0)), config=flat)
    command = ["evaluate", str(checkpoint), "--scene", str(tmp_path / "scene.gmdag"), "--steps", "60", "--no-record"]
    assert "--recovery frees" in CliRunner().invoke(build_app(), command).stderr
    assert "--recovery frees" not in CliRunner().invoke(build_app(), [*command, "--no-recovery"]).stderr
