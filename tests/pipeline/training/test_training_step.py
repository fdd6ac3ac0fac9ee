"""Training step of an asset: a trainer without progress is ended."""

import dagster as dg
import pytest

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.record import MetricLog, outbox_path
from navi_pipeline.lib.training import training_step
from navi_pipeline.lib.training.training_step import materialize_policy


def train_with(trainer, monkeypatch):
    monkeypatch.setattr(training_step, "train_policy", trainer)

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["quick"]))
    def policy(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        return materialize_policy(context, "ppo", "quick", 0)

    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize([policy], instance=instance, partition_key="quick", run_config={
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}})  # fmt: skip


def test_training_step_ends_a_trainer_without_progress(monkeypatch):
    monkeypatch.setattr(training_step, "STALL_MINUTES", 0.0)
    asked = []

    def hangs(profile, *, on_line, watch, **settings):
        on_line("the corpus is read")
        stop = watch("ppo_policy-quick-x", TrainConfig())
        while not stop():
            asked.append(1)
        raise RunError("training was stopped at step 0 (SIGTERM)")

    with pytest.raises(RunError, match="no progress for 0 min, so the trainer was ended: training was stopped"):
        train_with(hangs, monkeypatch)


def test_progressing_training_is_not_ended_and_keeps_its_error(monkeypatch):
    reported = []

    def fails(profile, *, on_line, watch, **settings):
        stop = watch("ppo_policy-quick-x", TrainConfig())
        with MetricLog(outbox_path(), "ppo_policy-quick-x", {}) as log:
            log.scalars(1024, {"sps": 900.0})
        reported.append(stop())
        raise RunError("out of memory")

    with pytest.raises(RunError, match=r"^out of memory"):
        train_with(fails, monkeypatch)
    assert reported == [False]
