"""Generalised advantage estimation: the compiled loop beside the tensor program, numpy, and the definition."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.report import Column, Option, Repeats, Report, Row, figure, report, sizes
from navi_core.bench.timing import clocks, median, take_turns
from navi_core.learn.estimators.advantages import gae, gae_reference, gae_tensors
from navi_core.learn.run.threads import torch_threads

_GAMMA, _LAMBDA = 0.99, 0.95
_SLOW = 64


def run_gae(sizes: Sequence[tuple[int, int]], repeats: int = 20) -> Iterator[Row]:
    """Measure every way at every size on one thread.

    Args:
        sizes: (T, B) each.
        repeats: Turns; the median counts.

    Yields:
        Rows with the keys:
        way: Which one.
        steps: T.
        rows: B.
        milliseconds: CPU time of a call.
        samples_per_cpu_second: Decisions.
        times_python: Ratio to the loop over numbers.
        error: Largest difference from that loop in float64, in units of the largest advantage; NaN where not
            compared.
    """
    for steps, rows in sizes:
        g = torch.Generator().manual_seed(0)
        rewards, values, boot = torch.randn(3, steps, rows, generator=g)
        end, cut = torch.rand(2, steps, rows, generator=g) < 0.01
        settings: dict[str, Any] = {"gamma": _GAMMA, "lam": _LAMBDA}
        arrays = [x.numpy() for x in (rewards, values, end, cut, boot)]
        some = [x[:, :_SLOW] for x in (rewards, values, end, cut, boot)]
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "compiled loop": lambda: gae(rewards, values, end, cut, boot, **settings)[0],  # noqa: B023
            "tensor program": lambda: gae_tensors(rewards, values, end, cut, boot, **settings)[0],  # noqa: B023
            "numpy": lambda: torch.from_numpy(_numpy(*arrays)),  # noqa: B023
        }
        expected, _ = gae_reference(*(x.double() if x.is_floating_point() else x for x in some), **settings)
        with torch_threads(1):
            cpu = clocks()[0]
            gae_reference(*some, **settings)
            python = (clocks()[0] - cpu) / min(rows, _SLOW) * rows
            taken = take_turns(ways, repeats)
        yield {
            "way": "python loop",
            "steps": steps,
            "rows": rows,
            "milliseconds": 1e3 * python,
            "samples_per_cpu_second": steps * rows / python,
            "times_python": 1.0,
            "error": 0.0,
        }
        for name, way in ways.items():
            seconds = max(median(taken[name]), 1e-9)
            off = (way()[:, :_SLOW].double() - expected).abs().max() / expected.abs().max()
            yield {
                "way": name,
                "steps": steps,
                "rows": rows,
                "milliseconds": 1e3 * seconds,
                "samples_per_cpu_second": steps * rows / seconds,
                "times_python": python / seconds,
                "error": float(off),
            }


def _numpy(rewards: np.ndarray, values: np.ndarray, end: np.ndarray, cut: np.ndarray, boot: np.ndarray) -> np.ndarray:
    """Step by step over rows at once, as most trainers do on a CPU."""
    advantages, later = np.empty_like(rewards), np.zeros(rewards.shape[1], dtype=rewards.dtype)
    for t in reversed(range(len(rewards))):
        last = cut[t] if t < len(rewards) - 1 else np.ones_like(cut[t])
        following = np.where(last, boot[t], values[min(t + 1, len(values) - 1)])
        going = ~end[t]
        difference = rewards[t] + np.float32(_GAMMA) * following * going - values[t]
        later = difference + np.float32(_GAMMA * _LAMBDA) * (going & ~last) * later
        advantages[t] = later
    return advantages


def measure_gae(
    size: Annotated[
        list[str] | None, Option(flag="--size", help="Steps and rows; may be repeated.", metavar="TxB")
    ] = None,
    repeats: Repeats = 20,
) -> Report:
    """Time every implementation of advantages."""
    rows = list(run_gae(sizes(size or ["128x64", "128x4096"]), repeats))
    columns: dict[str, Column] = {
        "way": figure("way"),
        "T": figure("steps"),
        "B": figure("rows"),
        "CPU [ms]": figure("milliseconds", ".3f"),
        "M samples/CPU-s": figure("samples_per_cpu_second", ".2f", 1e-6),
        "× Python loop": figure("times_python", ",.0f"),
        "error": figure("error", ".1e"),
    }
    return report("GAE", rows, columns, words=1)
