"""`navi nightly`: a night by hand, as long or as short as wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from navi_core.cli.settings import add_settings

if TYPE_CHECKING:
    from navi_pipeline.settings import NightlyConfig


def register(app: typer.Typer) -> None:
    """Add `nightly` to the `navi` command, and its settings to `navi settings`."""
    app.command("nightly")(nightly)
    add_settings("nightly", _settings)


def _settings() -> type[NightlyConfig]:
    from navi_pipeline.settings import NightlyConfig

    return NightlyConfig


def nightly(
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Length [min]; up to 60 it is a small night of the profile quick.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file of settings (NightlyConfig).")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, a=b; may be repeated.")] = None,
    validation: Annotated[bool, typer.Option("--validation", help="Train nothing; evaluate the champion.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the night; the same name goes on where it stood.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Preflight, bounded training, resume proof, evaluation, benchmarks and drift, gated promotion, summary.

    The morning's summary is written to reports/ of the Navi home in Markdown and HTML. Ends with an error when a hard
    gate does not hold.
    """
    from navi_core.errors import RunError
    from navi_core.terminal import print_json, print_status, print_table
    from navi_pipeline.lib.nightly.night import nightly_config
    from navi_pipeline.lib.nightly.stages import run_night

    settings = nightly_config(minutes=minutes, file=config, assignments=assign or (), train=not validation)
    night, (markdown, page) = run_night(
        settings,
        name,
        report=print_status,
    )
    if as_json:
        print_json(
            {
                "night": night.name,
                "verdict": night.verdict,
                "stages": {stage.name: stage.status for stage in night.stages.values()},
                "failed": [gate.name for gate in night.failed],
                "warnings": [gate.name for gate in night.warnings],
                "markdown": str(markdown),
                "html": str(page),
            }
        )
    else:
        rows = [
            (stage.name, gate.name, "hard" if gate.hard else "soft", "yes" if gate.passed else "NO", gate.detail)
            for stage in night.stages.values()
            for gate in stage.gates
        ]
        print_table(f"night {night.name}: {night.verdict}", ("stage", "gate", "kind", "holds", "figures"), rows)
        typer.echo(f"summary: {markdown}\n         {page}")
    if night.failed:
        raise RunError(f"night {night.name} failed: {'; '.join(gate.name for gate in night.failed)}; see {markdown}")
