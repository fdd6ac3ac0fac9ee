"""How many torch threads a CPU run uses: a rule by machine and network, so that equal runs stay equal."""

from __future__ import annotations

import os

from navi_core.config import TrainConfig

__all__ = ["thread_count"]

_MOST = 8


def thread_count(config: TrainConfig) -> int:
    """Return the number of torch threads.

    `config.threads` wins. Otherwise the small network gets one thread: its operations are so short that
    waiting for a second busy core costs more than it brings (5 to 30 times slower in the worst case),
    while the patch encoder's matrix products gain nearly the number of cores.

    Args:
        config: The run's configuration.
    """
    if config.threads:
        return config.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    small = config.policy.encoder == "ring_cnn" and config.policy.azimuth_bins * config.policy.elevation_bins <= 4096
    return 1 if small else min(cores, _MOST)
