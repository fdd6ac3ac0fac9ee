"""Progress of a run: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Progress", "console_progress"]

_SHOWN = (
    ("reward_ema", "reward_ema", "+.4f"),
    ("episode_return", "return", ".2f"),
    ("nll", "NLL", ".3f"),
    ("validation_nll", "held out", ".3f"),
    ("approx_kl", "kl", ".4f"),
    ("explained_variance", "ev", ".2f"),
    ("sps", "steps/s", ",.0f"),
)
"""Metric, label, format."""
_LOG = logging.getLogger("navi.learn")


@dataclass(frozen=True)
class Progress:
    """The state of a run after an update.

    Attributes:
        steps: Decisions so far, summed over rows.
        total_steps: Decisions at which the run ends; None if it ends when stopped.
        updates: Updates so far.
        metrics: Metrics of the latest update.
        stages: Time of each stage of the latest update by phase [ms].
    """

    steps: int
    total_steps: int | None
    updates: int
    metrics: dict[str, float]
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def line(self) -> str:
        """One line for people."""
        m = self.metrics
        goal = f"/{self.total_steps:,}" if self.total_steps is not None else ""
        parts = [f"step {self.steps:,}{goal}"]
        parts += [f"{label} {m[name]:{form}}" for name, label, form in _SHOWN if name in m]
        return "  ".join(parts)


@contextmanager
def console_progress(title: str = "train") -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress on standard error.

    Args:
        title: Name of the run.
    """
    if not sys.stderr.isatty():
        yield lambda progress: _LOG.info("%s: %s", title, progress.line())
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(title, total=None, line="first rollout …")
        yield lambda p: bar.update(task, completed=p.steps, total=p.total_steps, line=p.line())
