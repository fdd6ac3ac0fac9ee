"""`navi ablate`: one changed setting at a time, several seeds, evaluation on held-out scenes."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add `ablate` to the `navi` command."""
    app.command("ablate")(ablate)


def ablate(
    variants: Annotated[
        list[str] | None, typer.Argument(help="What to change; without one, everything. See --list.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the ablation, in its rows and its page.")] = "ablation",
    preset: Annotated[str, typer.Option(help="Settings that do not vary: a preset or a .yaml file.")] = "demo",
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting of all variants, a.b=c.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A variant of your own and a setting of it, name:a.b=c; may be repeated.", metavar="V"),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Decisions that a cell trains.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Training seeds of each variant.")] = None,
    train: Annotated[
        list[str] | None, typer.Option(help="Scenes to train in, family:seeds; may be repeated.", metavar="S")
    ] = None,
    scene: Annotated[
        list[str] | None, typer.Option("--scene", help="Unseen scenes to fly in; may be repeated.", metavar="S")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="Length of those flights: quick or full.")] = None,
    cells: Annotated[int | None, typer.Option(min=0, help="Cells to measure now; 0 shows what is known.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Cells at the same time, each on one core.")] = 1,
    listed: Annotated[bool, typer.Option("--list", help="Show the variants and what they ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ablations: each variant is trained with several seeds and flown on unseen scenes, against the base.

    Cells that are done are not measured again, so it may be stopped, or made in pieces with --cells. The table holds
    the paired difference to the base with its two-way interval over seeds and scenes.
    """
    from navi_core.terminal import print_json, print_records, print_status
    from navi_pipeline.lib.ablations.catalogue import VARIANTS

    if listed:
        print_records("variants", [{"variant": v.name, "question": v.question} for v in VARIANTS.values()])
        return
    from navi_core.config import parse_config
    from navi_core.presets import parse_assignments
    from navi_pipeline.lib.ablations.perform import perform_ablation
    from navi_pipeline.settings import AblationConfig

    given = {"preset": preset, "base": parse_assignments(assign or ()), "variants": _variants(vary or ()),
             "steps": steps, "seeds": seeds, "train": train, "scenes": scene, "protocol": protocol}  # fmt: skip
    config = parse_config(AblationConfig, {key: value for key, value in given.items() if value is not None})
    done = perform_ablation(variants or (), config, name=name, cells=cells, jobs=jobs, on_line=print_status)
    if as_json:
        print_json({"rows": done.rows, "sentences": done.sentences, "waiting": done.waiting, "skipped": done.skipped,
                    "report": str(done.report)})  # fmt: skip
        return
    print_records(f"ablation {name}", done.rows)
    for sentence in done.sentences:
        typer.echo(sentence)
    for variant, why in done.skipped.items():
        typer.echo(f"{variant} {why}: left out")
    if done.waiting:
        typer.echo(f"{done.waiting} cells wait; the same command goes on with them")
    typer.echo(f"report: {done.report}")


def _variants(entries: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of variants of one's own by name."""
    from navi_core.errors import ConfigError
    from navi_core.presets import parse_assignments

    assignments: dict[str, list[str]] = {}
    for entry in entries:
        name, separator, assignment = entry.partition(":")
        if not name or not separator:
            raise ConfigError(f"--vary {entry!r} is not name:a.b=c, for instance unhurried:ppo.learning_rate=1e-4")
        assignments.setdefault(name, []).append(assignment)
    return {name: parse_assignments(own) for name, own in assignments.items()}
