"""Schedules and sensors, tick by tick on an ephemeral instance."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.record import RunDirectory, navi_home
from navi_core.scenes import compiler
from navi_core.scenes.compiler import output_path
from navi_pipeline.definitions import defs
from navi_pipeline.defs.automation import nights
from navi_pipeline.defs.automation.sensors import new_demonstrations, new_scenes, run_failures, stale_runs
from navi_pipeline.defs.corpus import DEFAULT_SCENES, CompileSettings, scene_sources
from navi_pipeline.defs.partitions import register_policy
from navi_pipeline.defs.resources import resources_of
from navi_pipeline.lib.corpus.scenes import (
    SceneSource,
    _key,
    as_rows,
    due_scenes,
    plan_path,
    plan_settings,
    read_plan,
    write_plan,
)
from navi_pipeline.lib.nightly.night import nightly_config
from navi_pipeline.lib.orchestration import FLOW_TAG, record_failure
from navi_pipeline.lib.records import pipeline_folder, pipeline_log, write_document
from navi_pipeline.lib.training.supervised import SUPERVISOR, sweep
from navi_pipeline.lib.warehouse.warehouse import Warehouse

CONFIG = CompileSettings().compile_config()


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def stored(tmp_path):
    """An instance with a folder: a schedule gets no other one."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@pytest.fixture(scope="module")
def repository():
    return defs().get_repository_def()


def tick(sensor, instance, repository, cursor=None):
    with dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor) as context:
        return sensor.evaluate_tick(context)


def asked(data):
    return [(r.asset_selection[0].to_user_string(), r.partition_key) for r in data.run_requests]


@pytest.fixture
def clock(monkeypatch):
    """Set the current time of the schedules, in UTC."""
    return lambda hour, day=4: monkeypatch.setattr(nights, "_now", lambda: datetime(2026, 3, day, hour, 20, tzinfo=UTC))


def scheduled(instance, repository, kind, due):
    schedule = repository.get_schedule_def(f"nightly_{kind}_schedule")
    context = dg.build_schedule_context(instance=instance, repository_def=repository, scheduled_execution_time=due)
    return schedule, schedule.evaluate_tick(context)


@pytest.mark.parametrize(("kind", "hour"), [("training", 22), ("validation", 7)])
def test_schedule_requests_one_night_named_after_its_date(stored, repository, clock, kind, hour):
    clock(hour)
    schedule, tick = scheduled(stored, repository, kind, datetime(2026, 3, 4, hour, tzinfo=UTC))
    (request,) = tick.run_requests
    name = f"2026-03-04-{kind}"
    assert request.run_key == name and request.tags["night"] == name
    assert request.partition_key == name and stored.has_dynamic_partition("night", name)
    assert request.run_config["ops"]["night_preflight"]["config"] == {"train": kind == "training"}
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    assert (schedule.cron_schedule, schedule.execution_timezone) == (f"0 {hour} * * *", "UTC")


def test_missed_night_is_skipped(instance, repository, clock):
    clock(9, day=5)
    tick = scheduled(instance, repository, "training", datetime(2026, 3, 4, 22, tzinfo=UTC))[1]
    assert not tick.run_requests and tick.skip_message.startswith("due at 2026-03-04 22:00 UTC, 11.3 h ago")


def test_schedule_hours_follow_the_night_settings(stored, repository, clock, tmp_path, monkeypatch):
    file = tmp_path / "night.yaml"
    file.write_text("training_hour: 1\ntime_zone: Europe/Zurich\n")
    monkeypatch.setenv("NAVI_NIGHTLY", str(file))
    schedule = nights._schedule("training")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 1 * * *", "Europe/Zurich")
    # One o'clock there is still the day before in UTC: the name is that of the zone.
    context = dg.build_schedule_context(
        instance=stored,
        repository_def=repository,
        scheduled_execution_time=datetime(2026, 3, 4, 1, tzinfo=ZoneInfo("Europe/Zurich")),
    )
    clock(0)
    (request,) = schedule.evaluate_tick(context).run_requests
    assert request.run_key == "2026-03-04-training"
    file.write_text("time_zone: Mars/Olympus\n")
    assert nights._schedule("validation").cron_schedule == "0 7 * * *"
    file.write_text("validation_hour: 6\n")
    assert nights._schedule("validation").cron_schedule == "0 6 * * *"
    file.write_text("time_zone: Mars/Olympus\n")
    with pytest.raises(ConfigError, match="Mars/Olympus"):
        nightly_config()


