"""A small distributed run of cart-pole."""

from __future__ import annotations

import numpy as np

from navi_core.config import TrainConfig, parse_config
from navi_core.learn.parallel import ALONE
from navi_core.presets import merge
from navi_core.record import RunDirectory
from navi_core.scale import train_apex
from navi_core.scale.launch import launch_apex
from navi_core.scale.messages import ExperienceBatch, Report
from navi_core.tasks import reference_task

SMALL = {
    "algorithm": "dqn",
    "task": "cart_pole",
    "task_options": {"masked": False},
    "actors": 4,
    "seed": 3,
    "threads": 1,
    "device": "cpu",
    "total_steps": 640,
    "checkpoint_every": 320,
    "policy": {"core": "none", "aux": "off", "width": 16, "q_hidden": 16},
    "shaper": {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
    "dqn": {"rollout": 16, "bptt": 8, "replay_ratio": 4.0, "learning_starts": 64, "n_step": 3},
    "replay": {"batch_size": 32, "capacity": 2048},
    "distributed": {"actors_per_gpu": 2, "replay_shards": 2, "param_sync_interval": 4},
}


def apex_config(**changes) -> TrainConfig:
    return parse_config(TrainConfig, merge(SMALL, changes))


def fly_apex(root, config, *, cluster=None, workers=ALONE, **kw):
    """Train in `root`, in this process unless `cluster` makes another place of actors and shards."""
    if cluster is None:
        kw["in_process"] = True
    else:
        spaces = reference_task(config.task, 1, **config.task_options).spaces
        kw |= {"cluster": cluster, "spaces": spaces, "shape": spaces.observed}
    fly = launch_apex if cluster is None else train_apex
    if not workers.first:
        return fly(config, None, workers=workers, **kw)
    with RunDirectory.open(root / "runs", asset="apex", partition="p", config=config) as run:
        return fly(config, run, workers=workers, log=run.metric_log(root / "outbox"), **kw)


def report(number=0, actor=0, life=1, decisions=32, version=1, returns=(5.0,)) -> Report:
    lengths = tuple(int(x) for x in returns)
    return Report(actor, life, number, decisions, version, 0.1, 1.0, returns, lengths, 0.5, 2.0, 0.75)


def experience(number=0, count=8, first=0.0, priorities=None, **about) -> ExperienceBatch:
    """Items with distinct numbers."""
    items = {"x": first + np.arange(count, dtype=np.float32)}
    given = np.ones(count) if priorities is None else np.asarray(priorities, float)
    return ExperienceBatch(report(number, **about), items, given)
