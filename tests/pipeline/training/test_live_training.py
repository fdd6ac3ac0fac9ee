"""Live observations of a training run."""

import math
from types import SimpleNamespace

import dagster as dg
import pytest

from navi_core.record import MetricLog, outbox_path
from navi_pipeline.lib.training.run_curve import Monitor
from navi_pipeline.lib.training.training_step import LiveTraining
from navi_pipeline.lib.warehouse.warehouse import Warehouse

PARTITIONS = dg.StaticPartitionsDefinition(["quick"])


def update(step, digit=0):
    """Return an update's step and metrics."""
    return step, {"reward_ema": 0.25 + digit / 1000, "kl": 0.0101, "explained_variance": 0.5, "sps": 1250.0}


def observations(updates, interval, fails=False):
    @dg.asset(partitions_def=PARTITIONS)
    def policy(context: dg.AssetExecutionContext) -> None:
        with LiveTraining(context, interval=interval, title="ppo quick") as live:
            live.total_steps = 10_000
            for step, metrics in updates:
                live.update(step, metrics)

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([policy], instance=instance, partition_key="quick", run_config={
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}, raise_on_error=not fails)  # fmt: skip
        assert result.success != fails
        records = instance.fetch_observations(policy.key, limit=10_000).records
    return [record.asset_observation for record in reversed(records)]


def test_progress_and_curves_are_observations_of_the_partition():
    seen = observations((update(1000 * n, n) for n in range(1, 4)), interval=0.0)
    assert len(seen) == 3 and {one.partition for one in seen} == {"quick"}
    last = {name: value.value for name, value in seen[-1].metadata.items()}
    assert (last["step"], last["reward_ema"], last["steps_per_second"]) == (3000.0, 0.253, 1250.0)
    assert last["progress_percent"] == 30.0 and last["explained_variance"] == 0.5
    assert last["curves"].startswith("![curves so far](data:image/svg+xml;base64,")


def test_live_training_keeps_the_error_of_the_trainer():
    """Also if the last curves cannot be logged; a cancelled run draws none."""
    printed = []

    def refuses(event):
        printed.append(event)
        raise OSError("event log: disk full")

    def live():
        context = SimpleNamespace(asset_key="a", partition_key="quick", log_event=printed.append)
        made = LiveTraining(context, interval=1e-6, title="t")
        for n in range(1, 6):
            made.update(*update(1000 * n, n))
        context.log_event = refuses
        printed.clear()
        return made

    with pytest.raises(RuntimeError, match="killed"), live():
        raise RuntimeError("the trainer was killed")
    assert len(printed) == 1
    with pytest.raises(KeyboardInterrupt), live():
        raise KeyboardInterrupt
    assert printed == []
    with pytest.raises(OSError, match="disk full"), live():
        pass


def test_no_observation_without_progress_or_within_the_interval():
    assert observations([], interval=0.0) == []
    assert observations([update(n) for n in range(1, 1000)], interval=3600.0) == []


@pytest.mark.slow
def test_curves_of_a_long_run_cover_all_of_it(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "navi_pipeline.lib.training.training_step.curve_charts", lambda curve, panels: drawn.append(curve) or []
    )
    observations([update(n) for n in range(1, 601)], interval=0.0)
    steps = list(drawn[-1]["step"])
    assert steps[0] == 1.0 and steps[-1] == 600.0 and 200 <= len(steps) <= 400
    counts = [sum(low < step <= low + 100 for step in steps) for low in range(0, 600, 100)]
    assert min(counts) >= 0.9 * max(counts), counts


def ticking(monkeypatch, minutes):
    """Yield an update every ten seconds of a fake clock."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("navi_pipeline.lib.training.training_step.time", SimpleNamespace(monotonic=lambda: clock.now))

    def updates():
        for number in range(1, 6 * minutes + 1):
            clock.now += 10.0
            yield update(number, number % 10)

    return updates()


def test_observations_have_metrics_and_few_have_curves(monkeypatch):
    seen = observations(ticking(monkeypatch, minutes=60), interval=30.0)
    pictured = [one.metadata["step"].value for one in seen if "curves" in one.metadata]
    # After 30 s, then 1, 2, 4, 8, 16 minutes more; at the end the remaining steps.
    assert pictured == [6.0 * minutes for minutes in (0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 60.0)]
    assert len(seen) == 121 and all({"step", "reward_ema", "steps_per_second"} <= set(one.metadata) for one in seen)


def test_last_curves_are_shown_after_a_trainer_failure(monkeypatch):
    updates = ticking(monkeypatch, minutes=2)

    def failing():
        yield from updates
        raise RuntimeError("out of memory")

    seen = observations(failing(), interval=30.0, fails=True)
    assert ["curves" in one.metadata for one in seen] == [True, False, True, False, True]
    assert seen[-1].metadata["step"].value == 12.0


def test_monitor_follows_the_rows_of_its_run_alone():
    """Also rows that were ingested meanwhile, and not those that were there before."""

    def write(run_id, step, **metrics):
        with MetricLog(outbox_path(), run_id, {}) as log:
            log.scalars(step, metrics)

    write("ppo-a", 64, sps=1.0)
    seen = []
    monitor = Monitor("ppo-a", seconds=60.0, on_update=lambda step, metrics: seen.append((step, metrics)))
    write("ppo-b", 128, sps=2.0)
    write("ppo-a", 128, sps=3.0, kl=math.nan)
    Warehouse().ingest()
    write("ppo-a", 192, sps=4.0)
    (outbox_path() / "0-metrics.ndjson").write_text("broken")
    assert not monitor() and not monitor() and (monitor.step, monitor.speeds) == (192, [3.0, 4.0])
    assert [step for step, _ in seen] == [128, 192] and seen[1][1] == {"sps": 4.0}
    write("ppo-a", 128, sps=5.0)
    monitor.read()
    assert monitor.step == 128 and monitor.speeds[-1] == 5.0, "a resumed run repeats its rows"
