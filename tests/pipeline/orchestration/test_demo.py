"""`navi demo`: errors, scene plan and Dagster home; the whole demo is a slow test."""

import json
import os
import runpy
import shutil
import signal
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from PIL import Image

from navi_core.errors import RunError
from navi_core.presets import read_config_file, write_yaml
from navi_pipeline.cli.graph import demo, materialize, ui
from navi_pipeline.lib.orchestration import dagster_home

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def dagster(tmp_path, monkeypatch):
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))


@pytest.mark.slow
def test_failed_asset_ends_the_demo_with_its_error(dagster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path / "none"))
    with pytest.raises(RunError, match=r"scene_sources failed: .*NAVI_SCENES names .*none"):
        demo(as_json=True)
    assert capsys.readouterr().out == ""


def test_demo_in_the_background_ends_on_sigterm_between_assets(dagster, tmp_path, monkeypatch):
    """A shell's background job ignores SIGINT."""
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path / "none"))
    interrupt, end = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(RunError, match="scene_sources failed"):
            demo()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, end)


def test_demo_always_plans_its_fixed_scenes(dagster, monkeypatch):
    """Its documented figures use 16 apartments for training, 12 for promotion and 16 for the test."""
    planned = []

    def known(flow, plan=None):
        planned.append(plan)
        raise RunError("enough")

    monkeypatch.setattr("navi_pipeline.jobs.Flow.materialize_scenes", known)
    with pytest.raises(RunError, match="enough"):
        demo()
    assert planned == [{"family": "apartment", "train": 16, "validation": 12, "test": 16}]


def test_missing_dagster_yaml_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with pytest.raises(RunError, match=r"no dagster\.yaml"):
        dagster_home()


def test_commands_report_sections_missing_in_an_older_dagster_home(dagster, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("navi_pipeline.jobs.Flow.materialize_scenes", lambda flow, plan: 1 / 0)
    monkeypatch.setattr("navi_pipeline.jobs.Flow.materialize_everything", lambda flow: 1 / 0)
    ours = ROOT / "dagster_home" / "dagster.yaml"
    old = {name: value for name, value in read_config_file(ours).items() if name != "run_launcher"}
    appended = ours.read_text() + (ours.parent / "ray.yaml").read_text()
    reported = f"{tmp_path / 'dagster.yaml'} lacks run_launcher; copy that from {ours}"
    for settings in (write_yaml(old), appended):
        (tmp_path / "dagster.yaml").write_text(settings)
        for command in (demo, materialize):
            with pytest.raises(ZeroDivisionError):
                command()
            assert (reported in capsys.readouterr().err) == (settings is not appended)


def test_dagster_home_defaults_to_the_checkout(monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert dagster_home() == ROOT / "dagster_home"


def test_dagster_home_is_in_the_navi_home_for_a_read_only_checkout(tmp_path, monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "navi"))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: ROOT not in Path(path).parents and access(path, mode))
    assert dagster_home() == tmp_path / "navi" / "dagster"
    assert (dagster_home() / "dagster.yaml").read_bytes() == (ROOT / "dagster_home" / "dagster.yaml").read_bytes()
    monkeypatch.setenv("DAGSTER_HOME", str(ROOT / "dagster_home"))
    with pytest.raises(RunError, match="cannot be written; unset DAGSTER_HOME"):
        dagster_home()


DEMO_ASSETS = (
    "scene_sources", "compiled_scene", "scene_quality", "corpus", "ppo_policy", "policy_evaluation", "promoted_model",
    "baseline_evaluation", "leaderboard", "warehouse",
)  # fmt: skip


def assert_the_story_is_green(instance, seed):
    """At most six runs of known jobs, every asset of the demo made, every check passed."""
    runs = instance.get_runs()
    assert {run.job_name for run in runs} == {"sources_job", "corpus_job", "main_job", "summary_job"} and len(runs) <= 6
    assert all(run.is_success and run.tags[".dagster/repository"] == "__repository__@navi" for run in runs)
    made = {name: instance.get_materialized_partitions(dg.AssetKey(name)) for name in DEMO_ASSETS}
    assert all(instance.get_latest_materialization_event(dg.AssetKey(name)) for name in DEMO_ASSETS)
    assert made["ppo_policy"] == made["promoted_model"] == {f"demo|{seed}"}
    assert made["compiled_scene"] == set(instance.get_dynamic_partitions("scene")) and len(made["compiled_scene"]) == 44
    checked = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    events = [event for run in runs for event in instance.all_logs(run.run_id, of_type=checked)]
    outcomes = [event.dagster_event.asset_check_evaluation_data for event in events]
    assert len(outcomes) > 50 and all(outcome.passed for outcome in outcomes), outcomes


def assert_the_picture_is_drawn_anew(file):
    """The README's picture is what its script draws of the demo's champion; text may be placed otherwise."""
    runpy.run_path(str(ROOT / "docs" / "img" / "flights.py"))["draw"](file)
    drawn, kept = (np.asarray(Image.open(one).convert("RGB"), int) for one in (file, ROOT / "docs/img/flights.png"))
    assert drawn.shape == kept.shape and (abs(drawn - kept).max(axis=2) > 32).mean() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_demo_policy_beats_both_pilots_on_unseen_scenes(seed, dagster, capsys, tmp_path):
    """The figures of the README's demo, for each of its three seeds."""
    demo(seed=seed, as_json=True)
    document = json.loads(capsys.readouterr().out)
    comparisons = document["test"]["comparisons"]
    assert comparisons["random"]["c_vis_auc"]["low"] > 0
    assert comparisons["forward-plus"]["c_vis_auc"]["low"] > 0
    assert comparisons["random"]["collisions_per_minute"]["difference"] < 0
    assert document["failed_gates"] == []
    if seed == 0:
        assert_the_picture_is_drawn_anew(tmp_path / "flights.png")
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        assert_the_story_is_green(instance, seed)


def test_ui_keeps_the_home_of_the_folder_where_it_was_started(dagster, tmp_path, monkeypatch):
    """It starts Dagster in the folder of the definitions."""
    started = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAVI_HOME", "")
    monkeypatch.setattr(
        os, "execv", lambda *_: started.append((os.environ["NAVI_HOME"], signal.getsignal(signal.SIGINT)))
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ui(port=3000)
    finally:
        signal.signal(signal.SIGINT, before)
        os.chdir(tmp_path)
    assert started == [(str(tmp_path / ".navi"), signal.SIG_DFL)]
