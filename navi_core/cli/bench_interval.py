"""`navi bench interval`: how often the interval over seeds and scenes covers the truth."""

from __future__ import annotations

from typing import Annotated

import typer

from navi_core.cli.bench_report import Json, figure, report

__all__ = ["interval"]


def interval(
    seeds: Annotated[list[int] | None, typer.Option(min=2, max=1000, help="Training seeds; may be repeated.")] = None,
    scenes: Annotated[list[int] | None, typer.Option(min=2, max=10_000, help="Scenes; may be repeated.")] = None,
    worlds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Simulated worlds of each row.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the worlds.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate worlds of known mean, and count how many of their 95 % intervals hold it."""
    from navi_core.bench.interval import simulate_interval

    designs = [(rows, columns) for rows in seeds or [3, 5, 8] for columns in scenes or [4, 20]]
    measured = [row.as_dict() for row in simulate_interval(designs, worlds=worlds, seed=seed)]
    columns = {
        "seeds": figure("seeds"),
        "scenes": figure("scenes"),
        "σ seed": figure("seed_spread", ".1f"),
        "σ scene": figure("scene_spread", ".1f"),
        "σ error": figure("error_spread", ".1f"),
        "covered [%]": figure("covered", ".1f", 100.0),
        "width": figure("width"),
    }
    report("interval", measured, columns, as_json, threads=1, caption="the interval's nominal coverage is 95 %")
