"""How many torch threads a CPU run uses: a rule by machine and network, so that equal runs stay equal."""

from __future__ import annotations

import os

from navi_core.config import TrainConfig

__all__ = ["thread_count"]

_MOST = 8


def thread_count(config: TrainConfig) -> int:
    """Return the number of torch threads.

    `config.threads` wins. Otherwise every core, up to 8, with one exception measured here: when idle
    OpenMP threads spin (the runtime's default), the small network's short operations wait for a busy
    second core and become 5 to 40 times slower, so it gets one thread. With OMP_WAIT_POLICY=passive,
    which the `navi` command sets, two threads were never slower than one, and 1.6 times faster in the
    update, also on a machine with four runnable processes a core.

    Args:
        config: The run's configuration.
    """
    if config.threads:
        return config.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    small = config.policy.encoder == "ring_cnn" and config.policy.azimuth_bins * config.policy.elevation_bins <= 4096
    spinning = os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive"
    return 1 if small and spinning else min(cores, _MOST)
