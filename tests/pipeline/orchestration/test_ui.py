"""Dagster UI in a headless browser: shows the graph, materializes assets, terminates runs."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from navi_pipeline.lib.training.supervised import SUPERVISOR
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.browser import headless_browser, require_browser

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.browser


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def ui(tmp_path):
    """Address of a Dagster UI over this code location, with a Dagster and a Navi home of its own."""
    require_browser()
    home = tmp_path / "dagster_home"
    home.mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
    port = free_port()
    environment = os.environ | {"DAGSTER_HOME": str(home), "NAVI_HOME": str(tmp_path / "navi")}
    command = [str(Path(sys.executable).with_name("dg")), "dev"]
    command += ["-h", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "dev.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "dev.log").read_text()
                assert time.monotonic() < deadline, "the UI did not start within two minutes"
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
        assert "SupersessionWarning" not in (tmp_path / "dev.log").read_text()
    finally:
        # SIGTERM would take seconds; a trainer has a group of its own and ends with its worker.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def launches(response):
    return "/graphql" in response.url and "mutation Launch" in (response.request.post_data or "")


def status_of(page, ui, run_id):
    """Ask for the status of a run as the UI's own pages do."""
    query = "query Outcome($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
    answer = page.request.post(f"{ui}/graphql", data={"query": query, "variables": {"id": run_id}}, timeout=120_000)
    return answer.json()["data"]["runOrError"]["status"]


def outcome_of(page, ui, run_id):
    """Wait for the end of a run."""
    deadline = time.monotonic() + 3400
    while time.monotonic() < deadline:
        if (status := status_of(page, ui, run_id)) in ("SUCCESS", "FAILURE", "CANCELED"):
            return status
        time.sleep(1)
    return "RUNNING"


@pytest.fixture
def page(ui):
    """A page of a headless browser."""
    with headless_browser() as browser:
        yield browser.new_page(viewport={"width": 1500, "height": 1000})


def launch(page, address, button):
    """Click the button of a page that starts a run; return the run's id."""
    page.goto(address, wait_until="domcontentloaded")
    # Leaving the page before the server has answered would take the launch back.
    with page.expect_response(launches, timeout=120_000) as launched:
        page.get_by_role("button", name=re.compile(button, re.IGNORECASE)).click(timeout=120_000)
    assert "LaunchRunSuccess" in launched.value.text(), launched.value.text()
    return re.search(r'"(?:runId|id)":\s*"([0-9a-f-]{36})"', launched.value.text()).group(1)


