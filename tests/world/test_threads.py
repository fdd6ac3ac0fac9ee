"""Threads of a field's kernels: numba starts at most as many as at import, which a container's quota limits."""

import logging

import numba

from navi_core.scenes import Scene
from navi_core.world import Field


def test_threads_beyond_the_numba_limit_warn_once(box_scene: Scene, monkeypatch, caplog) -> None:
    before = numba.get_num_threads()
    with monkeypatch.context() as quota, caplog.at_level(logging.WARNING, logger="navi.world"):
        quota.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
        for threads in (1, 3, 3):
            Field([box_scene], threads=threads)
    numba.set_num_threads(before)
    (reported,) = caplog.messages
    assert reported.startswith("threads 3: kernels in numba take 1, ")
