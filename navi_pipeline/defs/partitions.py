"""Partitions of the asset graph, when its assets are renewed, and the pool of runs that need the whole machine."""

from datetime import timedelta

import dagster as dg

from navi_core.errors import ConfigError
from navi_pipeline.lib.orchestration import FLOW_TAG

profile_partitions = dg.DynamicPartitionsDefinition(name="profile")
"""Partitions by training profile (preset), of those that somebody asked for."""
seed_partitions = dg.DynamicPartitionsDefinition(name="seed")
"""Partitions by seed of the training."""
policy_partitions = dg.MultiPartitionsDefinition({"profile": profile_partitions, "seed": seed_partitions})
"""Partitions of policies: profile and seed."""
scene_partitions = dg.DynamicPartitionsDefinition(name="scene")
"""Dynamic partitions by planned scene: each scene is compiled, skipped and shown separately."""
size_partitions = dg.DynamicPartitionsDefinition(name="size")
"""Dynamic partitions by size of the sweeps that somebody asked for: quick (capped cells) or full."""
night_partitions = dg.DynamicPartitionsDefinition(name="night")
"""Dynamic partitions by name of a night."""

DAILY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50))
"""Freshness of assets that every night renews. Partitioned assets have no freshness policy."""

_CONDITION = dg.AutomationCondition
# A flow makes what follows itself; a run of it that was executed again is alone.
_ALONE = _CONDITION.executed_with_tags(tag_values={FLOW_TAG: ""})
_UPDATED = _CONDITION.newly_updated() & (~_CONDITION.executed_with_tags(tag_keys={FLOW_TAG}) | _ALONE)
WHEN_UPDATED = (
    _CONDITION.any_deps_match(_UPDATED).since(_CONDITION.newly_requested() | _CONDITION.newly_updated())
    & ~_CONDITION.in_progress()
    & ~_CONDITION.any_deps_in_progress()
)
"""Automation condition: something that the asset is made of was made since, and is not being made."""
WHEN_SETTLED = WHEN_UPDATED & ~_CONDITION.any_deps_match(_CONDITION.newly_updated())
"""Automation condition: as `WHEN_UPDATED`, one tick later, when what follows the same update is in progress."""


def register_policy(instance: dg.DagsterInstance, profile: str, seed: int) -> dg.MultiPartitionKey:
    """Add a profile and a seed to the partitions, and return the partition key of their policies."""
    for partitions, key in ((profile_partitions, profile), (seed_partitions, str(seed))):
        instance.add_dynamic_partitions(str(partitions.name), [key])
    return dg.MultiPartitionKey({"profile": profile, "seed": str(seed)})


def policy_of(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> tuple[str, int]:
    """Return profile and seed of a run's partition.

    Raises:
        ConfigError: The seed is no number.
    """
    profile, _, seed = context.partition_key.rpartition("|")
    if not seed.isdecimal():
        raise ConfigError(f"seed {seed!r} of partition {context.partition_key!r}; allowed: 0, 1, 2, …")
    return profile, int(seed)