def planned(name, digit="f", split="external"):
    return SceneSource(name, split, None, None, f"/meshes/{name}.obj", digit * 64)


def plan(*sources):
    write_document(plan_path(), {"sources": as_rows(list(sources))})


def compiled(source, instance, config=CONFIG, name=None):
    """Write the outputs of a compiled scene (file, sidecar, card, materialization); return the file."""
    gmdag = output_path(name or source.name, source.source_hash, navi_home() / "scenes", config)
    gmdag.parent.mkdir(parents=True, exist_ok=True)
    gmdag.touch()
    gmdag.with_suffix(".json").write_text(json.dumps(compiler._stamp(gmdag, source.source_hash, config)))
    card = {"source_hash": source.source_hash, "split": source.split, "gmdag": str(gmdag)}
    card |= {"content_hash": "c", "compile_hash": "h", "key": _key("c", "h", source.split)}
    write_document(pipeline_folder() / "compiled" / f"{source.name}.json", card)
    instance.report_runless_asset_event(dg.AssetMaterialization("compiled_scene", partition=source.name))
    return gmdag


def test_no_scenes_are_watched_where_no_folder_is_named(instance, repository):
    assert "no folder is named" in tick(new_scenes, instance, repository).skip_message


@pytest.mark.parametrize(
    ("sensor", "folder", "name", "asset"),
    [
        (new_scenes, "NAVI_SCENES", "house.obj", "scene_sources"),
        (new_demonstrations, "NAVI_DEMOS", "flight.npz", "recorded_demonstrations"),
    ],
    ids=["scenes", "demonstrations"],
)
def test_files_are_requested_when_they_come_change_or_go(
    instance, repository, tmp_path, monkeypatch, sensor, folder, name, asset
):
    monkeypatch.setenv(folder, str(tmp_path))
    (tmp_path / "notes.txt").write_text("none of the files")
    assert "no new file" in tick(sensor, instance, repository).skip_message
    keys, cursor = [], None
    for text in ("a", "b", "a", None):
        if text is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(text)
            os.utime(tmp_path / name, (0, ord(text)))
        answer = tick(sensor, instance, repository, cursor)
        assert asked(answer) == [(asset, None)]
        keys += [request.run_key for request in answer.run_requests]
        cursor = answer.cursor
        assert not tick(sensor, instance, repository, cursor).run_requests
    assert len(set(keys)) == 4
    # A cursor of an earlier version is read: nothing has changed since.
    (tmp_path / name).write_text("a")
    signature = tick(sensor, instance, repository, cursor).cursor
    older = json.dumps({"signature": signature, "stage": "done", "change": 1})
    assert not tick(sensor, instance, repository, older).run_requests


@pytest.mark.slow
def test_new_mesh_plan_keeps_the_generated_scene_counts(instance, repository, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path))
    (tmp_path / "house.obj").write_text("v 0 0 0\n")
    (request,) = tick(new_scenes, instance, repository).run_requests
    numbers = {"family": "maze", "train": 2, "validation": 0, "test": 0}
    for plan in (DEFAULT_SCENES, numbers):
        assert dg.materialize(
            [scene_sources], instance=instance, resources=resources_of(), run_config=request.run_config
        ).success
        assert plan_settings() == plan and "house" in read_plan()
        write_plan([], "maze", numbers)


