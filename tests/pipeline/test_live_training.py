"""What is seen of a training run while it runs."""

import dagster as dg

from navi_pipeline.lib.live_training import LiveTraining

PARTITIONS = dg.StaticPartitionsDefinition(["quick"])
LINE = "17:00:01 ppo_policy/quick: step {:,}/10,000  reward_ema +0.25{}  kl 0.0101  ev 0.50  steps/s 1,250"


def observations(lines, interval):
    @dg.asset(partitions_def=PARTITIONS)
    def policy(context: dg.AssetExecutionContext) -> None:
        live = LiveTraining(context, interval=interval, title="ppo quick")
        for line in lines:
            live.line(line)

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([policy], instance=instance, partition_key="quick", run_config={
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}})  # fmt: skip
        assert result.success
        records = instance.fetch_observations(policy.key, limit=10_000).records
    return [record.asset_observation for record in reversed(records)]


def test_progress_and_curves_are_observations_of_the_partition():
    seen = observations(["scene a: unchanged", *(LINE.format(1000 * n, n) for n in range(1, 5))], interval=0.0)
    assert len(seen) == 4 and {one.partition for one in seen} == {"quick"}
    last = {name: value.value for name, value in seen[-1].metadata.items()}
    assert (last["step"], last["reward_ema"], last["steps_per_second"]) == (4000.0, 0.254, 1250.0)
    assert last["progress_percent"] == 40.0 and last["explained_variance"] == 0.5
    assert last["curves"].startswith("![curves so far](data:image/png;base64,")


def test_a_line_without_progress_and_one_within_the_interval_tell_nothing():
    lines = ["the run resumes from step 512", *(LINE.format(n, 0) for n in range(1, 1000))]
    assert observations(lines, interval=3600.0) == []


def test_the_curves_of_a_long_run_tell_of_its_beginning_as_of_its_end(monkeypatch):
    drawn = []
    monkeypatch.setattr("navi_pipeline.lib.pictures.reward_curves", lambda curve, title: drawn.append(curve) or b"")
    observations([LINE.format(n, 0) for n in range(1, 3001)], interval=0.0)
    steps = drawn[-1]["step"].tolist()
    assert steps[0] == 1.0 and steps[-1] == 3000.0 and 200 <= len(steps) <= 400
    counts = [sum(low < step <= low + 500 for step in steps) for low in range(0, 3000, 500)]
    assert min(counts) >= 0.9 * max(counts), counts
