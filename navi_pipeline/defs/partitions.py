"""Partitions of the graph, and the pool of what wants the whole machine."""

import dagster as dg

from navi_core.presets import preset_names

profile_partitions = dg.StaticPartitionsDefinition(list(preset_names()))
"""Training profiles, one for each preset."""
scene_partitions = dg.DynamicPartitionsDefinition(name="scene")
"""Planned scenes: each is compiled, skipped and shown by itself."""
size_partitions = dg.StaticPartitionsDefinition(["quick", "full"])
"""Sizes of the sweeps: capped cells, or as long as the question needs."""

GPU = "gpu"
"""Pool of training, sweeps, studies and nights: one such run at a time, with or without a GPU.

The limit is in dagster_home/dagster.yaml.
"""
