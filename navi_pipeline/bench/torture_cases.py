"""Cases of the torture campaign: commands with their homes, the state that they leave, faults of the machine."""

import errno
import json
import os
import random
import re
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navi_core.record import NATURAL_KEYS, MetricLog
from navi_pipeline.lib.records import shipped_folder

_SMALL = "--set env.azimuth_bins=16 --set env.elevation_bins=8 --set policy.width=32 --set threads=1"
_SEEN = "--scene apartment:110-115 --starts 3 --steps 60 --resolution 64 --seed 2"
_RUNS, _STEPS = 3, 40


def _segments(home: Path) -> None:
    """Write segments of three runs to the outbox, one of which is begun afresh in the middle."""
    for run in range(_RUNS):
        with MetricLog(home / "outbox", f"run-{run}", {"seed": run}) as log:
            for step in range(_STEPS):
                if step == _STEPS // 2 and run == 1:
                    log.forget()
                log.row("metrics", {"step": step % 30, "name": "a", "value": float(step), "recorded_at": "2026-01-01"})
                if step % 10 == 9:
                    log.flush()


def _meshes(home: Path) -> None:
    """Write three cuboids as OBJ files."""
    (home / "meshes").mkdir()
    faces = ("1 2 4 3", "5 7 8 6", "1 5 6 2", "3 4 8 7", "1 3 7 5", "2 6 8 4")
    for number in range(3):
        corners = [(x, y, z) for x in (0, 4 + number) for y in (0, 3) for z in (0, 5)]
        text = "".join(f"v {x} {y} {z}\n" for x, y, z in corners) + "".join(f"f {face}\n" for face in faces)
        (home / "meshes" / f"box{number}.obj").write_text(text)


def _instance(home: Path) -> None:
    """Give the home a Dagster instance of its own."""
    (home / "dagster").mkdir()
    shutil.copy(shipped_folder("dagster_home") / "dagster.yaml", home / "dagster")


@dataclass(frozen=True)
class Command:
    """Command that is tortured.

    Attributes:
        words: Arguments of `navi`; {home} stands for its home.
        before: Commands whose homes it begins with, in order.
        prepare: Writes further files to the home.
        beside: Arguments of further commands, which run at the same time.
        seconds: Time after which all are interrupted (s): servers, whose rows depend on time; None: they end.
        done: What the command says when there is nothing left to do.
        becomes_dagster: Whether its process becomes one of Dagster, whose tracebacks and exit codes are Dagster's own.
    """

    words: str
    before: tuple[str, ...] = ()
    prepare: Callable[[Path], None] | None = None
    beside: tuple[str, ...] = ()
    seconds: float | None = None
    done: str | None = None
    becomes_dagster: bool = False


_NIGHT = (
    "nightly --validation --minutes 1 --name tonight --set bench_steps=2 --set bench_repeats=1 --set eval_steps=20 "
    "--set bench_scenes=[apartment] --set train_scenes=1 --set validation_scenes=1 --set test_scenes=1"
)
_FLIGHT = (
    "environment --scene apartment:0 --resolution 64 --like v001 --sessions 2 --pub ipc://{home}.seen "
    "--rep ipc://{home}.asked"
)
_LEARNER = (
    "serve v001 --sub ipc://{home}.seen --step-endpoint ipc://{home}.asked --pub ipc://{home}.flown --learn --gate "
    "--scene apartment:0 --resolution 64 --set training.training_interval=1"
)


COMMANDS = {
    "expert": Command(
        "demos expert --out {home}/flights --scene apartment:0-1 --episodes 2 --steps 12 --azimuth-bins 16 "
        "--elevation-bins 8 --resolution 32"
    ),
    "bc": Command(
        "train bc --demos {home}/flights --preset quick --epochs 3 --seed 3 --set policy.width=32 "
        "--set bc.sequences=2 --set bc.bptt=8 --set checkpoint_every=30 --set keep_checkpoints=1 --set threads=1",
        ("expert",),
    ),
    "train": Command(
        "train ppo --preset quick --scene apartment:0 --steps 384 --set actors=4 --set ppo.rollout=32 "
        f"--set checkpoint_every=128 --set compile.resolution=64 {_SMALL}"
    ),
    "pairs": Command(
        "demos pairs --out {home}/pairs.jsonl --scene apartment:0 --pairs 4 --steps 4 --set compile.resolution=32 "
        "--set env.azimuth_bins=16 --set env.elevation_bins=8"
    ),
    "evaluate": Command(
        "evaluate random --scene apartment:100-101 --starts 2 --steps 10 --resolution 32 --out {home}/flown.json"
    ),
    "compile": Command("scenes compile {home}/meshes --out {home}/compiled --resolution 32 --jobs 1", (), _meshes),
    "ingest": Command("query select+1", (), _segments),
    "rebuild": Command("query select+1 --rebuild", ("ingest",)),
    "compact": Command("warehouse compact", ("ingest",)),
    # A champion of this home is the clone of an expert, which random flight does not match.
    "teacher": Command(
        "demos expert --out {home}/flights --scene apartment:0-5 --episodes 2 --steps 80 --azimuth-bins 32 "
        "--elevation-bins 8 --resolution 64"
    ),
    "student": Command(
        "train bc --demos {home}/flights --preset quick --epochs 60 --set policy.width=64 --set threads=1", ("teacher",)
    ),
    "promote": Command(f"models promote v001 {_SEEN}", ("student",), done="v001 is the champion already"),
    "night": Command(_NIGHT, ("promote",), _instance),
    "two-nights": Command(_NIGHT, ("promote",), _instance, (_NIGHT,)),
    "trained": Command("query select+1", ("train",)),
    "serve": Command(_FLIGHT, ("trained",), None, (_LEARNER,), 20.0),
    "two-uis": Command("ui --port 34771", ("ingest",), _instance, ("ui --port 34772",), 40.0, becomes_dagster=True),
}
"""Name → command; some only prepare."""
TORTURED = tuple(name for name in COMMANDS if name not in ("teacher", "student", "trained"))
WALKED = ("expert", "compile", "ingest", "promote", "train")
"""Commands whose every kind of write `--walk` fails once."""


