"""Nights as Dagster runs: locks, names, summaries and failed stages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from navi_core.errors import RunError
from navi_core.machine.file_lock import hold_lock
from navi_core.record import navi_home
from navi_pipeline.definitions import defs
from navi_pipeline.defs.automation import nights
from navi_pipeline.lib.nightly import stages
from navi_pipeline.lib.nightly.night import Gate, Night, night_lock, night_name, read_night
from navi_pipeline.lib.nightly.stages import run_night, summary_paths, write_summary
from navi_pipeline.lib.orchestration import record_failure
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig

STAGES = ("preflight", "training", "resume_proof", "evaluation", "benchmarks", "promotion")
TOLD = {
    "preflight": {"start": "none"},
    "training": {"run_id": None, "steps": 4096, "settings": {}},
    "promotion": {"version": "v002", "promoted": False, "reason": "not shown to be better", "champion": "v001"},
}


class Works:
    """Stages of a night that do nothing; one of them may fail its gate or raise."""

    def __init__(self):
        self.done, self.not_holding, self.breaks, self.gates = [], None, None, {}

    def __call__(self, name):
        def work(night):
            self.done.append(name)
            if self.breaks == name:
                raise ZeroDivisionError("a fault of ours")
            gates = [Gate(f"gate of {name}", True, self.not_holding != name, "figures")]
            return [*gates, *self.gates.get(name, [])], TOLD.get(name, {})

        return work


@pytest.fixture
def works(monkeypatch):
    made = Works()
    for module in (stages, nights):
        monkeypatch.setattr(module, "stages_of", lambda config: {name: made(name) for name in STAGES})
    return made


@pytest.fixture
def instance(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def training_night():
    return defs().resolve_job_def("nightly_training")


def execute(instance, **how):
    with dg.execute_job(dg.reconstructable(training_night), instance=instance, **how) as result:
        return result


def launch(instance, name="tonight"):
    instance.add_dynamic_partitions("night", [name])
    ops = {"night_preflight": {"config": {"minutes": 1.0}}}
    run_config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}, "ops": ops}
    return execute(instance, run_config=run_config, tags={"dagster/partition": name})


def again(instance, parent):
    """Re-execute a run from failure with its partition, as the button in the UI does."""
    options = dg.ReexecutionOptions.from_failure(parent.run_id, instance)
    tags = {"dagster/partition": parent.dagster_run.tags["dagster/partition"]}
    return execute(instance, reexecution_options=options, tags=tags)


def made(instance):
    """Return the assets of the night `tonight` that have a materialization."""
    keys = {key.to_user_string(): instance.get_materialized_partitions(key) for key in instance.get_asset_keys()}
    return {name for name, partitions in keys.items() if "tonight" in partitions}


def failed_steps(result):
    return [event.step_key for event in result.all_events if event.is_step_failure]


def test_manual_night_name_has_a_time_of_day():
    name = night_name(NightlyConfig())
    date, _, rest = name.partition("-training")
    assert rest == "" and len(date) == len("2026-03-04-153012") and night_name(NightlyConfig(train=False)) != name
    assert night_name(NightlyConfig(), "friday") == "friday"


def test_locked_night_is_refused(works):
    with hold_lock(night_lock("n"), "night n"), pytest.raises(RunError, match=rf"n is in use by process {os.getpid()}"):
        run_night(NightlyConfig(), "n", report=lambda line: None)
    assert run_night(NightlyConfig(), "n", report=lambda line: None)[0].verdict == "passed"


def test_lock_of_a_killed_night_is_released(tmp_path):
    code = (
        "import os, signal\nfrom navi_core.machine.file_lock import hold_lock\n"
        "from navi_pipeline.lib.nightly.night import night_lock\n"
        "with hold_lock(night_lock('n'), 'night n'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode < 0
    with hold_lock(night_lock("n"), "night n"):
        pass


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault of ours"), KeyboardInterrupt()])
def test_night_that_raises_writes_its_summary(works, monkeypatch, error):
    def breaks(night):
        raise error

    monkeypatch.setattr(stages, "stages_of", lambda config: {"preflight": works("preflight"), "training": breaks})
    with pytest.raises(type(error)):
        run_night(NightlyConfig(), "n", report=lambda line: None)
    text = summary_paths("n")[0].read_text()
    assert text.startswith("# Night n: failed") and f"the run ends: {type(error).__name__}" in text
    monkeypatch.setattr(stages, "stages_of", lambda config: {"preflight": works("preflight"), "training": works("t")})
    assert run_night(NightlyConfig(), "n", report=lambda line: None)[0].verdict == "passed"


def test_finished_night_is_unchanged_by_a_later_failed_run(works):
    run_night(NightlyConfig(), "n", report=lambda line: None)
    before, document = summary_paths("n")[0].read_text(), read_night("n")
    record_failure("r", "nightly_training", "night n was begun with other settings", [], night="n")
    assert summary_paths("n")[0].read_text() == before and read_night("n") == document


def test_refused_run_does_not_mark_a_running_night_as_failed():
    night = Night(NightlyConfig(), "n", report=lambda line: None)
    night.run("preflight", lambda night: ([], TOLD["preflight"]))
    with hold_lock(night_lock("n"), "night n"):
        record_failure("r", "nightly_training", "night n is in use", [], night="n")
    assert not summary_paths("n")[0].exists()
    record_failure("r", "nightly_training", "the worker was lost", [], night="n")
    assert "the worker was lost" in summary_paths("n")[0].read_text()


@pytest.mark.slow
def test_run_is_tagged_with_its_night(works, instance):
    result = launch(instance)
    assert result.success and instance.get_run_by_id(result.run_id).tags["night"] == "tonight"
    with hold_lock(night_lock("tonight"), "night tonight"):
        refused = launch(instance)
    assert failed_steps(refused) == ["night_preflight"]
    assert "night" not in instance.get_run_by_id(refused.run_id).tags


@pytest.mark.slow
def test_failed_gate_fails_its_stage_and_writes_the_summary(works, instance):
    works.not_holding = "training"
    result = launch(instance)
    assert failed_steps(result) == ["night_training"] and works.done == ["preflight", "training"]
    text = summary_paths("tonight")[0].read_text()
    assert "Night tonight: failed" in text and "| promotion | skipped |" in text
    failure = next(event for event in result.all_events if event.is_step_failure).step_failure_data
    assert "gate of training: figures" in failure.user_failure_data.description
    assert failure.user_failure_data.metadata["verdict"].value == "failed"
    assert made(instance) == {"night_preflight"}, "a stage whose hard gate fails is not materialized"


@pytest.mark.slow
def test_reexecution_from_failure_repeats_the_failed_stage(works, instance):
    works.not_holding = "training"
    parent = launch(instance)
    works.not_holding, works.done = None, []
    result = again(instance, parent)
    assert result.success and works.done == list(STAGES[1:])
    assert [event.step_key for event in result.all_events if event.is_step_success][-1] == "night_summary"
    assert "Night tonight: passed" in summary_paths("tonight")[0].read_text()


@pytest.mark.slow
def test_stage_that_raises_writes_the_summary_and_is_repeated(works, instance):
    works.breaks = "evaluation"
    parent = launch(instance)
    assert failed_steps(parent) == ["night_evaluation"]
    assert "ZeroDivisionError: a fault of ours" in summary_paths("tonight")[0].read_text()
    works.breaks, works.done = None, []
    assert again(instance, parent).success and works.done == ["evaluation", "benchmarks", "promotion"]


@pytest.mark.slow
def test_night_reports_renewed_assets_to_dagster(works, instance, monkeypatch):
    monkeypatch.setattr("navi_pipeline.defs.evaluation.ranking", lambda: [])
    result = launch(instance)
    renewed = {e.materialization.asset_key.to_user_string(): e.materialization
               for e in result.all_events if e.is_step_materialization}  # fmt: skip
    stages = {f"night_{stage}" for stage in (*STAGES, "summary")}
    assert set(renewed) == {"leaderboard", "promoted_model", "warehouse"} | stages
    assert {renewed[stage].partition for stage in stages} == {"tonight"} and made(instance) == stages
    assert renewed["promoted_model"].partition == "quick|0"
    assert renewed["promoted_model"].metadata["challenger"].value == "v002"
    assert renewed["warehouse"].metadata["rows"].value > 0 and renewed["warehouse"].metadata["night"].value == "tonight"
    assert all(one.tags["dagster/data_version"] for one in renewed.values())


def test_every_gate_of_a_night_is_a_check():
    folder = Path(stages.__file__).parent
    text = "".join(file.read_text() for file in folder.glob("*.py"))
    named = {name.replace(" ", "_") for name in re.findall(r'(?:Gate|_answer)\(\s*"([^"{]+)"', text)}
    # Of a night that broke down.
    assert named - {"the_run_ends"} == {check for checks in nights._CHECKS.values() for check in checks}


def test_gates_are_checks_of_their_stage_and_hard_ones_block(works, instance):
    works.gates["resume_proof"] = [Gate("resume +256", True, True, "a"), Gate("resume +512", True, False, "b")]
    works.gates["training"] = [Gate("speed", False, False, "slow")]
    found = {check.check_name: check for check in launch(instance).get_asset_check_evaluations()}
    assert {name for name, check in found.items() if not check.passed} == {"speed", "resume"}
    assert not found["speed"].blocking and found["speed"].severity == dg.AssetCheckSeverity.WARN
    assert found["resume"].blocking and found["resume"].severity == dg.AssetCheckSeverity.ERROR
    assert found["resume"].description == "a; b" and found["resume"].partition == "tonight"
    rows = Warehouse().query("from checks where not passed order by check_name")
    assert rows["check_name"].tolist() == ["resume", "speed"] and set(rows["partition"]) == {"tonight"}
    assert works.done == ["preflight", "training", "resume_proof"]


@pytest.mark.parametrize(("champion", "reported"), [(None, "there is no champion yet"), ("v001", "the champion stays")])
def test_night_event_reports_an_existing_or_missing_champion(champion, reported):
    night = Night(NightlyConfig(), "n", report=lambda line: None)
    decided = {"version": "v002", "promoted": False, "reason": "", "champion": champion}
    night.run("promotion", lambda night: ([], decided))
    write_summary(night)
    events = Warehouse().query("select detail from events where event = 'night'")["detail"].tolist()
    assert events == [f"passed: {reported}"] and (navi_home() / "reports").exists()
