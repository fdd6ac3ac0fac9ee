"""Nights: gates, resuming, monitor, summary; and a whole small night (slow)."""

import json
import shlex
import time
from contextlib import nullcontext

import dagster as dg
import pytest
from typer.testing import CliRunner

from navi_core.errors import ConfigError, NonFiniteError, RecordError, RunError
from navi_core.learn.estimators.noise import scheduled
from navi_core.presets import preset_names
from navi_core.record import MetricLog, navi_home, outbox_path
from navi_pipeline.definitions import defs
from navi_pipeline.lib.nightly.night import Gate, Night, nightly_config, preset_settings, read_night
from navi_pipeline.lib.nightly.preflight import preflight
from navi_pipeline.lib.nightly.stages import write_summary
from navi_pipeline.lib.nightly.training import night_settings
from navi_pipeline.lib.records import BenchmarkLog, write_document
from navi_pipeline.lib.training.run_curve import Monitor
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig


def holds(name="g", hard=True, passed=True):
    return lambda night: ([Gate(name, hard, passed, "figures")], {"seen": 1, "start": "none"})


def night(name="n", **settings):
    return Night(NightlyConfig(**settings), name, report=lambda line: None)


def test_hard_gate_skips_later_stages_and_soft_gate_warns():
    tonight = night()
    assert tonight.run("a", holds(hard=False, passed=False)).status == "warned" and tonight.verdict == "warned"
    assert tonight.run("b", holds(passed=False)).status == "failed"
    assert tonight.run("c", holds()).status == "skipped" and tonight.verdict == "failed"


def test_navi_error_fails_the_gate_and_other_errors_are_raised():
    def breaks(error):
        def work(night):
            raise error

        return work

    tonight = night()
    with pytest.raises(ZeroDivisionError):
        tonight.run("a", breaks(ZeroDivisionError()))
    assert "a" not in tonight.stages
    stage = tonight.run("a", breaks(NonFiniteError("loss", "loss is NaN")))
    assert stage.status == "failed" and stage.gates[0].detail == "loss is NaN"


def test_resumed_night_skips_the_stages_that_passed():
    first = night()
    first.run("a", holds())
    first.run("b", holds(passed=False))
    calls = []

    def counted(night):
        calls.append(1)
        return [], {}

    again = night()
    assert again.run("a", counted).data["seen"] == 1 and not calls
    assert again.run("b", counted).status == "passed" and calls == [1]
    assert [row["name"] for row in read_night("n")["stages"]] == ["a", "b"]
    with pytest.raises(RunError, match="other settings: go on with --set seed=0, or give it another --name"):
        night(seed=5)
    with pytest.raises(RunError, match="cannot name a file"):
        night("../etc")


def test_summary_records_events_and_a_self_contained_page():
    tonight = night()
    tonight.run("preflight", holds("disk <b>", hard=False, passed=False))
    markdown, page = write_summary(tonight)
    assert markdown.read_text().startswith("# Night n: passed with warnings")
    html = page.read_text()
    assert "disk &lt;b&gt;" in html and "http" not in html.replace("http-equiv", "")
    rows = Warehouse().query("select event, detail from events order by event")
    assert rows["event"].tolist() == ["night", "night_preflight"] and rows["detail"][0].startswith("warned")


def test_summary_records_the_night_as_a_row():
    tonight = night(minutes=7)
    stored = {"start": "v003", "hardware": "the machine of the evening", "revision": "abc"}
    tonight.run("preflight", lambda _: ([Gate("disk", False, True, "9 GiB")], stored))
    tonight.run("training", lambda _: ([], {"version": "v004", "steps": 5, "steps_per_second": 2.5}))
    markdown, _ = write_summary(tonight)
    assert "on the machine of the evening, code abc." in markdown.read_text()
    (row,) = Warehouse().query("from nights").to_dict("records")
    assert (row["night"], row["verdict"], row["start_version"], row["version"]) == ("n", "passed", "v003", "v004")
    assert json.loads(row["settings"])["minutes"] == 7 and json.loads(row["gates"])[0]["figures"] == "9 GiB"
    assert json.loads(row["figures"])["steps_per_second"] == 2.5 and row["host"] and row["user"]


