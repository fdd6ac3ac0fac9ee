"""`navi demos`: record expert demonstrations, ingest recordings from elsewhere, inspect and export datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli.pages import record_by_hand
from navi_core.errors import ConfigError, as_argument
from navi_core.terminal import print_json, print_next, print_records, progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from navi_core.demos import Demonstration, Student

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Scenes = Annotated[
    list[str] | None,
    typer.Option(
        "--scenes",
        "--scene",
        metavar="S",
        help="A .gmdag or mesh file, a folder of meshes, or family:seeds as in apartment:0-15; may be repeated.",
    ),
]


app = typer.Typer(name="demos", help="Demonstrations: record, ingest, inspect, export.", no_args_is_help=True)


# More than 60 lines: flags and their help.
@app.command()
def expert(
    out: Annotated[Path, typer.Option(help="Folder of the recording; given again, it goes on.")],
    scene: Scenes = None,
    pilot: Annotated[
        str, typer.Option(help="The teacher: frontier, planner (privileged), or any other pilot.")
    ] = "frontier",
    episodes: Annotated[int, typer.Option(help="Episodes per scene.")] = 8,
    steps: Annotated[int, typer.Option(help="Decisions per episode.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of starts and disturbance.")] = 0,
    noise: Annotated[
        float, typer.Option(help="Disturbance that is flown but not recorded (DART), as a share of full command.")
    ] = 0.0,
    noise_hold: Annotated[
        int, typer.Option(help="Decisions for which a disturbance is kept, and one of teacher and student flies.")
    ] = 3,
    student: Annotated[
        str | None,
        typer.Option(
            "--student", "--pupil", help="Checkpoint, version or alias that flies while the pilot labels (DAgger)."
        ),
    ] = None,
    teacher_share: Annotated[
        float, typer.Option(help="Share of the decisions that the teacher flies beside a student.")
    ] = 0.5,
    azimuth_bins: Annotated[int, typer.Option(help="Azimuth bins.")] = 64,
    elevation_bins: Annotated[int, typer.Option(help="Elevation bins.")] = 16,
    sensor: Annotated[
        str | None,
        typer.Option(
            help="Profiles of which each episode draws one, as sphere,lidar,camera; by default the ideal sphere."
        ),
    ] = None,
    resolution: Annotated[int, typer.Option(help="Compile resolution of meshes and generated scenes.")] = 512,
    as_json: Json = False,
) -> None:
    """Record expert demonstrations of a scripted pilot, one file per episode; a killed recording is resumed.

    With --student a policy flies and the pilot's actions are recorded as labels (DAgger): a clone of these learns to
    recover from its own errors.
    """
    from navi_core.config import ExpertConfig, parse_config
    from navi_core.demos import read_index, record_expert
    from navi_core.record.home import load_scenes

    flying = None if student is None else _student(student)
    config = parse_config(
        ExpertConfig,
        {
            "pilot": pilot,
            "episodes": episodes,
            "steps": steps,
            "seed": seed,
            "noise": noise,
            "noise_hold": noise_hold,
            "pupil": None if flying is None else flying.weights,
            "teacher_share": teacher_share,
            "azimuth_bins": azimuth_bins,
            "elevation_bins": elevation_bins,
            "sensor": {"profiles": [] if sensor is None else sensor.replace("-", "_").split(",")},
        },
    )
    scenes = load_scenes(scene or DEFAULT_SCENES, resolution)
    with progress_bar(pilot, counted=True) as progress:
        rows = record_expert(out, scenes, config, student=flying, progress=progress)
    index = read_index(out)
    table = [
        {
            "scene": row.scene,
            "recorded": row.recorded,
            "kept": row.kept,
            "collisions_per_minute": None if row.recorded == 0 else round(row.collisions_per_minute, 2),
        }
        for row in rows
    ]
    facts = _facts(index)
    if as_json:
        print_json({"out": str(out), **facts, "scenes_recorded": table})
        return
    title = f"{pilot}: {facts['decisions']:,} decisions in {facts['files']} files in {out}"
    print_records(title, [{"already there" if key == "kept" else key: row[key] for key in row} for row in table])
    print_next(f"navi train bc --demos {as_argument(out)}")


def _student(name: str) -> Student:
    from navi_core.cli.evaluate import find_subject
    from navi_core.config import EvalConfig
    from navi_core.demos import Student
    from navi_core.evaluate.flight.subjects import resolve_subject

    subject = resolve_subject(find_subject(name, None), EvalConfig())
    weights = subject.fingerprint()
    if weights is None:
        raise ConfigError(f"--student {name} is a pilot and learns nothing; give a checkpoint, a version or an alias")
    return Student(subject.flyer, weights, subject.vocabulary)


DEFAULT_SCENES = ("apartment:0-11",)
"""Default scenes of a recording: those of the default training corpus."""


@app.command()
def ingest(
    source: Annotated[Path, typer.Argument(help="A folder of .npz files and Minari datasets, or one of these.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The dataset; by default the folder itself, indexed in place without its subfolders."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Validate recordings file by file and index the good ones as a dataset; exit code 1 if a file is refused.

    A second call takes in new files; a file that is already part of the dataset is reported and is no error.
    """
    from navi_core.demos import ingest as ingest_files
    from navi_core.demos import read_index

    folder = out if out is not None else (source if source.is_dir() else source.parent)
    with progress_bar("checking", counted=True) as progress:
        rows = ingest_files(source, folder, progress)
    facts = _facts(read_index(folder))
    table = [
        {
            "file": row.file,
            "accepted": row.accepted,
            "episodes": row.episodes,
            "decisions": row.decisions,
            "reason": row.reason,
        }
        for row in rows
    ]
    if as_json:
        print_json({"out": str(folder), **facts, "checked": table})
    else:
        good = sum(row.accepted for row in rows)
        print_records(f"{good} of {len(rows)} accepted; {facts['decisions']:,} decisions in {folder}", table)
        if facts["files"]:
            print_next(f"navi train bc --demos {as_argument(folder)}")
    if not all(row.accepted or row.known for row in rows):
        raise typer.Exit(1)


