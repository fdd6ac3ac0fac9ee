"""Prioritised replay: items a second, and how exactly it draws, beside running sums with a search."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch

from navi_core.bench.report import Column, Option, Repeats, Report, Row, figure, report
from navi_core.bench.timing import median, take_turns
from navi_core.learn.replay.prioritized import PrioritizedReplay

_DRAWS = 200_000


def run_replay(capacities: Sequence[int], batch: int, repeats: int, numbers: int = 8) -> list[Row]:
    """Measure replays of several capacities.

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
    """Time prioritised replays of several capacities."""
    rows = list(run_replay(capacity or [10_000, 100_000, 1_000_000], batch, repeats))
    columns: dict[str, Column] = {
        "draws by": figure("name"),
        "capacity": figure("capacity"),
        "batch": figure("batch"),
        "added/CPU-s": figure("add", ",.0f"),
        "drawn/CPU-s": figure("sample", ",.0f"),
        "updated/CPU-s": figure("update", ",.0f"),
        "error [deviations]": figure("error", ".2f"),
        "MB": figure("nbytes", ".1f", 1e-6),
    }
    return report("prioritised replay", rows, columns, words=1)
