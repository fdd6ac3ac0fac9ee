"""CLI commands `navi bench torture` and `navi bench endurance`: campaigns whose rows are in the warehouse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from navi_core.bench.report import Option, Progress, Report, figure, report
from navi_core.cli.bench import app as benchmarks
from navi_core.cli.bench import benchmark_command

Folder = Annotated[Path | None, Option(help="Folder of its state; by default in pipeline/ of the Navi home.")]


def torture(
    seconds: Annotated[float, Option(min=1, help="Time after which no further case begins (s).")] = 3600.0,
    seed: Annotated[int, Option(help="Seed of cases, places and moments.")] = 0,
    folder: Folder = None,
    only: Annotated[list[str] | None, Option(flag="--command", help="A tortured command; may be repeated.")] = None,
    walk: Annotated[bool, Option(help="Fail each kind of write of some commands once, and end.")] = False,
    *,
    progress: Progress,
) -> Report:
    """Kill commands, fail their writes, fill disks, move clocks; check that no row, file or alias is lost.

    A revision has a campaign of its own, which resumes after an interruption. A fault fails the command. Linux with a
    C compiler.
    """
    from navi_core.bench.report import known_names
    from navi_core.record.measurement import row_context
    from navi_pipeline.bench.torture import run_torture, summary
    from navi_pipeline.bench.torture_cases import TORTURED, WALKED

    commands = known_names("command", only or (WALKED if walk else TORTURED), TORTURED)
    name = "torture-walk" if walk else "torture"
    place = folder or _folder(None, name) / (row_context()["revision"] or "installed")
    rows = run_torture(place.absolute(), seconds=seconds, seed=seed, commands=commands, walk=walk, progress=progress)
    found = summary(rows)
    _record(name, "command", found, {"cases": "", "kills": "", "injected": "", "faults": "", "seconds": "s"})
    columns = {name: figure(name) for name in ("command", "cases", "kills", "injected", "faults", "seconds")}
    made = report("torture", found, columns, words=1)
    faults = [
        f"{row['command']}, {row['fault']}, case {row['seed']}: {row['faults'][0]}" for row in rows if row["faults"]
    ]
    return Report({"rows": found, "faults": faults}, made.tables, faults, failure="; ".join(faults[:3]))


def endurance(
    decisions: Annotated[int, Option(min=1, help="Decisions of the service.")] = 500_000,
    nights: Annotated[int, Option(min=0, help="Nights, a day of the clock each.")] = 100,
    hours: Annotated[float, Option(min=0.001, help="Wall time of the whole (h).")] = 2.0,
    folder: Folder = None,
    *,
    progress: Progress,
) -> Report:
    """Run a learning, gated service beside nights for hours: growth of memory, descriptors, threads and files.

    Growth is stated for 100,000 decisions and for 50 nights, with its one-sided 95 % bound, after a warm-up.
    """
    from navi_pipeline.bench.endurance import run_endurance

    place = _folder(folder, "endurance")
    rows = run_endurance(place, decisions=decisions, nights=nights, hours=hours, progress=progress)
    _record("endurance", "process", rows, {"memory_mb": "MB", "growth": "share", "upper": "share"})
    columns = {
        "process": figure("process"),
        "unit": figure("unit"),
        "done": figure("done"),
        "memory (MB)": figure("memory_mb", ".0f"),
        "growth": figure("growth", "+.2%"),
        "at most, 95 %": figure("upper", "+.2%"),
        "descriptors": figure("descriptors"),
        "threads": figure("threads"),
        "files": figure("files"),
    }
    return report("endurance", rows, columns, words=2)


def _folder(given: Path | None, name: str) -> Path:
    from navi_pipeline.lib.records import pipeline_folder

    return (given or pipeline_folder() / name).absolute()


def _record(benchmark: str, cell: str, rows: list[dict[str, Any]], units: Mapping[str, str]) -> None:
    from navi_pipeline.lib.records import BenchmarkLog

    with BenchmarkLog(benchmark) as log:
        for row in rows:
            values = {name: (float(row[name]), unit) for name, unit in units.items() if row[name] is not None}
            if values:
                log.cell(str(row[cell]), values)


benchmarks.command("torture", help=torture.__doc__)(benchmark_command(torture))
benchmarks.command("endurance", help=endurance.__doc__)(benchmark_command(endurance))
