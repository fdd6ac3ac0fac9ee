"""The report's part about who is better: differences with intervals, performance profiles, seeds × scenes."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from navi_pipeline.lib.reports.html_report import Part, table_part, text_part
from navi_pipeline.lib.reports.line_chart import interval_chart, line_chart

__all__ = ["comparison_parts"]

_SHOWN, _IN_FULL = 24, 4
_FIRST = ("c_vis_auc", "spl", "success")
"""Metrics whose differences are drawn; collisions are told in words."""


def comparison_parts(ask: Any) -> list[Part]:
    """Return the latest comparisons as HTML; nothing where none was made.

    Args:
        ask: Answers SQL with plain rows.
    """
    rows = ask(
        "select * from comparisons left join comparison_scenes using (comparison_id) "
        f"order by recorded_at desc, metric limit {_SHOWN}"
    )
    if not rows:
        return []
    parts: list[Part] = [
        text_part(
            "Paired differences a − b with their 95 % intervals. Over seeds and scenes they tell of ways of training: "
            "both are random, and better or worse is said from five seeds on. Over scenes and starts they tell of two "
            "subjects as they are. a_trained_on and b_trained_on count the scenes that a side was trained on: there it "
            "shows what it remembers."
        )
    ]
    for metric in _FIRST:
        bars = [
            (f"{r['a']} − {r['b']}", r["mean_difference"], r["low"], r["high"]) for r in rows if r["metric"] == metric
        ]
        if chart := interval_chart(bars, label=f"difference in {metric}"):
            parts += [f"<h3>{escape(metric)}</h3>", chart]
    told = ("metric", "a", "b", "mean_a", "mean_b", "iqm_a", "iqm_b", "mean_difference", "low", "high", "seeds",
            "scenes", "a_trained_on", "b_trained_on", "sentence")  # fmt: skip
    parts.append(table_part([{name: row[name] for name in told} for row in rows]))
    full = [row for row in rows if row["metric"] in _FIRST and row["profiles"] is not None][:_IN_FULL]
    for row in full:
        parts += _in_full(row)
    return parts


def _in_full(row: dict[str, Any]) -> list[Part]:
    """Return the profiles and the matrix of one comparison over seeds."""
    profiles, matrices = (_read(row[name]) for name in ("profiles", "matrices"))
    a, b, metric = str(row["a"]), str(row["b"]), str(row["metric"])
    curves = {a: (profiles["thresholds"], profiles["profile_a"]), b: (profiles["thresholds"], profiles["profile_b"])}
    chart = line_chart(curves, x=metric, y="share of seeds × scenes above")
    lines = []
    for side, name in (("a", a), ("b", b)):
        for seed, values in enumerate(matrices[side]):
            means = {scene: round(float(value), 1) for scene, value in zip(matrices["scenes"], values, strict=True)}
            lines.append({"seed": f"{name} {seed}", "mean": round(sum(values) / len(values), 1), **means})
    return [f"<h3>{escape(f'{a} against {b}, {metric}')}</h3>", chart, table_part(lines)]


def _read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