class Ticks:
    """Ticks of the sensor renewals."""

    def __init__(self, instance):
        self.instance, self.cursor, self.defs = instance, None, defs()

    def __call__(self, *made, by=None):
        """Report materializations, of assets or (asset, partition), and return what the next tick requests."""
        for asset in made:
            name, partition = (asset, None) if isinstance(asset, str) else asset
            event = dg.AssetMaterialization(name, partition=partition)
            if by is None:
                self.instance.report_runless_asset_event(event)
            else:
                command_makes(event, self.instance, by)
        done = dg.evaluate_automation_conditions(defs=self.defs, instance=self.instance, cursor=self.cursor)
        self.cursor = done.cursor
        found = {result.key.to_user_string(): done.get_requested_partitions(result.key) for result in done.results}
        return {name: partitions for name, partitions in found.items() if partitions}


def command_makes(event, instance, tags):
    @dg.op
    def making(context):
        context.log_event(event)

    dg.GraphDefinition("command", node_defs=[making]).to_job().execute_in_process(instance=instance, tags=tags)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [True, False])
def test_renewals_compile_new_scenes_and_gather_the_corpus_once(instance, changed):
    instance.add_dynamic_partitions("scene", ["house", "old"])
    ticks = Ticks(instance)
    assert ticks() == {} and ticks("scene_sources") == {"compiled_scene": {"house", "old"}}
    tags = {"dagster/asset_partition_range_start": "house", "dagster/asset_partition_range_end": "old"}
    keys, started = {dg.AssetKey("compiled_scene")}, dg.DagsterRunStatus.STARTED
    job = ticks.defs.resolve_job_def("corpus_job")
    run = instance.create_run_for_job(job, tags=tags, asset_selection=keys, status=started)
    assert ticks() == {} and ticks() == {}, "the corpus waits"
    if changed:
        assert ticks(("compiled_scene", "house")) == {}
    instance.report_run_canceled(run)
    # Unchanged scenes report nothing; one may be gone, so the corpus is gathered all the same.
    assert ticks() == ({"scene_quality": {None}, "corpus": {None}} if changed else {"scene_quality": {None}})
    assert ticks("scene_quality") == {}
    assert ticks() == ({} if changed else {"corpus": {None}})


def test_renewals_rank_and_fold_in_what_was_evaluated(instance):
    register_policy(instance, "quick", 0)
    ticks = Ticks(instance)
    assert ticks() == {} and ticks(("policy_evaluation", "quick|0")) == {}
    assert "leaderboard" in ticks()
    ticks("leaderboard")
    assert ticks() == {"warehouse": {None}}
    assert ticks("warehouse") == {} and ticks() == {}


def test_renewals_leave_a_command_alone(instance):
    instance.add_dynamic_partitions("scene", ["house"])
    ticks = Ticks(instance)
    assert ticks() == {}
    assert ticks("scene_sources", by={FLOW_TAG: "demo"}) == {} and ticks() == {}
    assert ticks("scene_sources", by={FLOW_TAG: ""}) == {"compiled_scene": {"house"}}, "executed again, it is alone"


def test_scene_is_due_until_compiled_as_planned(instance):
    scenes = {why: planned(why) for why in ("done", "new", "gone", "changed", "renamed", "coarse")}
    plan(*scenes.values())
    files = {why: compiled(source, instance) for why, source in scenes.items() if why != "new"}
    files["gone"].unlink()
    compiled(planned("changed", "0"), instance)
    compiled(scenes["renamed"], instance, name="elsewhere")
    compiled(scenes["coarse"], instance, CONFIG.model_copy(update={"resolution": 64}))
    known = set(scenes) - {"new"}
    assert [source.name for source in due_scenes(known, CONFIG)] == ["new", "gone", "changed", "renamed", "coarse"]
    assert [source.name for source in due_scenes((), CONFIG)] == list(scenes)


