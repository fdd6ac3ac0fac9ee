"""Partitions of the asset graph, freshness of its ends, and the pool of runs that need the whole machine."""

from datetime import timedelta

import dagster as dg

from navi_core.presets import preset_names

profile_partitions = dg.StaticPartitionsDefinition(list(preset_names()))
"""Static partitions by training profile, one for each preset."""
scene_partitions = dg.DynamicPartitionsDefinition(name="scene")
"""Dynamic partitions by planned scene: each scene is compiled, skipped and shown separately."""
size_partitions = dg.StaticPartitionsDefinition(["quick", "full"])
"""Static partitions by size of the sweeps: quick (capped cells) or full."""

DAILY = dg.FreshnessPolicy.time_window(warn_window=timedelta(hours=26), fail_window=timedelta(hours=50))
"""Freshness of assets that every night renews. Partitioned assets have no freshness policy."""

GPU = "gpu"
"""Concurrency pool of training, sweeps, studies and nights: one such run at a time, or one a GPU.

The limit of a CPU is in dagster_home/dagster.yaml; `WatchedRunLauncher` sets that of GPUs.
"""
