"""Training, evaluation and the gate before promotion through Dagster, with a real trainer as child process."""

import dagster as dg
import pytest

from navi_core.config import config_hash
from navi_core.errors import ConfigError, RecordError
from navi_core.presets import load_preset
from navi_pipeline.definitions import defs
from navi_pipeline.lib import policies
from navi_pipeline.lib.compiled import compile_source, corpus_rows, write_corpus
from navi_pipeline.lib.demonstrations import read_demonstrations, take_recordings
from navi_pipeline.lib.documents import write_document
from navi_pipeline.lib.policies import read_policy, training_config
from navi_pipeline.lib.promotions import lineage_of
from navi_pipeline.lib.scene_plan import as_rows, plan_path, plan_scenes
from navi_pipeline.lib.verdicts import read_verdict
from navi_pipeline.lib.warehouse import Warehouse

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
FLIGHT = {"config": {"starts": 2, "max_steps": 20}}
ASSETS = ("expert_demonstrations", "demonstrations", "bc_policy", "ppo_policy", "policy_evaluation", "promoted_model")
OPS = {
    "expert_demonstrations": {"config": {"scenes": 1, "episodes": 3, "steps": 12}},
    "bc_policy": {"config": {"epochs": 2}},
    "ppo_policy": {"config": {"seed": 3, "total_steps": 256}},
    "policy_evaluation": FLIGHT,
    "promoted_model": FLIGHT,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The job of a profile run twice after two updates' worth of training; home and both results."""
    root = tmp_path_factory.mktemp("navi")
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setenv("NAVI_HOME", str(root))
        patch.delenv("NAVI_SCENES", raising=False)
        # A tiny run: 4 rows × 32 decisions, two updates. The environment is one of the sources of settings.
        patch.setenv("NAVI_ACTORS", "4")
        patch.setenv("NAVI_PPO__ROLLOUT", "32")
        patch.setenv("NAVI_THREADS", "1")
        sources = plan_scenes("apartment", {"train": 1, "test": 2})
        write_document(plan_path(), {"sources": as_rows(sources)})
        for source in sources:
            compile_source(source, load_preset("quick").compile)
        write_corpus(corpus_rows())
        take_recordings()
        job = defs().resolve_job_def("profile_job")
        results = [
            job.execute_in_process(
                instance=instance,
                partition_key="quick",
                run_config=QUIET | {"ops": OPS},
                asset_selection=[dg.AssetKey(name) for name in ASSETS],
                raise_on_error=False,
            )
            for _ in range(2)
        ]
    return root, results


@pytest.fixture(autouse=True)
def results(stage, monkeypatch):
    home, both = stage
    monkeypatch.setenv("NAVI_HOME", str(home))
    return both


def made(result):
    return {
        e.materialization.asset_key.to_user_string(): e.materialization
        for e in result.get_asset_materialization_events()
    }


def checks(result):
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


def test_training_runs_in_a_child_and_shows_its_curves(results):
    policy = made(results[0])["ppo_policy"]
    version = read_policy("quick")["version"]
    assert policy.metadata["steps"].value == 256 and policy.metadata["reused"].value is False
    assert policy.metadata["curves"].value.startswith("![curves](data:image/png;base64,")
    assert policy.metadata["version"].value == version and read_policy("quick")["seed"] == 3


def test_the_policy_descends_from_a_clone_of_the_demonstrations(results):
    clone, policy = read_policy("quick", "bc"), read_policy("quick")
    assert policy["parent"] == clone["version"] == "v001"
    assert lineage_of(policy["version"]) == ["v001 (bc)", f"{policy['version']} (rl)"]
    assert made(results[0])["bc_policy"].metadata["curves"].value.startswith("![curves](data:image/png;base64,")
    assert clone["run_id"].startswith(f"bc_policy-quick-{read_demonstrations('quick')['content_hash'][:12]}-")
    assert "clone_has_learned" in checks(results[0])


def test_demonstrations_show_what_was_seen_and_answered(results):
    shown = made(results[0])["demonstrations"].metadata
    assert shown["decisions"].value == 36 and shown["left_out"].value == 0
    for name in ("answers", "panorama"):
        assert "data:image/png;base64," in shown[name].value
    assert "| expert |" in shown["sources"].value and "| forward |" in shown["actions"].value
    assert checks(results[0])["demonstrations_can_be_learned_from"].passed


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
    verdict = read_verdict("quick")
    assert [row["subject"] for row in verdict["test"]["table"]] == ["quick-seed3", "random", "forward-plus"]
    board = Warehouse().query("select subject, rank, split, episodes from leaderboard")
    assert set(board["subject"]) == {"quick-seed3", "random", "forward-plus", "bc-quick-seed0"}
    assert set(board["episodes"]) == {4}
    assert "| bc-quick-seed0 |" in evaluation.metadata["other_policies"].value


def test_an_untrained_policy_is_stopped_by_the_gate(results):
    """Two updates teach nothing: the blocking checks fail, and the promotion never runs."""
    gates = checks(results[0])
    assert not (gates["beats_random"].passed and gates["collides_less_than_random"].passed)
    assert "promoted_model" not in made(results[0]) and not results[0].success


def test_a_second_run_reuses_run_and_flights_and_keeps_the_versions(results):
    first, second = (made(result) for result in results)
    for name in ("expert_demonstrations", "bc_policy", "ppo_policy", "policy_evaluation"):
        assert second[name].metadata["reused"].value is True, name
        assert first[name].tags["dagster/data_version"] == second[name].tags["dagster/data_version"]
    assert second["policy_evaluation"].metadata["maps"].value == first["policy_evaluation"].metadata["maps"].value


def test_the_demo_begins_with_new_weights_and_quick_with_the_clone():
    assert policies._command("ppo", "demo", "profile") == (["train", "ppo"], None, None)
    assert policies._command("ppo", "quick", "profile")[2] == "v001"
    assert policies._command("ppo", "quick", "new") == (["train", "ppo"], None, None)
    with pytest.raises(ConfigError, match="allowed: profile, clone, new"):
        policies.parse_start("scratch")


def test_another_seed_is_another_run():
    one, two = (config_hash(training_config("quick", seed=seed, total_steps=256)) for seed in (0, 1))
    assert one != two


def test_an_asset_of_training_always_ends():
    assert training_config("quick", seed=0, total_steps=None).total_steps is not None


def test_what_is_missing_is_named_with_the_asset_that_makes_it():
    with pytest.raises(RecordError, match="materialize ppo_policy, partition standard"):
        read_policy("standard")
