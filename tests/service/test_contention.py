"""Contention of two actors for one drone is detected; a restarted actor is none."""

from __future__ import annotations

import logging
import time

import pytest

from navi_core.service.environment.step_requests import Contention
from navi_core.service.server import ServiceMetrics
from navi_core.service.wire import StepRequest
from tests.service.conftest import requester
from tests.service.test_servers import ask, command


@pytest.mark.parametrize(
    ("asked", "contended"),
    [
        ([("a", 0), ("a", 1), ("a", 2)], 0),
        ([("a", 0), ("b", 1), ("b", 2), ("c", 3)], 0),  # started again twice
        ([("a", 0), ("b", 0.1), ("a", 0.2), ("b", 0.3)], 2),
        ([("a", 0), ("a", 1), ("b", 1.1), ("b", 1.2), ("a", 2)], 1),
        ([("a", 0), ("b", 1), ("a", 7)], 0),  # a peer that returns after so long is a regular takeover
        ([("a", 0), ("b", 4), ("b", 6), ("a", 7)], 0),
        ([("a", 0), ("b", 1), ("a", 6)], 0),
        ([("a", 0), ("b", 1), ("a", 5)], 1),
        ([("a", 0), ("b", 1), ("c", 2), ("a", 3), ("b", 4), ("c", 5)], 3),  # three in a round
    ],
)
def test_contention_needs_peers_in_turns(asked, contended) -> None:
    contention = Contention(metrics := ServiceMetrics("navi_environment"), 5.0)
    for peer, now in asked:
        contention.record([3], peer.encode(), now)
        contention.record([4], b"another drone's", now)
    assert metrics.counter("contended_total") == contended


def test_contention_is_warned_of_once_in_ten_seconds(caplog) -> None:
    contention = Contention(ServiceMetrics("navi_environment"), 5.0)
    with caplog.at_level(logging.WARNING, logger="navi.service"):
        for step in range(13):
            contention.record([3], b"ab"[step % 2 :][:1], float(step))
    assert len(caplog.records) == 2  # after 2 s and after 12


def test_reconnecting_peers_use_bounded_memory() -> None:
    contention = Contention(metrics := ServiceMetrics("navi_environment"), 5.0)
    for step in range(100):
        contention.record([3], str(step).encode(), 0.01 * step)
    assert len(contention._peers[3]) < 10 and metrics.counter("contended_total") == 0


def test_environment_warns_of_two_actors(stage, caplog) -> None:
    server = stage.environment(sessions=2, first_env_id=10)
    caplog.set_level(logging.WARNING, logger="navi.service")
    with requester(server.answer_endpoint) as one, requester(server.answer_endpoint) as other:
        for step in range(1, 5):
            ask(one, StepRequest(command(10, step), step, time.time()))
            ask(other, StepRequest(command(11, step), step, time.time()))
        assert server.metrics.counter("contended_total") == 0
        for step in range(5, 9):
            ask(other, StepRequest(command(10, step), step, time.time()))
            ask(one, StepRequest(command(10, step), step, time.time()))
    assert server.metrics.counter("contended_total") == 7
    assert [r.getMessage()[:40] for r in caplog.records].count("drone 10 is flown by two actors in turns") == 1
