"""`navi bench interval`: how often the intervals over seeds and scenes, or over scenes and starts, cover the truth."""

from __future__ import annotations

from typing import Annotated

import typer

from navi_core.cli.bench.report import Json, figure, report
from navi_core.errors import ConfigError

__all__ = ["interval"]


def interval(
    seeds: Annotated[list[int] | None, typer.Option(min=2, max=1000, help="Training seeds; may be repeated.")] = None,
    scenes: Annotated[list[int] | None, typer.Option(min=2, max=10_000, help="Scenes; may be repeated.")] = None,
    starts: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1000, help="Starts of each scene, for the interval of two subjects; may be repeated."),
    ] = None,
    worlds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Simulated worlds of each row.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the worlds.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate worlds of known mean, and count how many of their 95 % intervals hold it."""
    from navi_core.bench.interval import simulate_interval, simulate_starts

    caption = "the interval's nominal coverage is 95 %"
    if starts:
        if seeds:
            raise ConfigError("--seeds and --starts ask for different intervals; give one of them")
        pairs = [(rows, columns) for rows in scenes or [2, 4, 8, 12, 20] for columns in starts]
        flown = [row.as_dict() for row in simulate_starts(pairs, worlds=worlds, seed=seed)]
        told = {
            "scenes": figure("scenes"),
            "starts": figure("starts"),
            "effects": figure("shape"),
            "σ scene": figure("scene_spread", ".1f"),
            "covered [%]": figure("covered", ".1f", 100.0),
            "above [%]": figure("above", ".1f", 100.0),
            "width": figure("width"),
            "bootstrap [%]": figure("bootstrap_covered", ".1f", 100.0),
        }
        caption += '; above: "better" said of equals; bootstrap: what that covers, used from 12 scenes on'
        report("interval", flown, told, as_json, threads=1, caption=caption)
        return
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
    report("interval", measured, columns, as_json, threads=1, caption=caption)
