"""Cores that a container is given, as the kernel's control groups tell it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.machine import chosen_threads, limit_threads, resources, usable_cores
from navi_core.record import measurement
from navi_core.scenes.corpus import pool
from navi_core.scenes.corpus.pool import _threads_for_children
from navi_core.scenes.memory import CompileEstimate


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put this process into two groups, one in the other, on a machine of 64 cores: a function of their version
    that returns the outer one's folder."""

    def lay(version: int) -> Path:
        root = tmp_path / "cpu" if version == 1 else tmp_path
        (root / "pod" / "box").mkdir(parents=True)
        (tmp_path / "own").write_text({1: "3:cpu,cpuacct:/pod/box\n", 2: "0::/pod/box\n"}[version])
        return root / "pod"

    monkeypatch.setattr(resources, "_GROUPS", tmp_path)
    monkeypatch.setattr(resources, "_OWN", tmp_path / "own")
    monkeypatch.setattr(resources, "_affinity", lambda: 64)
    return lay


def test_usable_cores_follow_the_smallest_cgroup_quota(groups) -> None:
    pod = groups(2)
    (pod / "cpu.max").write_text("250000 100000\n")
    (pod / "box" / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == 3
    (pod / "box" / "cpu.max").write_text("50000 100000\n")
    assert usable_cores() == 1


def test_cgroup_v1_quota_limits_the_cores(groups) -> None:
    box = groups(1) / "box"
    (box / "cpu.cfs_period_us").write_text("100000\n")
    for quota, expected in (("400000", 4), ("-1", 64), ("no number", 64)):
        (box / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert usable_cores() == expected


def test_hardware_profile_and_workers_respect_the_quota(groups, monkeypatch) -> None:
    (groups(2) / "cpu.max").write_text("300000 100000\n")
    assert measurement._profile.__wrapped__()["cores"] == 3
    monkeypatch.setattr(pool, "available_memory", lambda: None)
    assert pool.default_jobs([CompileEstimate(memory=1000, seconds=100.0, disk=1)] * 50) == 3


def test_quota_beyond_the_cores_has_no_effect(groups) -> None:
    (groups(2) / "cpu.max").write_text("12800000 100000\n")
    assert usable_cores() == 64


def test_thread_limit_precedes_imports_and_keeps_set_values(groups, monkeypatch) -> None:
    (groups(2) / "cpu.max").write_text("200000 100000\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    limit_threads()
    assert "NUMBA_NUM_THREADS" not in os.environ, "numba is imported already: it would refuse another number"
    for library in ("torch", "numba"):
        monkeypatch.delitem(sys.modules, library)
    limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "5" and os.environ.pop("NUMBA_NUM_THREADS") == "2"


def test_unset_threads_are_divided_among_workers(groups, monkeypatch) -> None:
    """A thread count that Navi set for the whole process is divided among its workers."""
    (groups(2) / "cpu.max").write_text("800000 100000\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    assert chosen_threads() == {"NUMBA_NUM_THREADS"}
    with _threads_for_children(2):
        assert (os.environ["OMP_NUM_THREADS"], os.environ["NUMBA_NUM_THREADS"]) == ("2", "5")
    assert (os.environ["OMP_NUM_THREADS"], os.environ["NUMBA_NUM_THREADS"]) == ("8", "5")


def test_set_threads_count_as_chosen_without_a_quota(groups, monkeypatch) -> None:
    groups(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert chosen_threads() == {"OMP_NUM_THREADS"}


def test_threads_stay_unset_without_a_quota() -> None:
    code = "import os, navi_core; print(sorted(name for name in os.environ if name.endswith('_NUM_THREADS')))"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if usable_cores() < len(os.sched_getaffinity(0)):
        pytest.skip("this machine has a quota")
    reported = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert reported.stdout.strip() == "[]"
