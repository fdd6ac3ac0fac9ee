"""`navi sweep`: measure the cells of a sweep and print what they show."""

import json
from typing import Any

from navi_core.config import parse_config
from navi_core.terminal import print_status
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
        listed = {sweep.name: sweep.question for sweep in SWEEPS.values()}
        if as_json:
            print(json.dumps(listed))  # noqa: T201
        else:
            for known, question in listed.items():
                print(f"{known:<22} {question}")  # noqa: T201
        return
    config = parse_config(SweepConfig, {key: value for key, value in settings.items() if value is not None})
    result = perform_sweep(name, config, on_line=print_status, again=again)
    if as_json:
        document = {
            "sweep": name,
            "profile": config.profile,
            "rows": result.rows,
            "outcomes": {outcome.cell: outcome.status for outcome in result.outcomes},
            "verdicts": [verdict.as_dict() for verdict in result.verdicts],
            "report": str(result.report),
            "reused": result.reused,
        }
        print(json.dumps(document))  # noqa: T201
        return
    from navi_core.terminal import print_records

    print_records(f"{name}, {config.profile}", result.rows)
    if result.verdicts:
        print_records("promotion checklist", [verdict.as_row() for verdict in result.verdicts])
        for verdict in result.verdicts:
            print(verdict.sentence)  # noqa: T201
    print(f"report: {result.report}")  # noqa: T201
