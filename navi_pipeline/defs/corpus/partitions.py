"""Scenes are partitions: each is compiled, skipped and shown on its own."""

import dagster as dg

__all__ = ["scene_partitions"]

scene_partitions = dg.DynamicPartitionsDefinition(name="scene")