def test_night_of_an_older_navi_resumes_with_new_settings():
    tonight = night("upgraded", seed=3)
    tonight.run("preflight", holds())
    file = next((navi_home() / "pipeline" / "nights").glob("upgraded.json"))
    document = json.loads(file.read_text())
    del document["config"]["compact_segments"]
    file.write_text(json.dumps(document | {"config_hash": "that of another Navi"}))
    assert night("upgraded", seed=3, compact_segments=7).stages["preflight"].status == "passed"
    # A setting whose default changed is suggested as an option.
    with pytest.raises(RunError) as caught:
        night("upgraded", seed=4, profile="a b")
    options = shlex.split(str(caught.value).partition("go on with ")[2].partition(", or")[0])
    config = nightly_config(assignments=["seed=4", "profile=a b", *options[1::2]])
    assert Night(config, "upgraded", report=lambda line: None).stages["preflight"].status == "passed"
    file.write_text(json.dumps(document | {"config": {"warp": 1}}))
    with pytest.raises(RunError, match="no key 'warp'"):
        night("upgraded")


@pytest.mark.parametrize("train", [True, False])
def test_unproven_night_of_an_earlier_navi_is_refused(train):
    """Its start version and training settings are not stored; one that passed its proof needs neither."""
    stages = [("preflight", {"start": "none"}), ("training", {"steps": 5, "settings": {}})]
    for stage, data in stages:
        before = night(f"old_{stage}", train=train)
        for name, kept in stages[: stages.index((stage, data))]:
            before.run(name, lambda _, kept=kept: ([], kept))
        before.run(stage, lambda _: ([], {"steps": 5}))
        with (
            pytest.raises(RunError, match="begun by an earlier Navi; give it another --name")
            if train
            else nullcontext()
        ):
            night(f"old_{stage}", train=train)
        before.run("resume_proof", holds())
        assert "resume_proof" in night(f"old_{stage}", train=train).stages
    document = read_night("old_training")
    del document["config"]
    write_document(navi_home() / "pipeline" / "nights" / "bare.json", document)
    for config in (None, NightlyConfig(train=train)):
        with pytest.raises(RunError, match="night bare was begun by an earlier Navi"):
            Night(config, "bare", report=lambda line: None)


@pytest.mark.slow
def test_summary_compacts_many_segments_and_logs_a_failure(monkeypatch, caplog):
    tonight = night("a", compact_segments=1)
    tonight.run("preflight", holds())
    write_summary(tonight)
    assert not list(Warehouse().done.iterdir()) and len(Warehouse().query("select * from events")) == 2
    never = night("b", compact_segments=None)
    never.run("preflight", holds())
    write_summary(never)
    assert list(Warehouse().done.iterdir())
    monkeypatch.setattr(Warehouse, "compact", lambda self: (_ for _ in ()).throw(RecordError("no room")))
    write_summary(night("c", compact_segments=0))
    assert "was not compacted: no room" in caplog.text


def test_nightly_config_layers_defaults_file_and_assignments(tmp_path, monkeypatch):
    assert nightly_config() == NightlyConfig()
    small = nightly_config(minutes=3, assignments=["eval_steps=7"])
    assert (small.profile, small.minutes, small.eval_steps) == ("quick", 3.0, 7)
    assert nightly_config(minutes=5).proof_steps == (256,) and nightly_config(minutes=6).proof_steps == (256, 512)
    rollouts = [preset_settings(nightly_config(minutes=minutes)).ppo.rollout for minutes in (5, 6)]
    assert rollouts == [32, 256], "an update of a short night lasts seconds"
    (tmp_path / "night.yaml").write_text("profile: demo\nminutes: 90\n")
    monkeypatch.setenv("NAVI_NIGHTLY", str(tmp_path / "night.yaml"))
    assert nightly_config().profile == "demo" and nightly_config(train=False).train is False
    with pytest.raises(ConfigError, match=r"profle.*did you mean 'profile'"):
        nightly_config(assignments=["profle=x"])


def test_monitor_ends_training_by_time_step_or_stall():
    reported = []

    def monitor(run_id, **settings):
        return Monitor(run_id, report=reported.append, **({"seconds": 60.0, "stall_seconds": 60.0} | settings))

    def train(run_id, step, speed):
        with MetricLog(outbox_path(), run_id, {}) as log:
            log.scalars(step, {"reward_ema": 0.1, "sps": speed})

    quiet = monitor("nightly-a", seconds=0.0)
    assert not quiet()  # the time counts from the first update
    train("nightly-a", 1024, 1250.0)
    quiet.read()
    time.sleep(0.01)
    assert quiet() and quiet.step == 1024 and quiet.speeds == [1250.0]
    stepping = monitor("nightly-a", until_step=2000)
    assert stepping.step is None and not stepping()
    train("nightly-a", 2048, 5.0)
    assert stepping() and not stepping.stalled
    stuck = monitor("nightly-b", stall_seconds=0.0, interval=0.0)
    time.sleep(0.01)
    assert stuck() and stuck.stalled and any("no update yet" in line for line in reported)