def test_recordings_are_imported_once(instance, repository, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_DEMOS", str(tmp_path))
    (tmp_path / "notes.txt").write_text("no recording")
    assert "no new file" in tick(new_demonstrations, instance, repository).skip_message
    (tmp_path / "flight.npz").write_bytes(b"x")
    first = tick(new_demonstrations, instance, repository)
    assert asked(first) == [("recorded_demonstrations", None)]
    assert not tick(new_demonstrations, instance, repository, first.cursor).run_requests


def events(name):
    warehouse = Warehouse()
    warehouse.ingest()
    return warehouse.query("select * from events where event = ?", [name])


def test_failed_run_is_recorded_with_its_cause(instance):
    @dg.op
    def breaks():
        raise ValueError("the disk is full")

    @dg.job
    def broken():
        breaks()

    result = broken.execute_in_process(instance=instance, raise_on_error=False)
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=result.dagster_run,
    ).for_run_failure()
    run_failures(context)
    (row,) = events("run_failure").to_dict("records")
    assert row["run_id"] == f"dagster-{result.run_id}"
    assert row["detail"].startswith("broken: breaks") and json.loads(row["extra"])["steps"] == ["breaks"]


def test_failure_of_an_unknown_night_is_recorded():
    record_failure("r", "nightly_training", "the worker was lost", [], night="2020-01-01-training")
    assert events("run_failure")["detail"].tolist() == ["nightly_training: the worker was lost"]


def test_unlocked_run_is_marked_stopped_and_locked_run_is_kept(instance, repository, tmp_path):
    root = navi_home() / "runs"
    held = RunDirectory.open(root, asset="ppo_policy", partition="held", config=TrainConfig())
    with RunDirectory.open(root, asset="ppo_policy", partition="dead", config=TrainConfig()) as dead:
        pass
    for run in (held, dead):
        with pipeline_log(run.run_id, seed=4, config_hash="c") as log:
            log.row("runs", {"status": "running", "step": 64, "path": str(run.path), "algorithm": "ppo",
                             "config": {"actors": 4}, "reward_ema": None, "started_at": "2026-01-01T00:00:00Z",
                             "hardware": "another machine"})  # fmt: skip
    with held:
        answer = tick(stale_runs, instance, repository)
        assert "1 stale runs" in answer.skip_message
        warehouse = Warehouse()
        rows = warehouse.query("select run_id, status, step, algorithm, seed from runs order by run_id")
        assert rows.values.tolist() == [
            [dead.run_id, "stopped", 64, "ppo", 4],
            [held.run_id, "running", 64, "ppo", 4],
        ]
        whole = "select config->>'actors', year(started_at), hardware, reward_ema is null from runs"
        assert warehouse.query(whole).values.tolist() == [["4", 2026, "another machine", True]] * 2
        assert events("stale_run")["run_id"].tolist() == [dead.run_id]
        assert "0 stale runs" in tick(stale_runs, instance, repository).skip_message


@pytest.mark.parametrize("begun", ["before the sweep", "during the sweep"])
def test_run_that_ends_during_the_sweep_stays_finished(monkeypatch, begun):
    root, real = navi_home() / "runs", Warehouse.ingest
    run = RunDirectory.open(root, asset="ppo_policy", partition="quick", config=TrainConfig())

    def send(status):
        with pipeline_log(run.run_id) as log:
            log.row("runs", {"status": status, "step": 64, "path": str(run.path)})

    def ends_after_the_first_look(self):
        report = real(self)
        monkeypatch.setattr(Warehouse, "ingest", real)
        if begun == "during the sweep":
            again = RunDirectory.open(root, asset="ppo_policy", partition="quick", config=TrainConfig())
        else:
            again = run
        send("finished")
        again.close()
        return report

    send("running")
    if begun == "during the sweep":
        run.close()
    monkeypatch.setattr(Warehouse, "ingest", ends_after_the_first_look)
    assert sweep().stale == []
    warehouse = Warehouse()
    warehouse.ingest()
    assert warehouse.query("select status from runs")["status"].tolist() == ["finished"]


def test_corpus_has_a_freshness_policy(repository):
    graph = repository.asset_graph
    policies = {key.to_user_string(): graph.get(key).freshness_policy for key in graph.get_all_asset_keys()}
    assert policies["corpus"] is not None and policies["compiled_scene"] is None


