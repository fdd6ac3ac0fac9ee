"""The environment's benchmark: complete rows, what counts as overhead, and a long run's memory."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from navi_core.bench.engine.env import run_env, run_soak, soak_row
from navi_core.cli.main import build_app
from navi_core.errors import ConfigError


def test_every_resolution_is_measured_with_every_drone_count(apartments) -> None:
    rows = run_env([(16, 8), (32, 8)], [1, 4], apartments, steps=1)
    assert [(row["azimuth_bins"], row["drones"]) for row in rows] == [(16, 1), (16, 4), (32, 1), (32, 4)]


def test_overhead_is_the_time_beyond_a_plain_cast(apartments) -> None:
    rows = list(run_env([(16, 8)], [2, 8], apartments, steps=4))
    assert [row["drones"] for row in rows] == [2, 8]
    for row in rows:
        assert row["overhead"] < 1 and row["overhead_wall"] < 1
        assert row["overhead"] == pytest.approx(1 - row["cast_per_1000"] / row["cpu_per_1000"])
        assert row["steps_per_second"] > 0 and row["cpu_per_1000"] > 0
        assert row["bytes_per_drone"] > 16 * 8 * 12


def test_memory_growth_ignores_the_first_tenth_of_a_run() -> None:
    steps = tuple(range(10, 101, 10))
    flat, rising = (100_000_000,) * 10, tuple(100_000_000 + 1_000_000 * i for i in range(10))
    assert soak_row(steps, (50_000_000, *flat[1:]))["growth"] == 1.0
    assert soak_row(steps, flat)["steady"] and soak_row(steps, flat)["growth"] == 0.0
    assert not soak_row(steps, rising)["steady"] and soak_row(steps, rising)["growth"] == pytest.approx(0.09)


@pytest.mark.slow
def test_resident_memory_stays_over_a_long_run(apartments) -> None:
    """Between decisions 20,000 and 200,000 of the drones."""
    result = run_soak(apartments, steps=25_000, drones=8)
    assert result["steady"], result


def test_the_command_prints_rows_and_refuses_odd_sizes(tmp_path, apartments) -> None:
    path = tmp_path / "home.gmdag"
    apartments[0].save(path)
    arguments = ["bench", "env", "--scene", str(path), "--size", "16x8", "--drones", "2", "--steps", "2"]
    done = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 1 and rows[0]["drones"] == 2
    table = CliRunner().invoke(build_app(), arguments)
    assert "16x8" in table.stdout
    long = CliRunner().invoke(build_app(), ["bench", "env", "--scene", str(path), "--soak", "40", "--json"])
    assert len(json.loads(long.stdout)["resident"]) == 20
    odd = CliRunner().invoke(build_app(), ["bench", "env", "--scene", str(path), "--size", "16"])
    assert isinstance(odd.exception, ConfigError) and "256x48" in str(odd.exception)