def test_preflight_refuses_a_full_disk_and_an_empty_registry():
    tonight = night(free_disk_gib=1e6, train=False)
    gates = {gate.name: gate for gate in preflight(tonight)[0]}
    assert not gates["free disk"].passed and gates["free disk"].hard
    assert not gates["champion"].passed and "champion" in gates["champion"].detail
    assert gates["warehouse"].passed and "corpus" not in gates


SMALL = ["train_scenes=1", "validation_scenes=1", "test_scenes=2", "eval_steps=20", "bench_steps=2",
         "bench_scenes=[apartment]", "training_share=0.1", "proof_steps=[256,512]"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_small_night_trains_resumes_measures_and_reports(monkeypatch):
    """Through Dagster: a training night, then a slow validation night, whose drift is flagged."""
    for name, value in (("ACTORS", "4"), ("PPO__ROLLOUT", "32"), ("THREADS", "1")):
        monkeypatch.setenv(f"NAVI_{name}", value)
    bounds = ["stall_minutes=7", "floor_steps_per_second=1e9", "floor_hardware=nobody's"]
    config = {"minutes": 1.0, "assignments": [*SMALL, *bounds]}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("night", ["tonight"])
        result = (
            defs()
            .resolve_job_def("nightly_training")
            .execute_in_process(
                instance=instance,
                partition_key="tonight",
                run_config={"ops": {"night_preflight": {"config": config}}},
                raise_on_error=False,
            )
        )
    assert result.success, [e.message for e in result.all_events if e.is_step_failure]
    stages = {row["name"]: row for row in read_night("tonight")["stages"]}
    assert list(stages) == ["preflight", "training", "resume_proof", "evaluation", "benchmarks", "promotion"]
    (viewer,) = (gate for gate in stages["training"]["gates"] if gate["name"] == "viewer")
    assert viewer["passed"] and "an observation of" in viewer["detail"]
    details = {gate["name"]: (gate["passed"], gate["detail"]) for gate in stages["training"]["gates"]}
    assert details["no stall"] == (True, "an update within every 7 min")
    # A floor of other hardware: the night is too slow for it and passes.
    assert details["speed"][0] and details["speed"][1].endswith("floor 1e+09 on other hardware")
    before, after = stages["training"]["data"], stages["resume_proof"]["data"]
    assert after["steps"] >= before["steps"] + 256 + 512 and after["run_id"] == before["run_id"]
    lineage = Warehouse().query("select count(*) as n from events where event = 'night'")
    assert lineage["n"][0] == 1
    # Three earlier nights that took half the CPU time a decision: the next one drifts.
    measured = Warehouse().query("select median(value) as v from benchmarks where name = 'cpu_ms'")["v"][0]
    for number in range(3):
        with BenchmarkLog("nightly", run_id=f"night-before-{number}") as log:
            log.cell("apartment", {"cpu_ms": (measured / 2, "ms")})
    from navi_pipeline.lib.nightly.stages import benchmarks

    again = Night(nightly_config(minutes=1, assignments=SMALL), "again", report=lambda line: None)
    (gate,), data = benchmarks(again)
    assert not gate.passed and not gate.hard and "apartment" in gate.detail
    assert [row["cell"] for row in data["drift"] if row["drifts"]] == ["apartment"]


def test_nightly_command_prints_failed_gates_and_raises():
    import typer

    from navi_pipeline.cli.commands import register

    app = typer.Typer()
    register(app)
    arguments = ["pipeline", "nightly", "--minutes", "1", "--set", "free_disk_gib=1000000", "--json", "--name", "full"]
    answer = CliRunner().invoke(app, arguments)
    assert isinstance(answer.exception, RunError) and "free disk" in str(answer.exception)
    reported = json.loads(answer.stdout)
    assert reported["verdict"] == "failed" and reported["stages"]["training"] == "skipped"
    assert reported["failed"] == ["free disk"]


@pytest.mark.parametrize("profile", preset_names())
def test_night_keeps_profile_schedules_without_a_step_limit(monkeypatch, profile):
    monkeypatch.setattr("navi_pipeline.lib.nightly.training.scene_paths", lambda split: [])
    tonight = night(profile=profile)
    settings, usual = night_settings(tonight), preset_settings(tonight.config)
    assert settings.total_steps is None
    for name in usual.ppo.schedules:
        at = [scheduled(settings, name, steps) for steps in (0, 5000, usual.total_steps, 10**9)]
        assert at == [scheduled(usual, name, steps) for steps in (0, 5000, usual.total_steps, 10**9)]
    if not usual.ppo.schedules:
        assert settings == usual.model_copy(update={"total_steps": None}), "equal settings let an earlier run resume"
