"""Memory that a container or a job is given, as the kernel's control groups tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.learn import PrioritizedReplay
from navi_core.machine import group_limits, resources, whole_memory
from navi_core.scenes.memory import available_memory

MIB = 1 << 20
NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@pytest.fixture(params=[1, 2])
def job(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Put this process into a job of 100 MiB, two groups below the root; return the version of the groups."""
    limit, use, cache = NAMES[request.param]
    groups = tmp_path / "memory" if request.param == 1 else tmp_path
    inner = groups / "slurm" / "job"
    inner.mkdir(parents=True)
    # The kernel's word for no limit, in either version, at the node; none at all at the root.
    outer = {limit: str(2**63 - 4096) if request.param == 1 else "max", use: str(900 * MIB)}
    files = {limit: str(100 * MIB), use: str(90 * MIB)}
    for folder, reported in ((inner.parent, outer), (inner, files)):
        for name, text in reported.items():
            (folder / name).write_text(f"{text}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{cache} {70 * MIB}\n")
    own = tmp_path / "own"
    own.write_text({1: "9:cpu:/\n4:memory:/slurm/job\n0::/\n", 2: "0::/slurm/job\n"}[request.param])
    monkeypatch.setattr(resources, "_GROUPS", tmp_path)
    monkeypatch.setattr(resources, "_OWN", own)
    return request.param


def test_available_memory_excludes_the_page_cache_of_the_job(job) -> None:
    assert whole_memory() == 100 * MIB
    assert available_memory() == 80 * MIB


def test_a_replay_larger_than_the_job_is_refused(job) -> None:
    with pytest.raises(ConfigError, match=r"has 0\.1; lower replay\.capacity"):
        PrioritizedReplay(1000).add({"x": torch.zeros(1, 1 << 17)})


def test_unseen_cgroup_falls_back_to_the_root_group(tmp_path: Path, monkeypatch) -> None:
    for name, number in {"memory.max": 100 * MIB, "memory.current": 90 * MIB}.items():
        (tmp_path / name).write_text(f"{number}\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    (tmp_path / "own").write_text("0::/../../host/path\n")
    monkeypatch.setattr(resources, "_GROUPS", tmp_path)
    monkeypatch.setattr(resources, "_OWN", tmp_path / "own")
    assert group_limits() == [(100 * MIB, 90 * MIB)]


def test_memory_limit_applies_without_memory_stat(job, tmp_path: Path) -> None:
    """As in a sandbox; a group's name may be any bytes."""
    for stat in tmp_path.rglob("memory.stat"):
        stat.unlink()
    assert whole_memory() == 100 * MIB and available_memory() == 10 * MIB
    (tmp_path / "own").write_bytes(b"0::/\xff\n" + (tmp_path / "own").read_bytes())
    assert whole_memory() == 100 * MIB
