"""Dagster automation: nightly jobs, sensors, freshness policies; schedules and sensors start switched off."""

from datetime import timedelta

import dagster as dg

from navi_pipeline.defs.automation.nights import JOBS, SCHEDULES
from navi_pipeline.defs.automation.sensors import SENSORS

FRESHNESS = {
    "warehouse": dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50)),
    "leaderboard": dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50)),
    "corpus": dg.FreshnessPolicy.time_window(warn_window=timedelta(days=30), fail_window=timedelta(days=90)),
}
"""Asset → freshness policy: assets that a night renews or scenes change. Partitioned assets have none."""


AUTOMATION = dg.Definitions(jobs=JOBS, schedules=SCHEDULES, sensors=SENSORS)
"""Dagster definitions of jobs, schedules and sensors; schedules and sensors are off until switched on in the UI."""


def with_freshness(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Attach the freshness policy of its asset to a spec."""
    policy = FRESHNESS.get(spec.key.to_user_string())
    return spec if policy is None else spec.replace_attributes(freshness_policy=policy)
