"""The code location: its graph, its cost to load, its checks."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from navi_core.errors import ConfigError, RecordError
from navi_pipeline.definitions import defs
from navi_pipeline.jobs import POLICY_ASSETS, Flow, FlowSettings
from navi_pipeline.lib.corpus.scenes import write_corpus
from navi_pipeline.lib.experiments.sweeps import SWEEPS
from navi_pipeline.lib.training.policies import ALGORITHMS, train_policy

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def graph():
    return defs().resolve_asset_graph()


def edges_of(graph):
    keys = graph.get_all_asset_keys()
    return {key.to_user_string(): {p.to_user_string() for p in graph.get(key).parent_keys} for key in keys}


def test_asset_graph_has_the_expected_dependencies(graph):
    learners = {f"{name}_policy" for name in ALGORITHMS}
    assert edges_of(graph) == {
        "scene_sources": set(),
        "compiled_scene": {"scene_sources"},
        "scene_quality": {"scene_sources", "compiled_scene"},
        "corpus": {"compiled_scene", "scene_quality"},
        "expert_demonstrations": {"corpus"},
        "recorded_demonstrations": set(),
        "demonstrations": {"expert_demonstrations", "recorded_demonstrations"},
        "bc_policy": {"demonstrations", "corpus"},
        **{name: {"corpus"} for name in learners},
        "ppo_policy": {"bc_policy", "corpus"},
        "policy_evaluation": {*learners, "bc_policy", "corpus"},
        "baseline_evaluation": {"corpus"},
        "leaderboard": {"policy_evaluation", "baseline_evaluation"},
        "promoted_model": {"policy_evaluation", "ppo_policy"},
        **{name: {"corpus"} for name in SWEEPS},
        "ablation": set(),
        "study_proof": set(),
        "evaluated_subject": set(),
        "challenged_version": set(),
        "cell": {"ablation", "study_proof", *SWEEPS},
        "study": {"corpus"},
        "torture": set(),
        "trial": {"study"},
        "night_preflight": set(),
        "night_training": {"night_preflight"},
        "night_resume_proof": {"night_training"},
        "night_evaluation": {"night_preflight", "night_resume_proof"},
        "night_benchmarks": {"night_evaluation"},
        "night_promotion": {"night_benchmarks"},
        "night_summary": {"night_benchmarks", "night_promotion"},
        "warehouse": {"leaderboard", "promoted_model", "study", *SWEEPS},
    }


def test_whole_graph_jobs_cover_every_asset_once(graph):
    jobs = ("sources_job", "corpus_job", "recordings_job", "demonstrations_job", "profile_job", "benchmark_job",
            "study_job", "summary_job")  # fmt: skip
    made = [name for job in jobs for name in defs().resolve_job_def(job).graph.node_names() if name in edges_of(graph)]
    # Trials and cells are reported by the assets that run them; the others answer a question that somebody asks.
    asked = ("ablation", "study_proof", "evaluated_subject", "challenged_version", "torture")
    nights = defs().resolve_job_def("nightly_training").graph.node_names()
    assert sorted([*made, "trial", "cell", *asked, *nights]) == sorted(edges_of(graph))


def test_code_location_is_loadable():
    # Raises if a job, schedule or sensor does not resolve.
    assert dg.Definitions.validate_loadable(defs()) is None


def test_asset_groups_are_the_pipeline_stages(graph):
    groups = {graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert groups == {"corpus", "demonstrations", "pretraining", "training", "evaluation", "promotion", "benchmarks",
                      "studies", "nights", "warehouse"}  # fmt: skip


def test_every_asset_has_owner_description_and_code_version(graph):
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.owners and node.kinds and node.code_version and node.group_name != "default", key
        assert len(node.description) > 40, key


def test_every_asset_that_runs_links_to_its_function(graph):
    for key in graph.get_all_asset_keys():
        if graph.get(key).is_executable:
            (link,) = graph.get(key).metadata["dagster/code_references"].code_references
            assert Path(link.file_path).parts[-2] in ("defs", "automation"), link


def test_scenes_and_profiles_are_partitions(graph):
    kinds = {key.to_user_string(): graph.get(key).partitions_def for key in graph.get_all_asset_keys()}
    assert isinstance(kinds["compiled_scene"], dg.DynamicPartitionsDefinition)
    for name in POLICY_ASSETS:
        assert {part.name for part in kinds[name].partitions_defs} == {"profile", "seed"}
    assert kinds["demonstrations"].name == "profile", "a profile that nobody asked for is no partition"
    for name in (*SWEEPS, "study", "trial", "cell"):
        assert isinstance(kinds[name], dg.DynamicPartitionsDefinition)
    assert kinds["corpus"] is None


def test_blocking_checks_guard_training_and_promotion(graph):
    blocking = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys if graph.get(key).blocking}
    assert blocking == {
        ("corpus", "corpus_is_split_by_scene"),
        ("demonstrations", "demonstrations_can_be_learned_from"),
        ("bc_policy", "clone_has_learned"),
        *((f"{name}_policy", "metrics_are_finite") for name in ALGORITHMS),
        *(
            ("night_preflight", name)
            for name in ("free_disk", "home_is_writable", "profile", "warehouse", "corpus", "champion", "weights")
        ),
        *(("night_training", name) for name in ("training_ends_well", "no_stall", "a_checkpoint", "an_update")),
        *((f"night_{stage}", "finite_metrics") for stage in ("training", "resume_proof")),
        ("night_resume_proof", "resume"),
        *(
            (f"night_{stage}", "no_error")
            for stage in ("preflight", "training", "resume_proof", "evaluation", "benchmarks", "promotion")
        ),
        ("policy_evaluation", "beats_random"),
        ("policy_evaluation", "collides_less_than_random"),
    }


def test_code_location_imports_no_heavy_module():
    code = (
        "import sys\nfrom navi_pipeline.definitions import defs\n"
        "defs().get_repository_def()\n"
        "heavy = {'torch', 'pandas', 'optuna', 'trimesh', 'matplotlib', 'numba', 'duckdb'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_command_registration_imports_no_heavy_module():
    code = (
        "import sys, typer\nfrom navi_pipeline.cli.commands import register\nregister(typer.Typer())\n"
        "heavy = {'torch', 'pandas', 'dagster', 'duckdb', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_dagster_settings_load_with_telemetry_off(tmp_path):
    text = (ROOT / "dagster_home" / "dagster.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(text)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.telemetry_enabled and not instance.nux_enabled
        assert instance.run_monitoring_max_resume_run_attempts == 0
        assert instance.run_launcher.supports_check_run_worker_health, "a run whose process is gone is seen"
        assert instance.run_retries_enabled and instance.run_retries_max_retries == 2
        assert instance.get_settings("run_retries")["retry_on_asset_or_op_failure"] is False


def test_the_workspace_names_the_code_location():
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text())
    module = workspace["load_from"][0]["python_module"]
    assert module == {"module_name": "navi_pipeline.definitions", "location_name": "navi"}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"profile": "quik"}, r"no profile 'quik'; allowed: demo, generalist, quick, rooms"),
        ({"profile": "quick", "size": "huge"}, r"no size 'huge'; allowed: quick, full"),
    ],
)
def test_unknown_profile_or_size_is_refused_by_the_flow(given, reported):
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(ConfigError, match=reported):
        Flow(instance, defs().resolve_job_def, FlowSettings(**given), report=print)


@pytest.mark.parametrize("profile", ["quick", "rooms", "rooms_standard", "standard"])
def test_profiles_that_start_from_a_clone_require_it(profile):
    write_corpus([{"name": "a", "split": "train", "gmdag": "a.gmdag"}])
    with pytest.raises(RecordError, match=f"bc_policy, partition {profile}"):
        train_policy(profile, seed=0, on_line=print)


def test_every_launchpad_setting_has_a_description():
    from navi_pipeline.definitions import defs

    silent = []
    for definition in defs().resolve_all_job_defs():
        for node in definition.nodes:
            schema = node.definition.config_field.config_type if node.definition.config_field else None
            for name, field in (getattr(schema, "fields", None) or {}).items():
                if not field.description:
                    silent.append(f"{node.name}.{name}")
    assert silent == []


def test_private_names_of_dagster_are_used_in_one_file():
    package = ROOT / "navi_pipeline"
    used = [path for path in package.rglob("*.py") if "dagster._" in path.read_text()]
    assert used == [package / "lib" / "run_launcher.py"]
