"""Sweeps are made in two sizes: capped cells, and as long as the question needs."""

import dagster as dg

__all__ = ["size_partitions"]

size_partitions = dg.StaticPartitionsDefinition(["quick", "full"])
