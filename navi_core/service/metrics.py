"""Counters, gauges and latencies of a server, as Prometheus reads them (text exposition format 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

__all__ = ["ServiceMetrics", "quantile"]

_BUCKETS_MS = (0.5, 1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0)
_RECENT = 1024
_WHOLE = 2.0**53
"""Below it a float tells all whole numbers apart."""


def quantile(values: list[float], share: float) -> float:
    """Return the nearest-rank quantile of values, 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class ServiceMetrics:
    """Numbers of one server; thread-safe.

    Args:
        prefix: Begins every name, for instance "navi_actor".
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._help: dict[str, str] = {}
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}

    def count(self, name: str, amount: float = 1, *, about: str = "") -> None:
        """Add to a counter."""
        with self._lock:
            self._help.setdefault(name, about)
            self._counters[name] = self._counters.get(name, 0) + amount

    def gauge(self, name: str, value: float, *, about: str = "") -> None:
        """Set a gauge."""
        with self._lock:
            self._help.setdefault(name, about)
            self._gauges[name] = value

    def latency(self, name: str, seconds: float, *, about: str = "") -> None:
        """Add one duration [s] to a histogram of milliseconds."""
        milliseconds = seconds * 1e3
        with self._lock:
            if name not in self._buckets:
                self._help[name], self._sums[name] = about, 0.0
                self._buckets[name], self._recent[name] = [0] * (len(_BUCKETS_MS) + 1), deque(maxlen=_RECENT)
            self._buckets[name][bisect_left(_BUCKETS_MS, milliseconds)] += 1
            self._sums[name] += milliseconds
            self._recent[name].append(milliseconds)

    def recent(self, name: str) -> list[float]:
        """Return the last thousand durations of a histogram [ms]."""
        with self._lock:
            return list(self._recent.get(name, ()))

    def counter(self, name: str) -> float:
        """Return a counter's value."""
        with self._lock:
            return self._counters.get(name, 0)

    def as_dict(self) -> dict[str, float]:
        """Return counters, gauges, and p50 and p99 of the recent durations [ms]."""
        with self._lock:
            found: dict[str, float] = {**self._counters, **self._gauges}
            for name, values in self._recent.items():
                found |= {f"{name}_p50": quantile(list(values), 0.5), f"{name}_p99": quantile(list(values), 0.99)}
        return found

    def text(self) -> str:
        """Return everything as Prometheus reads it."""
        lines: list[str] = []
        with self._lock:
            for kind, values in (("counter", self._counters), ("gauge", self._gauges)):
                for name, value in sorted(values.items()):
                    lines += [*self._head(name, kind), f"{self._prefix}_{name} {_told(value)}"]
            for name, buckets in sorted(self._buckets.items()):
                lines += [*self._head(name, "histogram"), *self._histogram(name, buckets)]
        return "\n".join(lines) + "\n"

    def _head(self, name: str, kind: str) -> list[str]:
        about = self._help.get(name) or name.replace("_", " ")
        return [f"# HELP {self._prefix}_{name} {about}", f"# TYPE {self._prefix}_{name} {kind}"]

    def _histogram(self, name: str, buckets: list[int]) -> list[str]:
        total, lines = 0, []
        for edge, count in zip((*_BUCKETS_MS, "+Inf"), buckets):
            total += count
            lines.append(f'{self._prefix}_{name}_bucket{{le="{edge}"}} {total}')
        return [*lines, f"{self._prefix}_{name}_sum {_told(self._sums[name])}", f"{self._prefix}_{name}_count {total}"]


def _told(value: float) -> str:
    """Write a number with every digit it has: rates are differences of counters, which lie in the last ones."""
    return str(int(value)) if abs(value) < _WHOLE and value == int(value) else repr(float(value))
