"""The Dagster UI in a headless browser: the graph is there, and a click materializes an asset."""

import contextlib
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

from tests.browser import headless_browser, require_browser

ROOT = Path(__file__).resolve().parents[2]
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
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(ROOT / "workspace.yaml")]
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
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def launches(response):
    return "/graphql" in response.url and "mutation Launch" in (response.request.post_data or "")


def outcome_of(page, ui, run_id):
    """Wait for the end of a run, as the UI's own pages ask for it."""
    query = "query Outcome($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
    deadline = time.monotonic() + 1200
    while time.monotonic() < deadline:
        answer = page.request.post(f"{ui}/graphql", data={"query": query, "variables": {"id": run_id}})
        status = answer.json()["data"]["runOrError"]["status"]
        if status in ("SUCCESS", "FAILURE", "CANCELED"):
            return status
        time.sleep(3)
    return "RUNNING"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_one_click_materializes_the_whole_graph(ui, tmp_path):
    """From an empty folder to a champion: scenes, training, evaluation, promotion (minutes)."""
    from playwright.sync_api import expect

    with headless_browser() as browser:
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.goto(f"{ui}/locations/navi/jobs/whole_graph/playground", wait_until="domcontentloaded")
        with page.expect_response(launches, timeout=120_000) as launched:
            page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click(timeout=120_000)
        assert "LaunchRunSuccess" in launched.value.text(), launched.value.text()
        run_id = re.search(r'"(?:runId|id)":\s*"([0-9a-f-]{36})"', launched.value.text()).group(1)
        page.goto("about:blank")  # the live log page would take a core from the training
        assert outcome_of(page, ui, run_id) == "SUCCESS", (tmp_path / "dev.log").read_text()[-4000:]
        page.goto(f"{ui}/assets/promoted_model", wait_until="domcontentloaded")
        expect(page.get_by_text("v001").first).to_be_visible(timeout=60_000)
    assert (tmp_path / "navi" / "models").exists()


def test_a_click_materializes_an_asset(ui, tmp_path):
    from playwright.sync_api import expect

    with headless_browser() as browser:
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.goto(f"{ui}/asset-groups", wait_until="domcontentloaded")
        for group in ("corpus", "training", "evaluation", "promotion"):
            expect(page.get_by_text(group, exact=True).first).to_be_visible(timeout=60_000)
        page.goto(f"{ui}/assets/scene_sources", wait_until="domcontentloaded")

        button = page.get_by_role("button", name=re.compile("Materialize$"))
        # Leaving the page before the server has answered would take the launch back.
        with page.expect_response(launches, timeout=60_000) as launched:
            button.click(timeout=60_000)
        assert "LaunchRunSuccess" in launched.value.text(), launched.value.text()
        page.goto(f"{ui}/runs", wait_until="domcontentloaded")
        expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=120_000)
    assert (tmp_path / "navi" / "pipeline" / "scene_sources.json").exists()
