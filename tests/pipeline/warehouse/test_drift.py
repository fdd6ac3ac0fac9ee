"""Drift against the last seven nights: detection and false-alarm rates over many seeds."""

import duckdb
import numpy as np
import pandas as pd
import pytest

from navi_pipeline.lib.warehouse.database import apply_sql, sql_folder

SCENES, REPEATS, NIGHTS = 3, 5, 8


@pytest.fixture(scope="module")
def alarms():
    """Return a function for the fraction of seeds with an alarm in the last of eight nights.

    Every seed is a machine of its own: each repeat has log-normal noise of 5 %, one in twenty is disturbed by other
    work and up to half as long again; `nightly` is noise that all repeats of a scene's night share.
    """
    with duckdb.connect() as connection:
        apply_sql(connection, sql_folder())

        def share(last, *, seeds=400, repeat=0.05, nightly=0.0, seed=0):
            rng = np.random.default_rng(seed)
            shape = (seeds, NIGHTS, SCENES, REPEATS)
            speed = 1000.0 * np.exp(repeat * rng.standard_normal(shape))
            speed *= np.exp(nightly * rng.standard_normal(shape[:3]))[..., None]
            speed /= np.where(rng.random(shape) < 0.05, 1.0 + 0.5 * rng.random(shape), 1.0)
            speed[:, -1] *= last
            machine, night, scene, turn = (axis.ravel() for axis in np.indices(shape))
            rows = pd.DataFrame({"machine": machine, "night": night, "scene": scene, "turn": turn,
                                 "speed": speed.ravel()})  # fmt: skip
            connection.execute("delete from benchmarks")
            connection.register("rows", rows)
            connection.execute(
                "insert into benchmarks (run_id, benchmark, cell, repeat, name, value, unit, hardware, recorded_at) "
                "select machine || '-' || night, 'nightly', 's' || scene, turn, 'steps_per_cpu_second', speed, '1/s', "
                "'m' || machine, timestamp '2026-01-01' + to_days(night::int) from rows"
            )
            connection.unregister("rows")
            return connection.execute(
                "select avg(alarm) from (select max((cell_drifts or benchmark_drifts)::int) as alarm "
                "from drift_vs_baseline group by hardware)"
            ).fetchone()[0]

        yield share


def test_a_slowdown_of_20_percent_is_flagged(alarms):
    assert alarms(0.8) == 1.0  # a fifth of the speed is lost
    assert alarms(1 / 1.2) >= 0.995  # everything takes a fifth longer
    assert alarms(0.8, nightly=0.05) >= 0.99


def test_noise_of_5_percent_is_not_flagged(alarms):
    assert alarms(1.0) <= 0.0025
    assert alarms(0.95) <= 0.02
    assert alarms(1.0, nightly=0.025) <= 0.01


def test_drift_needs_three_earlier_runs_on_the_same_hardware():
    with duckdb.connect() as connection:
        apply_sql(connection, sql_folder())
        connection.execute(
            "insert into benchmarks (run_id, benchmark, cell, repeat, name, value, unit, hardware, recorded_at) "
            "select 'r' || i, 'nightly', 's', 0, 'x', 100 - 50 * (i = 3)::int, '1/s', case when i < 1 then 'other' "
            "else 'mine' end, timestamp '2026-01-01' + to_days(i::int) from range(4) t(i)"
        )
        assert connection.execute("select * from drift_vs_baseline").fetchall() == []
