"""Viewer probe of a night: attaches to a training in progress and warns if it cannot."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.errors import WireError
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.world import Field, NavigationEnv
from navi_pipeline.lib.nightly.training import probe_viewer


def test_viewer_probe_finds_the_training_and_its_observation(apartments):
    env = NavigationEnv(Field(apartments[:1]), 2, EnvConfig(azimuth_bins=16, elevation_bins=8), seed=1)
    with TrainingBroadcast("nightly-tonight-abc", "ppo") as broadcast, ThreadPoolExecutor(1) as pool:
        watched = broadcast.watch(env)
        probe = pool.submit(probe_viewer, "nightly-tonight-", lambda: True, threading.Event())
        deadline = time.monotonic() + 20
        while not watched.shown and time.monotonic() < deadline:
            watched.step(torch.zeros(2, 4))
            time.sleep(0.02)
        gate = probe.result()
    assert gate.passed and not gate.hard
    assert gate.detail.startswith("nightly-tonight-abc@tcp://127.0.0.1:") and "observation of 16x8" in gate.detail


def test_viewer_probe_warns_without_an_announced_training():
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(probe_viewer, "nightly-other-", lambda: True, over)
        try:
            with pytest.raises(TimeoutError):
                probe.result(0.5)  # it searches
        finally:
            over.set()
        gate = probe.result(5.0)
    assert not gate.passed and not gate.hard and "before a viewer attached" in gate.detail


def test_error_of_the_viewer_is_a_failed_soft_gate(monkeypatch):
    def refuses():
        raise WireError("no such endpoint")

    monkeypatch.setattr("navi_core.service.viewing.feed.announced", refuses)
    gate = probe_viewer("nightly-other-", lambda: True, threading.Event())
    assert not gate.passed and not gate.hard and gate.detail == "WireError: no such endpoint"
