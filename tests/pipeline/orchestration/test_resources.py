"""Resources of the graph: two homes in one process."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from navi_core.machine import thread_variables, using_variables, variable
from navi_core.record import navi_home
from navi_pipeline.definitions import defs
from navi_pipeline.defs.resources import resources_of
from navi_pipeline.lib.orchestration import worked_as
from navi_pipeline.lib.training.supervised import run_supervised
from navi_pipeline.lib.warehouse.warehouse import Warehouse

SCENES = {"scene_sources": {"config": {"family": "maze", "train": 1, "validation": 0, "test": 1}}}
JOBS = {"sources_job": SCENES, "corpus_job": {"compiled_scene": {"config": {"resolution": 64}}}, "recordings_job": {}}


def materialize(home):
    """Make scenes, corpus and warehouse in a home; return the Dagster runs."""
    graph = dg.Definitions(
        assets=defs().assets, asset_checks=defs().asset_checks, jobs=defs().jobs, resources=resources_of(str(home))
    )
    runs = []
    with dg.DagsterInstance.ephemeral() as instance:
        for job, ops in JOBS.items():
            config = {"ops": ops, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            done = graph.resolve_job_def(job).execute_in_process(instance=instance, run_config=config)
            assert done.success
            runs.append(done.run_id)
    return runs


def contents(home):
    """Return a home's scenes, and the Dagster runs that its warehouse names."""
    store = Warehouse(home)
    store.ingest()
    found = store.query("select distinct dagster_run_id as run from checks")["run"]
    return sorted(path.name for path in (home / "scenes").glob("*.gmdag")), set(found)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [False, True], ids=["in turn", "in threads"])
def test_two_homes_in_one_process_do_not_mix(tmp_path, threads):
    before, outside = dict(os.environ), navi_home()
    homes, runs = [tmp_path / "one", tmp_path / "two"], {}
    work = [threading.Thread(target=lambda home=home: runs.update({home: materialize(home)})) for home in homes]
    for thread in work:
        thread.start()
        if not threads:
            thread.join()
    for thread in work:
        thread.join()
    (scenes, first), (same, second) = (contents(home) for home in homes)
    assert len(scenes) == 2 and scenes == same
    assert first and first <= set(runs[homes[0]]) and second and second <= set(runs[homes[1]])
    assert dict(os.environ) == before and navi_home() == outside and not (outside / "pipeline").exists()


def test_every_asset_and_check_takes_the_home():
    nodes = [*defs().assets, *defs().asset_checks]
    taken = [node.required_resource_keys for node in nodes if not isinstance(node, dg.AssetSpec)]
    assert all(keys & {"home", "warehouse", "registry", "trainer"} for keys in taken)


def test_a_child_process_gets_the_home_and_the_trainer_of_its_run(tmp_path):
    code = "import os\nprint(os.environ['NAVI_HOME'], os.environ['NAVI_TRAINER'], os.environ['NAVI_DAGSTER_RUN_ID'])"
    seen = []

    @dg.op(required_resource_keys={"trainer"})
    def work(context):
        with worked_as("work"):
            seen.append(run_supervised([sys.executable, "-c", code], on_line=print)[1].split())

    job = dg.GraphDefinition("job", node_defs=[work]).to_job(resource_defs=resources_of())
    chosen = {"home": {"config": {"path": str(tmp_path)}}, "trainer": {"config": {"where": "ray"}}}
    run = job.execute_in_process(run_config={"resources": chosen})
    assert seen == [[str(tmp_path), "ray", run.run_id]]
    assert variable("NAVI_TRAINER") is None and os.environ.get("NAVI_DAGSTER_RUN_ID") is None


def test_variables_hold_inside_their_block_and_thread_alone(monkeypatch):
    monkeypatch.setenv("NAVI_HOME", "/outer")
    seen = []
    with using_variables(NAVI_HOME="/inner"), using_variables(NAVI_HOME=None):
        thread = threading.Thread(target=lambda: seen.append(variable("NAVI_HOME")))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1, initializer=thread_variables()) as pool:
            seen.append(pool.submit(variable, "NAVI_HOME").result())
        assert (variable("NAVI_HOME"), seen) == ("/inner", ["/outer", "/inner"])
    assert variable("NAVI_HOME") == "/outer"
