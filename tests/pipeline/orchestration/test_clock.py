"""Clock of the work inside assets, without orchestration."""

import inspect
import time

import dagster as dg
import pytest

from navi_pipeline.lib.orchestration import WORK, Work, now, rounded, worked, worked_as


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
