"""Training profiles are partitions: one per preset."""

import dagster as dg

from navi_core.presets import preset_names

__all__ = ["profile_partitions"]

profile_partitions = dg.StaticPartitionsDefinition(list(preset_names()))
