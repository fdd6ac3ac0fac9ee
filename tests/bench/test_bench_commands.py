"""`navi bench`: one set of flags, a table for people, one JSON document for programs."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from navi_core.bench.learning import memory
from navi_core.bench.learning.memory import MemoryCase
from navi_core.bench.report import figure, sizes
from navi_core.cli.main import build_app
from navi_core.errors import ConfigError

TINY = {
    "encoder": ["--encoder", "ring_cnn", "--size", "16x4", "--batch", "1", "--repeats", "1"],
    "core": ["--core", "gru", "--shape", "2x3", "--repeats", "1"],
    "serve": [
        *("--runtime", "eager", "--encoder-backend", "ring_cnn", "--temporal-core", "gru"),
        *("--size", "16x4", "--repeats", "2"),
    ],
    "raycast": ["--scene", "maze:0", "--resolution", "32", "--tracer", "numba", "--size", "16x4", "--repeats", "1"],
    "gae": ["--size", "8x4", "--repeats", "1"],
    "env": ["--scene", "maze:0", "--resolution", "32", "--size", "16x4", "--drones", "1", "--steps", "1"],
}


@pytest.mark.parametrize("name", TINY)
def test_benchmark_prints_a_table_or_one_json_document(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    table = CliRunner().invoke(build_app(plugins=False), ["bench", name, *TINY[name]])
    assert table.exit_code == 0, table.output
    assert "1 thread" in " ".join(table.stdout.split()) and len(table.stdout.splitlines()) > 3
    answer = CliRunner().invoke(build_app(plugins=False), ["bench", name, *TINY[name], "--json"])
    document = json.loads(answer.stdout)
    assert document["rows"] and document["hardware"] and "torch" in document["versions"]


@pytest.mark.slow
def test_cart_pole_is_measured_in_processes_of_its_own() -> None:
    small = "--samples 0 --seeds 1 --set total_steps=4096 --set ppo.epochs=1 --json"
    answer = CliRunner().invoke(build_app(plugins=False), ["bench", "cartpole", *small.split()])
    (row,) = json.loads(answer.stdout)["learning"]
    assert row["steps"] == 4096 and row["cpu_seconds"] > 0 and 8 < row["final_return"] <= 500
    with pytest.raises(ConfigError, match="allowed: sb3"):
        build_app(plugins=False)(["bench", "cartpole", "--against", "rllib"], standalone_mode=False)


@pytest.mark.slow
def test_the_device_table_takes_the_same_flags(capfd: pytest.CaptureFixture[str]) -> None:
    small = "--device cpu --drones 1 --scene rooms:1 --resolution 64 --size 16x8 --repeats 1 --json"
    done = CliRunner().invoke(build_app(plugins=False), ["bench", "device", *small.split()])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (done.stdout or capfd.readouterr().out).splitlines()]
    assert sum(row["passed"] is True for row in rows) >= 8


@pytest.mark.slow
def test_training_is_measured_stage_by_stage(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    small = "--preset demo --scene maze:0 --actors 2 --rollout 32 --updates 1 --set compile.resolution=32"
    table = CliRunner().invoke(build_app(plugins=False), ["bench", "train", *small.split()])
    assert table.exit_code == 0 and "rollout/forward" in table.stdout, table.output
    answer = CliRunner().invoke(build_app(plugins=False), ["bench", "train", *small.split(), "--json"])
    document = json.loads(answer.stdout)
    assert document["steps_per_second"] > 0 and document["stages"] and document["hardware"]


@pytest.mark.slow
def test_memory_bench_prints_one_row_per_case(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase("repeat_previous", "gru", 300_000, 0.9, "carried")
    monkeypatch.setattr(memory, "memory_cases", lambda *_: [case])
    table = CliRunner().invoke(build_app(plugins=False), ["bench", "memory", "--steps", "2048"])
    assert table.exit_code == 0 and case.name in table.stdout and "–" in table.stdout, table.output
    reported = CliRunner().invoke(
        build_app(plugins=False), ["bench", "memory", "--steps", "2048", "--json", "--first-seed", "3"]
    )
    (row,) = json.loads(reported.stdout)["rows"]
    assert (row["case"], row["seed"], row["episodes"]) == (case.name, 3, 64) and 2048 <= row["steps"] < 300_000
    assert -1 <= row["kept"] < 0


def test_the_help_names_every_benchmark_in_one_line() -> None:
    printed = CliRunner().invoke(build_app(plugins=False), ["bench", "--help"], terminal_width=140).output
    for name in (*TINY, "compile", "device", "train", "memory"):
        assert name in printed


@pytest.mark.parametrize("text", ["16", "x16", "16x", "0x4", "-1x4", "1e3x4", "99999999999999999999x1"])
def test_malformed_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--size .* 256x48"):
        sizes([text])


def test_unmeasured_figure_prints_a_dash() -> None:
    row = {"none": None, "nan": math.nan, "small": 1e-5, "many": 12345, "half": 0.5, "bytes": 2_000_000}
    assert [figure(key)(row) for key in row][:5] == ["–", "–", "1.0e-05", "12,345", "0.50"]
    assert figure("bytes", ".1f", 1e-6)(row) == "2.0"