def terminate(page, ui, run_id):
    """Terminate a started run from its page; before the start the page keeps redrawing its button."""
    page.goto(f"{ui}/runs/{run_id}", wait_until="domcontentloaded")
    button = {"name": re.compile("Terminate", re.IGNORECASE)}
    page.get_by_role("button", **button).first.click(timeout=120_000)
    page.get_by_role("dialog").get_by_role("button", **button).click(timeout=120_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_one_click_materializes_the_whole_graph(ui, page, tmp_path):
    """From an empty folder to a champion and a full warehouse, every asset on the way (minutes)."""
    from playwright.sync_api import expect

    run_id = launch(page, f"{ui}/locations/navi/jobs/whole_graph/playground", "Launch run")
    page.goto("about:blank")  # the live log page would take a core from the training
    assert outcome_of(page, ui, run_id) == "SUCCESS", (tmp_path / "dev.log").read_text()[-4000:]
    page.goto(f"{ui}/assets/promoted_model", wait_until="domcontentloaded")
    expect(page.get_by_text(re.compile(r"v\d{3} \(bc\) → v\d{3} \(rl\)")).first).to_be_visible(timeout=60_000)
    query = "{ assetNodes { assetKey { path } assetMaterializations(limit: 1) { runId } } }"
    nodes = page.request.post(f"{ui}/graphql", data={"query": query}).json()["data"]["assetNodes"]
    made = {node["assetKey"]["path"][0]: node["assetMaterializations"] for node in nodes}
    # What answers a question that somebody asks, and nights and campaigns.
    others = ("ablation", "evaluated_subject", "challenged_version", "study_proof", "torture", "night_")
    missing = [name for name in made if not made[name] and not name.startswith(others)]
    assert len(made) > 20 and not missing


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_the_demo_timeline_and_graph_are_green_and_a_run_is_executed_again(ui, page, tmp_path):
    """The demo of a terminal, seen in the UI of the same homes (minutes)."""
    from playwright.sync_api import expect

    homes = os.environ | {"DAGSTER_HOME": str(tmp_path / "dagster_home"), "NAVI_HOME": str(tmp_path / "navi")}
    navi = str(Path(sys.executable).with_name("navi"))
    done = subprocess.run([navi, "demo"], env=homes, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    page.goto(f"{ui}/overview/activity/timeline", wait_until="domcontentloaded")
    for job in ("sources_job", "corpus_job", "main_job", "summary_job"):
        expect(page.get_by_role("link", name=job).first).to_be_visible(timeout=120_000)
    query = "{ runsOrError { ... on Runs { results { runId jobName status } } } }"
    runs = asked(page, ui, query)["runsOrError"]["results"]
    assert len(runs) <= 6 and {run["status"] for run in runs} == {"SUCCESS"}
    page.goto(f"{ui}/locations/navi/asset-groups/corpus", wait_until="domcontentloaded")
    for shown in ("44 partitions", "100% filled", "1 / 1 Passed", "Materialized"):
        expect(page.get_by_text(shown).first).to_be_visible(timeout=120_000)
    assert not page.get_by_text("Never materialized").count()
    (summary,) = (run["runId"] for run in runs if run["jobName"] == "summary_job")
    again = launch(page, f"{ui}/runs/{summary}", "Re-execute all")
    assert again != summary and outcome_of(page, ui, again) == "SUCCESS", (tmp_path / "dev.log").read_text()[-4000:]


@pytest.fixture
def small_night(monkeypatch, tmp_path):
    """Settings that the code server inherits: three scenes, four drones, an update every 128 decisions."""
    for name, value in (("ACTORS", "4"), ("PPO__ROLLOUT", "32"), ("THREADS", "1")):
        monkeypatch.setenv(f"NAVI_{name}", value)
    settings = {"profile": "quick", "minutes": 30, "viewer": False}
    settings |= {f"{split}_scenes": 1 for split in ("train", "validation", "test")}
    (tmp_path / "night.yaml").write_text(json.dumps(settings))
    monkeypatch.setenv("NAVI_NIGHTLY", str(tmp_path / "night.yaml"))


NIGHT = """mutation Night($repository: RepositorySelector!, $run: ExecutionParams!) {
  addDynamicPartition(repositorySelector: $repository, partitionsDefName: "night", partitionKey: "friday") {
    __typename }
  launchRun(executionParams: $run) { __typename ... on LaunchRunSuccess { run { runId } } } }"""


def start_night(page, ui):
    """Launch a night of the new partition `friday`, as the UI's dialog does."""
    repository = {"repositoryLocationName": "navi", "repositoryName": "__repository__"}
    tags = [{"key": "dagster/partition", "value": "friday"}]
    run = {"selector": {**repository, "jobName": "nightly_training"}, "runConfigData": {}, "mode": "default",
           "executionMetadata": {"tags": tags}}  # fmt: skip
    return asked(page, ui, NIGHT, repository=repository, run=run)["launchRun"]["run"]["runId"]


def at_work(home, updates=1):
    """Return a night's trainer and its supervisor once it has learned."""
    wait_until(lambda: len(list((home / "outbox").glob("*-metrics.ndjson"))) >= updates)
    trainer = trainer_of(home)
    environment = Path(f"/proc/{trainer}/environ").read_bytes().split(b"\0")
    return trainer, int(next(e for e in environment if e.startswith(f"{SUPERVISOR}=".encode())).partition(b"=")[2])


def trainer_of(home):
    (lock,) = (home / "runs" / ".locks").glob("nightly-*.lock")
    return int(lock.read_text())


def asked(page, ui, query, **variables):
    """Query the UI's server and return its data."""
    return page.request.post(f"{ui}/graphql", data={"query": query, "variables": variables}).json()["data"]


def wait_until(condition, seconds=900):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in {seconds} s"
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ui_terminates_a_night_and_materializes_an_asset(small_night, ui, page, tmp_path):
    from playwright.sync_api import expect

    home = tmp_path / "navi"
    run_id = start_night(page, ui)
    page.goto(f"{ui}/asset-groups", wait_until="domcontentloaded")
    for group in ("corpus", "demonstrations", "pretraining", "training", "evaluation", "nights", "benchmarks"):
        expect(page.get_by_text(group, exact=True).first).to_be_visible(timeout=60_000)

    trainer, worker = at_work(home)
    terminate(page, ui, run_id)
    assert outcome_of(page, ui, run_id) == "CANCELED"
    assert not Path(f"/proc/{trainer}").exists()
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), seconds=120)
    assert list(home.glob("runs/nightly-*/checkpoints/step-*.pt"))
    warehouse = Warehouse(home)
    warehouse.ingest()
    assert warehouse.query("select status, reason from runs").values.tolist() == [["stopped", "SIGTERM"]]

    run_id = launch(page, f"{ui}/assets/scene_sources", "Materialize$")
    assert outcome_of(page, ui, run_id) == "SUCCESS", (tmp_path / "dev.log").read_text()[-4000:]
    # The night made a plan of three.
    assert len(json.loads((home / "pipeline" / "scene_sources.json").read_text())["sources"]) == 44
    page.goto(f"{ui}/assets/scene_sources", wait_until="domcontentloaded")
    for shown in ("Plan of the scenes", "train_scenes", "external_scenes"):
        expect(page.get_by_text(shown).first).to_be_visible(timeout=60_000)
    page.get_by_text("[Show Markdown]").first.click(timeout=60_000)
    expect(page.get_by_role("dialog").get_by_text("apartment_0000").first).to_be_visible(timeout=60_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_with_a_killed_worker_is_restarted_and_resumes(small_night, ui, page, tmp_path):
    """After kill -9 of the worker its trainer ends, and the daemon restarts the run, which resumes."""
    home = tmp_path / "navi"
    run_id = start_night(page, ui)
    trainer, worker = at_work(home, updates=3)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{trainer}").exists())
    kept = max(home.glob("runs/nightly-*/checkpoints/step-*.pt"))
    children = (
        'query Children($id: String!) { runsOrError(filter: {tags: [{key: "dagster/parent_run_id", value: $id}]}) '
        "{ ... on Runs { results { runId status } } } }"
    )
    wait_until(lambda: asked(page, ui, children, id=run_id)["runsOrError"]["results"])
    wait_until(lambda: trainer_of(home) != trainer)
    resumed = f"the run resumes from step {int(kept.stem.removeprefix('step-'))}"
    wait_until(lambda: resumed in (tmp_path / "dev.log").read_text())
    (again,) = asked(page, ui, children, id=run_id)["runsOrError"]["results"]
    assert again["runId"] != run_id and trainer_of(home) != trainer
