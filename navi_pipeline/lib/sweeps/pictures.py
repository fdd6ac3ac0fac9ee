"""Drawings of a sweep: its first figure by level, and how rewards grew; matplotlib is imported when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from navi_pipeline.lib.reports.pictures import new_figure, png
from navi_pipeline.lib.sweeps.cells import Outcome
from navi_pipeline.lib.sweeps.summary import Verdict

__all__ = ["draw_sweep", "draw_verdicts"]


def draw_sweep(outcomes: Sequence[Outcome], shown: Sequence[str], title: str) -> bytes:
    """Draw the first figures by level, a point for each cell and a bar for the mean, and the reward curves.

    Args:
        outcomes: Of a sweep.
        shown: Figures; the first two are drawn.
        title: Of the picture.

    Returns:
        A PNG file.
    """
    levels = list(dict.fromkeys(outcome.level for outcome in outcomes))
    curves = any(outcome.curve for outcome in outcomes)
    names = list(shown[:2])
    figure = new_figure(3.6 * (len(names) + curves), 3.0)
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(1, len(names) + curves, place)
        for index, level in enumerate(levels):
            values = [o.metrics.get(name, math.nan) for o in outcomes if o.level == level and o.status == "ok"]
            if values:
                axes.bar(index, sum(values) / len(values), color=f"C{index % 10}", alpha=0.5)
                axes.plot([index] * len(values), values, "k.", ms=4)
            else:
                axes.text(index, 0, next(o.status for o in outcomes if o.level == level), rotation=90, fontsize=7)
        axes.set_xticks(range(len(levels)), levels, rotation=30, fontsize=7)
        axes.set_title(name.replace("_", " "), fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3, axis="y")
    if curves:
        axes = figure.add_subplot(1, len(names) + 1, len(names) + 1)
        for outcome in outcomes:
            if outcome.curve:
                steps, rewards = zip(*outcome.curve, strict=True)
                colour = f"C{levels.index(outcome.level) % 10}"
                first = outcome is next(o for o in outcomes if o.level == outcome.level)
                axes.plot(steps, rewards, lw=1, color=colour, label=outcome.level if first else None)
        axes.set_title("reward ema by decisions", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=6)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=9)
    return png(figure)


def draw_verdicts(verdicts: Sequence[Verdict], incumbent: str) -> bytes:
    """Draw each challenger's difference in reward with its interval; 0 is the incumbent.

    Args:
        verdicts: Of the challengers.
        incumbent: The core that they challenge.

    Returns:
        A PNG file.
    """
    figure = new_figure(5.0, 0.9 + 0.5 * max(1, len(verdicts)))
    axes = figure.add_subplot(1, 1, 1)
    for index, verdict in enumerate(verdicts):
        reward = verdict.reward
        if reward is not None:
            colour = "C2" if verdict.promote else "C7"
            axes.plot([reward.low, reward.high], [index, index], lw=3, color=colour)
            axes.plot([reward.mean], [index], "ko", ms=5)
    axes.axvline(0, color="k", lw=0.8)
    axes.set_yticks(range(len(verdicts)), [verdict.core for verdict in verdicts], fontsize=8)
    axes.set_ylim(-0.6, len(verdicts) - 0.4)
    axes.set_xlabel(f"final reward_ema less that of {incumbent}, 95 % interval over seeds", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3, axis="x")
    return png(figure)
