"""Automation: nights, sensors, freshness policies; all of it is off until it is switched on in the UI."""

from datetime import timedelta

import dagster as dg

from navi_pipeline.defs.automation.nights import JOBS, SCHEDULES
from navi_pipeline.defs.automation.sensors import SENSORS

FRESHNESS = {
    "warehouse": dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50)),
    "leaderboard": dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50)),
    "corpus": dg.FreshnessPolicy.time_window(warn_window=timedelta(days=30), fail_window=timedelta(days=90)),
}
"""Asset → how old it may be: what a night renews, and what changes with the scenes. Partitions have no policy."""


AUTOMATION = dg.Definitions(jobs=JOBS, schedules=SCHEDULES, sensors=SENSORS)
"""What runs by itself; all of it is off until it is switched on in the UI."""


def with_freshness(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Give an asset its policy."""
    policy = FRESHNESS.get(spec.key.to_user_string())
    return spec if policy is None else spec.replace_attributes(freshness_policy=policy)
