"""The code location: its graph, its cost to load, its checks."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from navi_core.presets import preset_names
from navi_pipeline.definitions import defs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def graph():
    return defs().resolve_asset_graph()


def test_the_asset_graph_is_the_main_job(graph):
    edges = {key.to_user_string(): {p.to_user_string() for p in graph.get(key).parent_keys} for key in
             graph.get_all_asset_keys()}  # fmt: skip
    assert edges == {
        "scene_sources": set(),
        "compiled_scene": {"scene_sources"},
        "corpus": {"compiled_scene"},
        "ppo_policy": {"corpus"},
        "policy_evaluation": {"ppo_policy", "corpus"},
        "promoted_model": {"policy_evaluation", "ppo_policy"},
    }


def test_every_asset_says_who_owns_it_what_it_is_and_which_code_makes_it(graph):
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.owners and node.kinds and node.code_version and node.group_name != "default", key
        assert len(node.description) > 40, key


def test_scenes_and_profiles_are_partitions(graph):
    kinds = {key.to_user_string(): graph.get(key).partitions_def for key in graph.get_all_asset_keys()}
    assert isinstance(kinds["compiled_scene"], dg.DynamicPartitionsDefinition)
    for name in ("ppo_policy", "policy_evaluation", "promoted_model"):
        assert set(kinds[name].get_partition_keys()) == set(preset_names())
    assert kinds["corpus"] is None


def test_blocking_checks_guard_training_and_promotion(graph):
    blocking = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys if graph.get(key).blocking}
    assert blocking == {
        ("corpus", "corpus_is_split_by_scene"),
        ("ppo_policy", "metrics_are_finite"),
        ("policy_evaluation", "beats_random"),
        ("policy_evaluation", "collides_less_than_random"),
    }


def test_the_code_location_loads_nothing_heavy():
    code = (
        "import sys\nfrom navi_pipeline.definitions import defs\n"
        "defs().get_repository_def()\n"
        "heavy = {'torch', 'pandas', 'optuna', 'trimesh', 'matplotlib', 'numba', 'duckdb'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_registering_the_commands_loads_nothing_heavy():
    code = (
        "import sys, typer\nfrom navi_pipeline.cli import register\nregister(typer.Typer())\n"
        "heavy = {'torch', 'pandas', 'dagster', 'duckdb', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_dagster_settings_are_accepted_and_send_nothing(tmp_path):
    text = (ROOT / "dagster_home" / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(text)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.telemetry_enabled and not instance.nux_enabled
        assert instance.run_monitoring_max_resume_run_attempts == 0


def test_the_workspace_names_the_code_location():
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    module = workspace["load_from"][0]["python_module"]
    assert module == {"module_name": "navi_pipeline.definitions", "location_name": "navi"}