def state_of(home: Path) -> dict[str, Any]:
    """Return the state that faults must not change: data, weights, versions, aliases, scenes, keys of all rows."""
    from navi_core.demos import load_dataset
    from navi_core.models import Registry, load_checkpoint

    found: dict[str, Any] = {}
    if (home / "flights").exists():
        found["flights"] = load_dataset([home / "flights"]).content_hash
    for file in sorted(home.glob("runs/*/checkpoints/*.pt")):
        checkpoint = load_checkpoint(file)
        found[file.name] = [checkpoint.weights_hash, checkpoint.corpus_summary, checkpoint.rng["torch"].tolist()]
    registry = Registry(home / "models")
    found["versions"] = [[entry.version, load_checkpoint(entry.path).weights_hash] for entry in registry.list()]
    found["aliases"] = registry.aliases()
    if (home / "pairs.jsonl").exists():
        found["pairs"] = (home / "pairs.jsonl").read_text()
    if (home / "flown.json").exists():
        found["flown"] = json.loads((home / "flown.json").read_text())["episodes"]
    scenes = sorted((home / "compiled").glob("*.gmdag"))
    found["scenes"] = [[file.name, file.stat().st_size] for file in scenes]
    # The benchmarks of a night are named by their moment, in nanoseconds.
    return found | {"rows": sorted({re.sub(r"\d{19}", "#", key) for key in _keys(home)})}


def _keys(home: Path) -> Iterator[str]:
    """Yield the natural keys of the rows in the outbox and in the warehouse, without times."""
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    # Which stages of an update are timed depends on the clock: viewers and progress bars are served by it.
    timed = ("recorded_at", "decided_at", "moved_at", "stage")
    names = {table: [name for name in key if name not in timed] for table, key in NATURAL_KEYS.items()}
    if (home / "warehouse" / "navi.duckdb").exists():
        warehouse = Warehouse(home)
        warehouse.ingest()
        for table, key in names.items():
            for row in warehouse.query(f"select {', '.join(key)} from {table}").itertuples(index=False):
                yield " ".join(map(str, (table, *row)))
        return
    for file in home.glob("outbox/*.ndjson"):
        head, *lines = map(json.loads, file.read_text().splitlines())
        for line in lines:
            row = head["context"] | {"run_id": head["run_id"]} | line
            yield " ".join(map(str, (head["table"], *(row.get(name) for name in names[head["table"]]))))


def places_of(changes: Sequence[str]) -> list[int]:
    """Return the numbers of the first and the last change of each kind, from 1 on.

    A kind is a call with a path, apart from its numbers, hashes and random names.
    """
    kinds: dict[str, list[int]] = {}
    for number, change in enumerate(changes, start=1):
        kind = re.sub(r"[0-9a-f]{8,}|\d+|\.\w{8}(?=\.tmp)", "#", change)
        kinds.setdefault(kind, []).append(number)
    return sorted({number for numbers in kinds.values() for number in (numbers[0], numbers[-1])})


def limit_memory(megabytes: int) -> None:
    """Limit the address space of this process to what it has and some megabytes."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + megabytes * 2**20,) * 2)


def become_nobody() -> None:
    """Give up the rights of root, who may write anywhere; another user keeps what it has."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@dataclass(frozen=True)
class Case:
    """One case of a campaign: a command and the fault that it meets.

    Attributes:
        command: Name of the command.
        fault: kill, EIO, ENOSPC (one call), full (from one call on), clock, memory, readonly, foreign or locks.
        place: Where in the command, as a fraction of its changes of files.
        seed: Seed of further draws.
    """

    command: str
    fault: str
    place: float
    seed: int

    @property
    def error(self) -> int:
        """Error number of the failing call."""
        return errno.EIO if self.fault == "EIO" else errno.ENOSPC


FAULTS = ("kill", "EIO", "kill", "full", "kill", "ENOSPC", "kill", "clock")


def _others_read_python() -> bool:
    """Return whether another user may read Python's library, which may lie in the home of root."""
    return all(folder.stat().st_mode & 0o001 for folder in Path(os.__file__).resolve().parents)


# Faults of the machine. Root may write anywhere, and has to run commands as another user.
if os.geteuid() != 0:
    _MACHINE: tuple[str, ...] = ("memory", "readonly", "locks")
elif _others_read_python():
    _MACHINE = ("memory", "readonly", "foreign", "locks")
else:
    _MACHINE = ("memory", "locks")


def cases(seed: int, commands: tuple[str, ...] = TORTURED) -> Iterator[Case]:
    """Yield the cases of a campaign without end: commands and faults in turn, places and order drawn from the seed."""
    number = 0
    while True:
        draw = random.Random(f"{seed} {number}")
        faults = [(name, fault) for name in commands for fault in FAULTS]
        faults += [(draw.choice(commands), fault) for fault in _MACHINE]
        draw.shuffle(faults)
        for command, fault in faults:
            yield Case(command, fault, draw.random(), number)
            number += 1
