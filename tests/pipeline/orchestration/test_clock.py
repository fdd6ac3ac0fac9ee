"""Clock of the work inside assets, without orchestration."""

import inspect
import json
import time

import dagster as dg
import pytest

from navi_core.record import row_context
from navi_pipeline.lib.orchestration import WORK, Work, now, rounded, worked, worked_as
from navi_pipeline.lib.warehouse.warehouse import Warehouse


@pytest.fixture(autouse=True)
def _fresh():
    WORK.clear()
    yield
    WORK.clear()


def test_worked_sums_calls_including_failed_ones():
    @worked
    def asset(seconds: float) -> dg.MaterializeResult:
        """Sleep."""
        time.sleep(seconds)
        return dg.MaterializeResult(metadata={"rate": 1 / seconds})

    assert asset(0.02).metadata == {"rate": 50.0}
    with pytest.raises(ZeroDivisionError):
        asset(0.0)
    (name,) = WORK
    assert name == "asset" and 0.02 <= WORK["asset"].wall < 1.0
    assert list(inspect.signature(asset).parameters) == ["seconds"] and asset.__doc__ == "Sleep."


def test_metadata_are_rounded_for_people():
    given = {"c_vis": 76.9510084836268, "area": 1.808811895133302, "scenes": 44, "name": "a", "zero": 0.0}
    assert rounded(given) == {"c_vis": 76.95, "area": 1.809, "scenes": 44, "name": "a", "zero": 0.0}

    @worked
    def check() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True, metadata={"mean": 2 / 3})

    assert check().metadata["mean"].value == 0.6667


def test_worked_as_counts_the_block_alone():
    began = now()
    with worked_as("inside"):
        sum(range(200_000))
    time.sleep(0.02)
    rest = (now() - began) - WORK["inside"]
    assert rest.wall >= 0.02 and Work(1.0, 2.0) + Work(0.5, 0.5) == Work(1.5, 2.5)


def test_check_evaluations_become_rows_of_their_dagster_run(monkeypatch):
    monkeypatch.delenv("NAVI_DAGSTER_RUN_ID", raising=False)
    seen = []

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["p"]))
    @worked
    def thing() -> dg.MaterializeResult:
        seen.append(row_context()["dagster_run_id"])
        return dg.MaterializeResult()

    @dg.asset_check(asset=thing)
    @worked
    def is_good() -> dg.AssetCheckResult:
        """Find it bad."""
        return dg.AssetCheckResult(
            passed=False, severity=dg.AssetCheckSeverity.WARN, description="bad", metadata={"x": 1.5}
        )

    job = dg.Definitions(assets=[thing], asset_checks=[is_good]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        run = job.execute_in_process(partition_key="p", instance=instance)
    Warehouse().ingest()
    (row,) = Warehouse().query("from checks").to_dict("records")
    assert (row["asset"], row["check_name"], row["severity"], bool(row["passed"])) == (
        "thing",
        "is_good",
        "WARN",
        False,
    )
    assert json.loads(row["metadata"]) == {"x": 1.5} and row["description"] == "bad"
    assert seen == [run.run_id] == [row["dagster_run_id"]]
    assert is_good() and len(Warehouse().query("from checks")) == 1, "outside of Dagster nothing is recorded"
