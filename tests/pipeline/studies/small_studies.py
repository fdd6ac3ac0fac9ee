"""Helpers for tests of studies: a small study, and a trainer whose reward is a function of its settings."""

from __future__ import annotations

import math
import os
import time

from navi_core.config import TrainConfig, parse_config
from navi_core.record import RunDirectory, navi_home
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.studies.worker import work
from navi_pipeline.settings import StudyConfig

SPACE = {
    "ppo.learning_rate": {"kind": "float", "low": 1e-4, "high": 1e-2, "log": True},
    "ppo.epochs": {"kind": "int", "low": 1, "high": 4},
}
STEPS = 90


def small_study(name="small", **given) -> StudyConfig:
    """Return a study of ten trials; `given` wins."""
    values = {"settings": {"task": "cart_pole", "total_steps": STEPS}, "space": SPACE, "trials": 10}
    return parse_config(StudyConfig, values | {"name": name} | given)


def reward(config: TrainConfig, share: float = 1.0) -> float:
    """Return the analytic reward: best at a learning rate of 1e-3, and rising with training."""
    return share * (4.0 - math.log10(config.ppo.learning_rate / 1e-3) ** 2)


def analytic_trainer(config, *, asset, partition, on_line, command, stop, seconds=0.0):
    """Take the place of `train_in_child`: a run directory, metric rows, a result, and it heeds `stop`."""
    with RunDirectory.open(navi_home() / "runs", asset=asset, partition=partition, config=config) as run:
        log = run.metric_log()
        step, reason = 0, "total_steps"
        for step in range(30, config.total_steps + 1, 30):
            share = step / config.total_steps
            earned = reward(config, share)
            values = {"reward_ema": earned, "episode_return": 10.0 * earned, "sps": 100.0 * config.ppo.epochs}
            log.scalars(step, values)
            log.flush()
            time.sleep(seconds)
            if stop():
                reason = "total_steps" if step >= config.total_steps else "SIGTERM"
                break
        log.close()
        return {
            "run_id": run.run_id,
            "checkpoint": f"{run.run_id}.pt",
            "steps": step,
            "reason": reason,
            "memory_gib": 0.1 * config.ppo.epochs,
            "metrics": {},
        }


def forked_worker(config, **options) -> int:
    """Start a worker of a study in a process of its own, and return its id; it trains analytically."""
    child = os.fork()
    if child:
        return child
    try:
        with TrialQueue(config) as queue:
            work(queue, on_line=lambda _: None, train=lambda *a, **k: analytic_trainer(*a, **k, **options))
    finally:
        os._exit(0)


def complete_by(queue: TrialQueue, **options) -> None:
    """Carry a study to its end in this process."""
    work(queue, on_line=lambda _: None, train=lambda *a, **k: analytic_trainer(*a, **k, **options))
