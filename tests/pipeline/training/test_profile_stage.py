"""A whole profile through Dagster: demonstrations, clone, every learner, and all of them evaluated (slow)."""

import pytest

from navi_pipeline.lib.corpus.demonstrations import read_demonstrations
from navi_pipeline.lib.evaluation.promotions import lineage_of
from navi_pipeline.lib.training.policies import ALGORITHMS, read_policy
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.policy_runs import FLIGHT, checks, failures, made

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("results")]

LEARNERS = [f"{name}_policy" for name in ALGORITHMS]
ASSETS = ("expert_demonstrations", "demonstrations", "bc_policy", *LEARNERS, "policy_evaluation")
SETTINGS = {
    "expert_demonstrations": {"scenes": 1, "episodes": 3, "steps": 12},
    "bc_policy": {"epochs": 2},
    **{name: {"total_steps": 512} for name in LEARNERS},
    "policy_evaluation": FLIGHT,
}


def test_profile_assets_are_made_once_and_reused(results):
    first, second = (made(result) for result in results)
    assert set(first) == set(second) == set(ASSETS), failures(results[0])
    for name in ASSETS:
        assert first[name].tags["dagster/data_version"] == second[name].tags["dagster/data_version"]
        assert name == "demonstrations" or second[name].metadata["reused"].value is True


def test_ppo_policy_has_the_behaviour_clone_as_parent(results):
    clone, policy = read_policy("quick", "bc"), read_policy("quick")
    assert policy["parent"] == clone["version"]
    assert lineage_of(policy["version"]) == [f"{clone['version']} (bc)", f"{policy['version']} (rl)"]
    assert made(results[0])["bc_policy"].metadata["curves"].value.startswith("![curves](data:image/svg+xml;base64,")
    assert clone["run_id"].startswith(f"bc_policy-quick-{read_demonstrations('quick')['content_hash'][:12]}-")
    assert "clone_has_learned" in checks(results[0])


def test_demonstrations_metadata_shows_actions_and_a_panorama(results):
    shown = made(results[0])["demonstrations"].metadata
    assert shown["decisions"].value == 36 and shown["left_out"].value == 0
    assert "data:image/svg+xml;base64," in shown["answers"].value
    assert "data:image/png;base64," in shown["panorama"].value
    assert "| expert |" in shown["sources"].value and "| forward |" in shown["actions"].value
    assert checks(results[0])["demonstrations_can_be_learned_from"].passed


def test_every_policy_of_the_profile_is_ranked(results):
    others = {f"{name}-quick-seed3" for name in ALGORITHMS if name != "ppo"} | {"bc-quick-seed3"}
    board = Warehouse().query("select subject from leaderboard")
    assert set(board["subject"]) == {"quick-seed3", "random", "forward-plus", *others}
    assert "| bc-quick-seed3 |" in made(results[0])["policy_evaluation"].metadata["other_policies"].value
    assert all(
        f"| {name} |" in made(results[0])["policy_evaluation"].metadata["other_policies"].value for name in others
    )


def test_dpo_and_apex_learn_in_the_graph(results):
    preferences, apex = read_policy("quick", "dpo"), read_policy("quick", "apex")
    assert preferences["steps"] == apex["steps"] == 512
    assert preferences["metrics"]["pairs"] > 0 and apex["metrics"]["gradient_steps"] > 0
    assert apex["metrics"]["actors_replaced"] == 0 and apex["version"] != preferences["version"]
    assert made(results[0])["apex_policy"].metadata["curves"].value.startswith("![curves](data:image/svg+xml;base64,")
