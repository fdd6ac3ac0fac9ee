"""Benchmark of kernels: generalised advantage estimation (GAE) and prioritised replay, against plain implementations.

GAE: the C++ kernel against the definition. Replay: items per second and exactness of the sampling, against cumulative
sums with a binary search.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.report import Option, Repeats, Report, Row, figure, report, sizes
from navi_core.bench.timing import clocks, median, take_turns
from navi_core.learn.estimators.losses import gae, gae_reference
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.learn.run.process import torch_threads

_DRAWS = 200_000


def run_replay(capacities: Sequence[int], batch: int, repeats: int, numbers: int = 8) -> list[Row]:
    """Benchmark prioritised replay with a sum tree against running sums, for several capacities.

    Args:
        capacities: Items.
        batch: Items of a call.
        repeats: Turns that each takes; the median counts.
        numbers: Numbers of an observation.

    Returns:
        Rows with the keys:
        name: `sum tree`, or `running sums` (numpy's cumsum and searchsorted, the slow twin).
        capacity: Items.
        batch: Items of a call.
        add: Items added per CPU-second; NaN for the twin.
        sample: Items drawn and fetched per CPU-second.
        update: Priorities changed per CPU-second.
        error: Largest difference of an item's share of 200,000 draws from its share of the priorities, in deviations
            of independent draws; strata keep it far below 4.
        nbytes: Memory of the items [bytes].
    """
    return [row for capacity in capacities for row in _measured(capacity, batch, repeats, numbers)]


def _measured(capacity: int, batch: int, repeats: int, numbers: int) -> list[Row]:
    g, nan = np.random.default_rng(capacity), float("nan")
    replay = PrioritizedReplay(capacity, seed=0)
    whole = {"obs": torch.zeros(capacity, numbers), "next": torch.zeros(capacity, numbers)}
    priorities = g.uniform(0.01, 10.0, capacity)
    replay.add(whole, priorities)
    part = {name: x[:batch] for name, x in whole.items()}
    fresh, weights = g.uniform(0.01, 10.0, batch), priorities**replay.alpha
    index = replay.sample(batch)[1]

    def fetch_by_sums() -> None:
        ends = np.cumsum(weights)
        drawn = torch.from_numpy(np.searchsorted(ends, g.uniform(0, ends[-1], batch)))
        for x in whole.values():
            x.index_select(0, drawn)

    calls = {
        "sample": lambda: replay.sample(batch),
        "update": lambda: replay.update(index, fresh),
        "twin": fetch_by_sums,
        "add": lambda: replay.add(part),
    }
    rate = {name: batch / max(median(times), 1e-9) for name, times in take_turns(calls, repeats).items()}
    shares = replay.priorities().numpy().copy()
    error, size = _error(replay, shares / shares.sum()), replay.nbytes
    return [
        {
            "name": "sum tree",
            "capacity": capacity,
            "batch": batch,
            "add": rate["add"],
            "sample": rate["sample"],
            "update": rate["update"],
            "error": error,
            "nbytes": size,
        },
        {
            "name": "running sums",
            "capacity": capacity,
            "batch": batch,
            "add": nan,
            "sample": rate["twin"],
            "update": nan,
            "error": nan,
            "nbytes": size,
        },
    ]


def _error(replay: PrioritizedReplay, share: np.ndarray) -> float:
    drawn = np.bincount(replay.sample(_DRAWS)[1].numpy(), minlength=len(share))
    return float((np.abs(drawn - _DRAWS * share) / np.sqrt(_DRAWS * share * (1 - share))).max())


def replay(
    capacity: Annotated[list[int] | None, Option(min=2, help="Items; may be repeated.")] = None,
    batch: Annotated[int, Option(min=1, help="Items of a call.")] = 256,
    repeats: Repeats = 50,
) -> Report:
    """Benchmark prioritised replays of several capacities."""
    rows = list(run_replay(capacity or [10_000, 100_000, 1_000_000], batch, repeats))
    return report(
        "prioritised replay",
        rows,
        {
            "draws by": figure("name"),
            "capacity": figure("capacity"),
            "batch": figure("batch"),
            "added/CPU-s": figure("add", ",.0f"),
            "drawn/CPU-s": figure("sample", ",.0f"),
            "updated/CPU-s": figure("update", ",.0f"),
            "error [deviations]": figure("error", ".2f"),
            "MB": figure("nbytes", ".1f", 1e-6),
        },
        words=1,
    )


_GAMMA, _LAMBDA = 0.99, 0.95
_SLOW = 64


def run_gae(sizes: Sequence[tuple[int, int]], repeats: int = 20) -> Iterator[Row]:
    """Benchmark the GAE kernel against a Python loop at every size on one thread.

    Args:
        sizes: Pairs (T, B).
        repeats: Timed turns; the median counts.

    Yields:
        Rows with the keys:
        way: Name of the implementation.
        steps: Time steps T.
        rows: Rows B.
        milliseconds: CPU time of a call.
        samples_per_cpu_second: Decisions per CPU-second.
        times_python: Ratio to the loop over numbers.
        error: Largest difference from that loop in float64, in units of the largest advantage; NaN where not
            compared.
    """
    for steps, rows in sizes:
        g = torch.Generator().manual_seed(0)
        rewards, values, boot = torch.randn(3, steps, rows, generator=g)
        end, cut = torch.rand(2, steps, rows, generator=g) < 0.01
        settings: dict[str, Any] = {"gamma": _GAMMA, "lam": _LAMBDA}
        some = [x[:, :_SLOW] for x in (rewards, values, end, cut, boot)]
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "C++ kernel": lambda: gae(rewards, values, end, cut, boot, **settings)[0],  # noqa: B023
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


def measure_gae(
    size: Annotated[
        list[str] | None, Option(flag="--size", help="Steps and rows; may be repeated.", metavar="TxB")
    ] = None,
    repeats: Repeats = 20,
) -> Report:
    """Benchmark the GAE kernel against a Python loop."""
    rows = list(run_gae(sizes(size or ["128x64", "128x4096"]), repeats))
    return report(
        "GAE",
        rows,
        {
            "way": figure("way"),
            "T": figure("steps"),
            "B": figure("rows"),
            "CPU [ms]": figure("milliseconds", ".3f"),
            "M samples/CPU-s": figure("samples_per_cpu_second", ".2f", 1e-6),
            "× Python loop": figure("times_python", ",.0f"),
            "error": figure("error", ".1e"),
        },
        words=1,
    )
