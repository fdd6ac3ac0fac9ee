"""Counters, gauges and latencies in the Prometheus format."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import time
import urllib.request

import pytest

from navi_core.service.server import HealthPages, ServiceMetrics


def exported(metrics: ServiceMetrics, name: str) -> str:
    found = re.search(rf"^navi_actor_{name} (\S+)$", metrics.text(), re.MULTILINE)
    assert found is not None, name
    return found[1]


@pytest.mark.parametrize(
    "value", [0, 3, 999_999, 1_000_001, 100_000_960, 2**53 - 1, 2**60 + 7, 0.5, 1 / 3, 1e-9, -7.25]
)
def test_exported_numbers_keep_all_digits(value: float) -> None:
    metrics = ServiceMetrics("navi_actor")
    metrics.count("decisions_total", value)
    metrics.gauge("serving_version", float(value))
    assert float(exported(metrics, "decisions_total")) == float(value)
    assert float(exported(metrics, "serving_version")) == float(value)


def test_whole_numbers_have_neither_point_nor_exponent() -> None:
    metrics = ServiceMetrics("navi_actor")
    metrics.count("decisions_total", 100_000_960)
    metrics.gauge("serving_version", 2_592_001.0)
    assert (exported(metrics, "decisions_total"), exported(metrics, "serving_version")) == ("100000960", "2592001")


def test_latency_sum_keeps_precision_after_days() -> None:
    metrics = ServiceMetrics("navi_actor")
    metrics.latency("inference_ms", 50_000.0)
    metrics.latency("inference_ms", 50_000.0)
    before = float(exported(metrics, "inference_ms_sum"))
    for _ in range(100):
        metrics.latency("inference_ms", 0.002)
    assert float(exported(metrics, "inference_ms_sum")) - before == pytest.approx(200.0)


def test_non_finite_numbers_have_prometheus_names() -> None:
    metrics = ServiceMetrics("navi_actor")
    for value in (math.nan, math.inf, -math.inf, 1e300):
        metrics.gauge("loss", value)
        again = float(exported(metrics, "loss"))
        assert again == value or (math.isnan(again) and math.isnan(value))


def test_slow_clients_of_the_pages_take_a_bounded_number_of_threads() -> None:
    pages = HealthPages("127.0.0.1:0", ServiceMetrics("navi_actor"), lambda: {"healthy": True})
    host, port = pages.url.removeprefix("http://").split(":")
    before, slow = threading.active_count(), []
    try:
        for _ in range(200):
            slow.append(socket.create_connection((host, int(port)), timeout=10))
            slow[-1].sendall(b"GET /hea")
        with urllib.request.urlopen(pages.url + "/health", timeout=10) as answer:
            assert json.load(answer)["healthy"]
        assert slow[0].recv(1) == b""
        until = time.monotonic() + 10
        while threading.active_count() - before > 64:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        for client in slow:
            client.close()
        pages.close()