@app.command("list")
def datasets(as_json: Json = False) -> None:
    """List the datasets of the Navi home: recordings flown by hand, and those below demos/, the newest first."""
    from navi_core.demos import known_datasets, read_index

    rows = []
    for folder in known_datasets():
        facts = _facts(read_index(folder))
        rows.append(
            {"dataset": str(folder)} | {key: facts[key] for key in ("files", "decisions", "scenes", "resolution")}
        )
    if as_json:
        print_json(rows)
    elif rows:
        print_records("datasets", rows)
    else:
        typer.echo("No demonstrations in this home; next: navi demos expert --out .navi/demos/NAME")


@app.command("show")
def inspect(
    dataset: Annotated[Path, typer.Argument(help="A dataset folder, or one .npz file.")], as_json: Json = False
) -> None:
    """Show the contents and statistics of a demonstration dataset or file."""
    from navi_core.demos import load_demonstration, read_index

    if dataset.is_dir():
        index = read_index(dataset)
        rows = [
            {key: row.get(key, "") for key in ("file", "scene", "pilot", "episodes", "decisions")}
            for row in index["files"]
        ]
        facts = _facts(index)
    else:
        demo = load_demonstration(dataset)
        actions = demo.actions
        rows = [
            {"action": name, "mean": float(actions[:, n].mean()), "std": float(actions[:, n].std()),
             "at_limit": float((abs(actions[:, n]) >= 1.0).mean())}
            for n, name in enumerate(("forward", "vertical", "lateral", "yaw"))
        ]  # fmt: skip
        facts = {
            "scene": demo.scene,
            "pilot": demo.pilot,
            "decisions": len(actions),
            "episodes": len(demo.episodes()),
            "resolution": f"{demo.azimuth_bins}x{demo.elevation_bins}",
            "decision_hz": demo.decision_hz,
            "recording_date": demo.recording_date,
            "content_hash": demo.content_hash(),
        }
    if as_json:
        print_json({"dataset": str(dataset), **facts, "rows": rows})
        return
    print_records(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()), rows)


@app.command()
def export(
    dataset: Annotated[Path, typer.Argument(help="A dataset folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the new Minari dataset.")],
    dataset_id: Annotated[str, typer.Option(help="Name of the dataset in Minari.")] = "navi/demonstrations-v0",
) -> None:
    """Export a dataset as a Minari (HDF5) dataset; needs the extra `minari`."""
    from navi_core.demos import export_minari, load_demonstration, read_index

    files = [dataset / row["file"] for row in read_index(dataset)["files"]]
    with progress_bar("exporting", counted=True) as progress:

        def demos() -> Iterator[Demonstration]:
            for number, file in enumerate(files):
                progress(file.name, number, len(files))
                yield load_demonstration(file)

        episodes = export_minari(out, demos(), dataset_id=dataset_id)
    typer.echo(f"{episodes} episodes in {out}")


def _facts(index: dict[str, Any]) -> dict[str, Any]:
    files = index["files"]
    return {
        "files": len(files),
        "episodes": sum(row["episodes"] for row in files),
        "decisions": sum(row["decisions"] for row in files),
        "scenes": len({row["scene"] for row in files}),
        "resolution": f"{index['azimuth_bins']}x{index['elevation_bins']}",
        "decision_hz": index["decision_hz"],
        "content_hash": index["content_hash"],
    }


@app.command()
def pairs(
    out: Annotated[Path, typer.Option(help="The JSONL file.")],
    scene: Scenes = None,
    winner: Annotated[str, typer.Option(help="Pilot that should win.")] = "forward-plus",
    loser: Annotated[str, typer.Option(help="Pilot that should lose.")] = "random",
    count: Annotated[int, typer.Option("--pairs", min=2, help="Number of pairs.")] = 256,
    steps: Annotated[int, typer.Option(min=2, help="Decisions of a segment.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of starts and draws.")] = 0,
    preset: Annotated[str | None, typer.Option(help="Preset whose environment is flown.")] = "quick",
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b=c; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Record preference pairs for `navi train dpo`: two pilots from equal starts, kept where the winner earns more."""
    from navi_core.demos import make_pairs, write_pairs
    from navi_core.presets import resolve_config
    from navi_core.record.home import load_scenes
    from navi_core.world import Field

    config = resolve_config(preset=preset, assignments=assign or (), command="demos pairs")
    field = Field(load_scenes(scene or DEFAULT_SCENES, config.compile.resolution), device="cpu")
    with progress_bar("pairs", quiet=as_json, counted=True) as progress:
        made = make_pairs(
            field, config.env, count, winner=winner, loser=loser, steps=steps, seed=seed, progress=progress
        )
        write_pairs(out, made)
    facts = {
        "out": str(out),
        "pairs": len(made),
        "steps": steps,
        "winner": winner,
        "loser": loser,
        "starts_won": round(float(made.metadata["won"]), 4),
        "megabytes": round(out.stat().st_size / 1e6, 1),
    }
    if as_json:
        print_json(facts)
        return
    print_records("pairs", [facts])


app.command("record")(record_by_hand)
