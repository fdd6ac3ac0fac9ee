"""Training, evaluation and the gate before promotion through Dagster, with a real trainer as child process."""

import pytest

from navi_core.config import config_hash
from navi_core.errors import ConfigError, RecordError
from navi_core.record import navi_home
from navi_pipeline.defs.evaluation import agreement
from navi_pipeline.lib.evaluation.scoring import PILOTS, read_verdict
from navi_pipeline.lib.records import pipeline_folder, write_document
from navi_pipeline.lib.reports.view3d import flights_in_3d
from navi_pipeline.lib.training import policies
from navi_pipeline.lib.training.policies import read_policy, training_config
from navi_pipeline.lib.training.trainer_client import algorithm_of, ended_of_itself, training_command
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.empty_warehouse import start_warehouse
from tests.pipeline.policy_runs import FLIGHT, checks, made

pytestmark = pytest.mark.usefixtures("results")

ASSETS = ("ppo_policy", "policy_evaluation", "promoted_model")
SETTINGS = {
    "ppo_policy": {"total_steps": 256, "start": "new"},
    "policy_evaluation": FLIGHT,
    "promoted_model": FLIGHT,
}


def test_training_runs_in_a_child_and_shows_its_curves(results):
    policy = made(results[0])["ppo_policy"]
    version = read_policy("quick")["version"]
    assert policy.metadata["steps"].value == 256 and policy.metadata["reused"].value is False
    assert policy.metadata["curves"].value.startswith("![curves](data:image/svg+xml;base64,")
    assert policy.metadata["version"].value == version and read_policy("quick")["seed"] == 3


def test_metrics_reach_the_warehouse_once(results):
    run_id = read_policy("quick")["run_id"]
    rows = Warehouse().query("select step, name, seed, config_hash, versions from metrics where run_id = ?", [run_id])
    assert sorted(set(rows["step"])) == [128, 256] and set(rows["seed"]) == {3}
    assert not rows.duplicated(["step", "name"]).any() and rows["config_hash"].notna().all()
    assert checks(results[0])["metrics_are_finite"].passed


def test_evaluation_flies_policy_and_pilots_on_held_out_scenes(results):
    evaluation = made(results[0])["policy_evaluation"]
    assert "forward-plus" in evaluation.metadata["table"].value
    assert evaluation.metadata["maps"].value.count("data:image/png;base64,") == 2
    assert "quick-seed3" in flights_in_3d(navi_home())[0]
    verdict = read_verdict("quick")
    assert [row["subject"] for row in verdict["test"]["table"]] == ["quick-seed3", *PILOTS]
    board = Warehouse().query("select subject, rank, split, episodes from leaderboard")
    assert set(board["subject"]) == {"quick-seed3", *PILOTS} and set(board["episodes"]) == {4}


def test_apex_runs_in_one_process_unless_the_trainer_is_a_ray_job(monkeypatch):
    monkeypatch.delenv("NAVI_TRAINER", raising=False)
    assert training_command("apex") == ["learner", "--in-process"]
    monkeypatch.setenv("NAVI_TRAINER", "ray")
    assert training_command("apex") == ["learner", "--address", "auto"] and algorithm_of("apex") == "dqn"


def test_untrained_policy_fails_the_blocking_checks(results):
    """Two updates teach nothing: the blocking checks fail, and the promotion never runs."""
    gates = checks(results[0])
    assert not (gates["beats_random"].passed and gates["collides_less_than_random"].passed)
    assert "promoted_model" not in made(results[0]) and not results[0].success


def test_second_run_reuses_training_and_flights(results):
    first, second = (made(result) for result in results)
    for name in ("ppo_policy", "policy_evaluation"):
        assert second[name].metadata["reused"].value is True
        assert first[name].tags["dagster/data_version"] == second[name].tags["dagster/data_version"]
    assert second["policy_evaluation"].metadata["maps"].value == first["policy_evaluation"].metadata["maps"].value


def test_a_policy_is_found_by_its_seed_and_in_older_homes_too(tmp_path, monkeypatch):
    assert read_policy("quick", seed=3) == read_policy("quick") and read_verdict("quick", 3) == read_verdict("quick")
    older = {"algorithm": "ppo", "profile": "quick", "seed": 1, "checkpoint": "x"}
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path)))
    write_document(pipeline_folder() / "policies" / "ppo-quick.json", older)
    assert read_policy("quick", seed=1) == older and policies.known_policies("quick", 1) == [older]
    policies._keep(older | {"seed": 2})
    assert [read_policy("quick", seed=seed)["seed"] for seed in (2, None)] == [2, 2]


def test_seeds_that_disagree_fail_the_check_from_five_on(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path)))
    for seed in range(5):
        row = {"better": seed != 2, "difference": 2.0 if seed != 2 else -3.0}
        verdict = {"policy": {"seed": seed}, "test": {"comparisons": {"forward-plus": {"c_vis_auc": row}}}}
        write_document(pipeline_folder() / "verdicts" / f"quick-seed{seed}.json", verdict)
        outcome = agreement("quick")
        assert outcome.passed == (seed < 4)
    assert outcome.description == "4 of 5 seeds of quick see more than forward-plus"
    assert outcome.metadata["mean_difference"].value == 1.0


def test_start_weights_are_new_for_demo_and_the_clone_for_quick():
    assert policies._command("ppo", "demo", "profile") == (["train", "ppo"], None, None)
    with pytest.raises(RecordError, match="materialize bc_policy, partition quick"):
        policies._command("ppo", "quick", "profile")
    assert policies._command("ppo", "quick", "new") == (["train", "ppo"], None, None)
    with pytest.raises(ConfigError, match="allowed: profile, clone, new"):
        policies._command("ppo", "quick", "scratch")


def test_seed_changes_the_config_hash():
    one, two = (config_hash(training_config("quick", seed=seed, total_steps=256)) for seed in (0, 1))
    assert one != two


def test_asset_training_has_a_step_limit():
    assert training_config("quick", seed=0, total_steps=None).total_steps is not None
    assert training_config("demo", seed=0).policy.place_memory
    assert not training_config("demo", seed=0, algorithm="dpo").policy.place_memory


def test_missing_policy_error_names_the_asset_to_materialize():
    with pytest.raises(RecordError, match="materialize ppo_policy, partition standard"):
        read_policy("standard")
    with pytest.raises(RecordError, match=r"no ppo_policy of seed 4; materialize its partition quick\|4"):
        read_policy("quick", seed=4)


def test_require_whole_accepts_early_stopping_but_no_stopped_run():
    whole = ("total_steps", "epochs", "early_stopping: plateau")
    assert all(map(ended_of_itself, whole))
    assert not any(map(ended_of_itself, ("stopped", "SIGTERM", None)))
