"""Clock of the work inside assets, without orchestration."""

import inspect
import time

import pytest

from navi_pipeline.lib.orchestration import WORK, Work, now, worked, worked_as


@pytest.fixture(autouse=True)
def _fresh():
    WORK.clear()
    yield
    WORK.clear()


def test_worked_sums_calls_including_failed_ones():
    @worked
    def asset(seconds: float) -> float:
        """Sleep."""
        time.sleep(seconds)
        return 1 / seconds

    assert asset(0.02) == 50.0
    with pytest.raises(ZeroDivisionError):
        asset(0.0)
    (name,) = WORK
    assert name == "asset" and 0.02 <= WORK["asset"].wall < 1.0
    assert list(inspect.signature(asset).parameters) == ["seconds"] and asset.__doc__ == "Sleep."


def test_worked_as_counts_the_block_alone():
    began = now()
    with worked_as("inside"):
        sum(range(200_000))
    time.sleep(0.02)
    rest = (now() - began) - WORK["inside"]
    assert rest.wall >= 0.02 and Work(1.0, 2.0) + Work(0.5, 0.5) == Work(1.5, 2.5)
