"""Compiling many scenes at once: the same results as one by one, faults by scene, no partial files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from navi_core.cli.main import main
from navi_core.config import CompileConfig
from navi_core.errors import ConfigError, NaviError, SceneError
from navi_core.scenes import compile_corpus, discover_root, read_manifest
from navi_core.scenes.corpus.pool import Job, default_jobs, run_jobs
from navi_core.scenes.memory import CompileEstimate
from tests.scenes.corpus.test_corpus import write_obj
from tests.scenes.mesh_files import room

CONFIG = CompileConfig(resolution=64)


@pytest.fixture(scope="module")
def meshes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("meshes")
    room(folder / "a.glb")
    write_obj(folder / "b.obj", "tent")
    room(folder / "c.glb", ("floor", "table", "wall"))
    (folder / "d.glb").write_bytes(b"glTF")
    return folder


def test_parallel_compilation_equals_sequential(meshes, tmp_path):
    outcomes = []
    for jobs in (1, 2):
        out, faults, reported = tmp_path / str(jobs), {}, []
        manifest = compile_corpus(
            discover_root(meshes),
            out,
            CONFIG,
            progress=lambda label, share, reported=reported: reported.append((label, share)),
            jobs=jobs,
            failed=lambda source, error, faults=faults: faults.update({source.name: str(error)}),
        )
        assert [row.name for row in manifest.rows] == ["a", "b", "c"]
        assert list(faults) == ["d"] and "truncated" in faults["d"]
        assert reported[-1] == ("done", 1.0) and all(a[1] <= b[1] for a, b in itertools.pairwise(reported))
        assert not [name for name in os.listdir(out) if name.endswith(".tmp")]
        outcomes.append({f.name: f.read_bytes() for f in out.iterdir()})
    assert outcomes[0] == outcomes[1]


def test_first_fault_is_raised_without_a_handler(meshes, tmp_path):
    with pytest.raises(SceneError, match=r"d\.glb: truncated"):
        compile_corpus(discover_root(meshes), tmp_path, CONFIG, jobs=1)
    with pytest.raises(ConfigError, match="jobs 0"):
        compile_corpus(discover_root(meshes), tmp_path, CONFIG, jobs=0)


def die(job: Job, progress):
    """End the process as the system does when memory runs out, or do nothing."""
    if job.source.name == "a":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.source.name == "b":
        raise ZeroDivisionError("odd")
    return job.source.name


@pytest.mark.slow
def test_killed_process_loses_only_its_scene(meshes, tmp_path):
    jobs = [Job(source, tmp_path, CONFIG) for source in discover_root(meshes)]
    found = dict(run_jobs(jobs, die, 2, lambda stages, share: None))
    assert isinstance(found[0], NaviError) and "signal 9" in str(found[0]) and "--jobs 1" in str(found[0])
    assert isinstance(found[1], NaviError) and "ZeroDivisionError" in str(found[1])
    assert [found[2], found[3]] == ["c", "d"]


def test_default_jobs_follow_cores_and_memory(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("navi_core.scenes.corpus.pool.available_memory", lambda: 10 << 30)
    for gigabytes, seconds, count, jobs in (
        (1, 60, 20, 5),
        (0, 60, 20, 8),
        (0, 60, 3, 3),
        (100, 60, 3, 1),
        (0, 0.2, 20, 1),
        (0, 60, 0, 1),
    ):
        assert default_jobs([CompileEstimate(gigabytes << 30, seconds, 0)] * count) == jobs


def test_the_command_reports_faults_at_the_end_with_the_retry_command(meshes, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["scenes", "compile", str(meshes), "--out", str(tmp_path), "--resolution", "32", "--json"])
    reported = capsys.readouterr()
    assert caught.value.code == 3
    assert [row["name"] for row in json.loads(reported.out)] == ["a", "b", "c"]
    assert "failed: d: " in reported.err
    assert f"navi scenes compile {meshes / 'd.glb'} --resolution 32 --out {tmp_path}" in reported.err.splitlines()[-1]


@pytest.mark.slow
def test_interruption_leaves_no_partial_file_and_no_process(meshes, tmp_path):
    command = [sys.executable, "-m", "navi_core.cli.main", "scenes", "generate", "apartment", "--seeds", "0-19"]
    command += ["--out", str(tmp_path / "out"), "--resolution", "512", "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("*.gmdag")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    names = os.listdir(tmp_path / "out")
    assert names and not [name for name in names if name.startswith(".")]
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline + 60:  # the last helper of the pool ends just after its parent
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not (tmp_path / "out" / "manifest.json").exists() or read_manifest(tmp_path / "out" / "manifest.json")
