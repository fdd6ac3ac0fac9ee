"""Processor time of a training: summed over its starts, never invented."""

import time

import pytest
import torch

from navi_core.config import TrainConfig
from navi_core.learn.run.records import Counters, RunRecord
from navi_core.models import Checkpoint
from navi_core.policy import build_policy
from navi_core.record import RunDirectory, navi_home
from navi_pipeline.lib.warehouse.warehouse import Warehouse


def start(work=0.0, *, fresh=False, reason="total_steps"):
    """One start of a run that computes for a while and writes a checkpoint before and a status after it."""
    config = TrainConfig()
    with RunDirectory.open(navi_home() / "runs", asset="ppo", partition="x", config=config, fresh=fresh) as run:
        record = RunRecord(config, run, run.metric_log(), torch.device("cpu"), "rl")
        counters = Counters(reward_ema=0.0, seconds=1.0, started_at="2026-01-01T00:00:00Z")
        record.status("running", 1, counters)
        until = time.process_time() + work
        while time.process_time() < until:
            pass
        state = Checkpoint.of(
            policy=build_policy(config.policy),
            optimizer=None,
            config=config,
            run_id=run.run_id,
            step_id=1,
            episode_count=0,
            reward_ema=0.0,
            wall_time_hours=1.0 / 3600.0,
        )
        record.checkpoint(run.checkpoints / "a.pt", state)
        if reason == "killed":
            return run
        record.status("finished", 1, counters, reason)
        record.log.flush()
        return run


def spent():
    warehouse = Warehouse()
    warehouse.ingest()
    return warehouse.query(
        "select runs.cpu_seconds a, checkpoints.cpu_seconds b from runs join checkpoints using (run_id)"
    )


def test_processor_time_sums_over_run_starts():
    start(0.1, reason="killed")
    start(0.1)
    row = spent().iloc[0]
    assert row["a"] >= row["b"] >= 0.2
    start(0.0, fresh=True)
    assert spent()["a"][0] < 0.2, "a fresh start is another training"


@pytest.mark.parametrize("damage", ["gone", "broken"])
def test_a_run_with_unknown_earlier_starts_has_no_sum(damage):
    file = start(0.0).path / "cpu_seconds.json"
    file.unlink() if damage == "gone" else file.write_text("{")
    start(0.0)
    assert spent()["a"].isna().all()