def test_night_stages_that_train_or_measure_use_the_gpu_pool(repository):
    job = repository.get_job("nightly_training")
    pools = {node.name: node.definition.pool for node in job.nodes}
    heavy = {"night_training", "night_resume_proof", "night_benchmarks"}
    assert {name for name, pool in pools.items() if pool == "gpu"} == heavy
    assert not any(node.definition.retry_policy for node in job.nodes)  # it would start a terminated trainer again
    order = [node.name for node in job.nodes_in_topological_order]
    stages = ("preflight", "training", "resume_proof", "evaluation", "benchmarks", "promotion", "summary")
    assert order == [f"night_{stage}" for stage in stages]


def test_training_and_benchmark_assets_use_the_gpu_pool(repository):
    graph = repository.asset_graph
    pools = {key.to_user_string(): graph.get(key).pools for key in graph.get_all_asset_keys()}
    for name, pool in pools.items():
        ends = ("_sweep", "_policy", "_scaling", "_benchmark", "study", "ablation", "_proof")
        heavy = name.endswith(ends) or name in ("night_training", "night_benchmarks", "torture")
        assert (pool == {"gpu"}) == heavy, (name, pool)


def test_sweep_removes_partial_files_of_runs_and_shards():
    folder = navi_home() / "runs" / "r1" / "checkpoints"
    files = [folder / ".step-1.pt.7.tmp", folder / "shard-0" / ".step-1.replay.7.tmp", folder / ".step-2.pt.8.tmp"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    for file in files[:2]:
        os.utime(file, (0, 0))
    assert sweep().leftovers == 2
    assert [file.exists() for file in files] == [False, False, True]


_ORPHAN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from navi_core.machine.file_lock import acquire_lock
lock = acquire_lock(Path(sys.argv[1]), "run")
subprocess.Popen(["sleep", "600"])
signal.signal(signal.SIGTERM, lambda *_: {end})
print("ready", flush=True)
while True:
    time.sleep(60.0)
"""


@pytest.fixture
def orphan():
    """Starter of a process that holds a run's lock, has a child, and executes `end` on SIGTERM."""
    started = []

    def start(end):
        lock = navi_home() / "runs" / ".locks" / "r1.lock"
        command = [sys.executable, "-c", _ORPHAN.format(end=end), str(lock)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True,
                                        env=os.environ | {SUPERVISOR: "999999"}))  # fmt: skip
        assert started[0].stdout.readline() == "ready\n"
        return started[0]

    yield start
    with suppress(ProcessLookupError):
        os.killpg(started[0].pid, signal.SIGKILL)
    started[0].wait()


@pytest.mark.parametrize(("end", "code"), [("os.close(lock)", -signal.SIGKILL), ("os._exit(0)", 0)])
def test_sweep_kills_what_remains_of_an_orphan_without_its_lock(orphan, end, code):
    """One hangs after it has released its lock, one leaves a child in its group."""
    process = orphan(end)
    assert sweep(grace_seconds=0.5).ended == [process.pid]
    assert process.wait(timeout=30) == code
    assert process.stdout.read() == "", "its child held the output open until it was killed"


def test_sweep_spares_a_later_process_of_the_same_id(orphan, monkeypatch):
    process = orphan("os.close(lock)")
    starts = iter(["100", "200", "200"])
    monkeypatch.setattr("navi_pipeline.lib.training.supervised.process_mark", lambda pid: next(starts))
    assert sweep(grace_seconds=0.5).ended == [process.pid] and process.poll() is None


def test_sensor_watches_every_mesh_suffix():
    from navi_core.scenes.readers.mesh_file import MESH_SUFFIXES
    from navi_pipeline.defs.automation.sensors import _MESHES

    # A scene instance refers to meshes, which are watched.
    assert set(_MESHES) == set(MESH_SUFFIXES) - {".scene_instance.json"}
