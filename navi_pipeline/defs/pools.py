"""Pools: what must not run beside its like. The limits are in dagster_home/dagster.yaml."""

__all__ = ["GPU"]

GPU = "gpu"
"""What wants the whole machine, with or without a GPU: training, sweeps, nights. One such run at a time."""
