"""`navi sweep`: measure the cells of a sweep and print what they show."""

from typing import Any

import typer

from navi_core.config import parse_config
from navi_core.terminal import print_json, print_records, print_status
from navi_pipeline.lib.sweeps.catalogue import SWEEPS
from navi_pipeline.lib.sweeps.perform import perform_sweep
from navi_pipeline.settings import SweepConfig


def run_sweep(name: str | None, settings: dict[str, Any], *, again: bool = False, as_json: bool = False) -> None:
    """Make a sweep and print its table and verdicts; without a name, list the sweeps.

    Args:
        name: The sweep.
        settings: Of `SweepConfig`; None for what is not given.
        again: Measure every cell anew.
        as_json: Print JSON only.

    Raises:
        NaviError: As `perform_sweep`, and for settings that cannot be.
    """
    if name is None:
        if as_json:
            print_json({sweep.name: sweep.question for sweep in SWEEPS.values()})
        else:
            print_records("sweeps", [{"sweep": sweep.name, "question": sweep.question} for sweep in SWEEPS.values()])
        return
    config = parse_config(SweepConfig, {key: value for key, value in settings.items() if value is not None})
    result = perform_sweep(name, config, on_line=print_status, again=again)
    if as_json:
        print_json(result.document | {"reused": result.reused})
        return
    print_records(f"{name}, {config.profile}", result.rows)
    if result.verdicts:
        print_records("promotion checklist", [verdict.as_row() for verdict in result.verdicts])
        typer.echo("\n".join(verdict.sentence for verdict in result.verdicts))
    typer.echo(f"report: {result.report}")
