"""Torture campaign: commands under kills, I/O errors, full disks and odd machines; no row or file may be lost.

FOLDER/campaign.jsonl    finished cases, a line each; an interrupted campaign goes on behind them
FOLDER/homes             a home per command, as it is before and after an undisturbed run

The campaign's process runs in the shim, and every command in a fork of it, which has the imports already.
"""

import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from navi_core.errors import ConfigError, RunError
from navi_pipeline.bench.shim import Shim
from navi_pipeline.bench.torture_cases import (
    COMMANDS,
    TORTURED,
    Case,
    become_nobody,
    cases,
    limit_memory,
    places_of,
    state_of,
)
from navi_pipeline.bench.torture_processes import faults_of, orphans, run_forked
from navi_pipeline.lib.records import read_document, write_document

Row = dict[str, Any]
_KILLS, _KILLING = 64, 60.0
"""Most kills of one case, one after the other, and the time after which the command may end (s)."""
_DAY = 86_400.0


def run_torture(
    folder: Path,
    *,
    seconds: float,
    seed: int = 0,
    commands: Sequence[str] = TORTURED,
    most: int | None = None,
    walk: bool = False,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> list[Row]:
    """Go on with a campaign for a time; return all its finished cases.

    Args:
        folder: Folder of the campaign.
        seconds: Time after which no further case begins (s).
        seed: Seed of the campaign.
        commands: Names of the commands.
        most: Most cases in all; None: as many as there is time for.
        walk: Fail each kind of write of the commands once, and end, instead of drawing cases.
        progress: Called as progress(label, done, total) with seconds.

    Raises:
        ConfigError: The folder holds a campaign of another seed or of other commands.
        RunError: A command fails when nothing disturbs it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _require_same(folder / "campaign.json", {"seed": seed, "commands": list(commands), "walk": walk})
    page = folder / "shim.page"
    if os.environ.get("SHIM_PAGE") != str(page):
        shim = Shim(page, folder / "home")
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **shim.variables})
    _import_all()
    campaign = _Campaign(folder, Shim(page, folder / "home"))
    began = time.monotonic()
    drawn = campaign.walk(commands) if walk else cases(seed, tuple(commands))
    for case in islice(drawn, len(campaign.rows), most):
        spent = time.monotonic() - began
        if spent >= seconds:
            break
        progress(f"{case.command}, {case.fault}; {campaign.kills:,} kills", spent, seconds)
        campaign.add(case)
    return campaign.rows


def _require_same(file: Path, given: Row) -> None:
    """Store the arguments of a campaign, or raise if the stored ones differ: its order depends on them."""
    if not file.exists():
        write_document(file, given)
    elif (stored := read_document(file, made_by="navi bench torture")) != given:
        raise ConfigError(f"{file.parent} holds the campaign {stored}, not {given}; give another --folder")


def summary(rows: Sequence[Row]) -> list[Row]:
    """Sum finished cases by command: cases, kills, injected (failed calls), faults (cases with one), seconds."""
    return [
        {
            "command": command,
            "cases": len(mine),
            "kills": sum(row["kills"] for row in mine),
            "injected": sum(row["fired"] - row["kills"] for row in mine),
            "faults": sum(bool(row["faults"]) for row in mine),
            "seconds": round(sum(row["seconds"] for row in mine), 1),
        }
        for command in dict.fromkeys(row["command"] for row in rows)
        if (mine := [row for row in rows if row["command"] == command])
    ]


def _import_all() -> None:
    """Import what commands import, so that a fork has it."""
    rooms = ("cli.main", "learn.run", "demos", "models", "evaluate", "world")
    for name in (
        *(f"navi_core.{room}" for room in rooms),
        "torch",
        "duckdb",
        "pandas",
        "dagster",
        "navi_pipeline.cli",
        "navi_pipeline.lib.run_launcher",
        "navi_pipeline.definitions",
    ):
        importlib.import_module(name)


class _Campaign:
    """Campaign in a folder, with the homes of its commands.

    Args:
        folder: As of `run_torture`.
        shim: Shim that this process runs in.
    """

    def __init__(self, folder: Path, shim: Shim) -> None:
        self._folder, self._shim, self._home = folder, shim, folder / "home"
        self._file = folder / "campaign.jsonl"
        self._log = folder / "output.txt"
        self.rows: list[Row] = []
        with suppress(FileNotFoundError):
            text = self._file.read_text()
            whole = text[: text.rfind("\n") + 1]
            os.truncate(self._file, len(whole.encode()))  # half a line of a killed campaign
            self.rows = [json.loads(line) for line in whole.splitlines()]

    @property
    def kills(self) -> int:
        """Number of kills so far."""
        return sum(row["kills"] for row in self.rows)

    def walk(self, commands: Sequence[str]) -> Iterator[Case]:
        """Yield a failing call at the first and at the last change of each kind."""
        number = 0
        for command in commands:
            undisturbed = self._undisturbed(command)
            for place in undisturbed["places"]:
                yield Case(command, "EIO", (place - 0.5) / undisturbed["changes"], number)
                number += 1

    def add(self, case: Case) -> None:
        """Run a case and append its row to the campaign's file."""
        began = time.monotonic()
        row = vars(case) | {"kills": 0, "faults": [], "fired": 0}
        undisturbed = self._undisturbed(case.command)
        self._reset(case.command)
        self._meet(case, undisturbed["changes"], row)
        faults: list[str] = row["faults"]
        self._shim.count()
        self._shim.shift_clock(0)
        faults += self._finished(case.command, undisturbed["state"])
        # Dagster's servers end by a missing heartbeat where their parent cannot end them.
        patience = 60.0 if COMMANDS[case.command].becomes_dagster else 10.0
        faults += [f"orphan {pid}" for pid in orphans(self._shim.variables["SHIM_PAGE"], patience)]
        row["seconds"] = round(time.monotonic() - began, 1)
        if faults:
            shutil.rmtree(self._folder / f"failed-{case.seed}", ignore_errors=True)
            self._home.rename(self._folder / f"failed-{case.seed}")
        with self._file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        self.rows.append(row)

    def _meet(self, case: Case, changes: int, row: Row) -> None:
        """Run the command of a case against its fault."""
        setup: Callable[[], None] = lambda: None  # noqa: E731
        if case.fault in ("EIO", "ENOSPC", "full"):
            self._shim.fail(1 + int(case.place * changes), case.error, lasting=case.fault == "full")
        elif case.fault == "memory":
            setup = lambda: limit_memory(int(1000 * case.place))  # noqa: E731
        elif case.fault == "locks":
            self._shim.deny_locks(True)
        elif case.fault in ("readonly", "foreign"):
            setup = become_nobody
        if case.fault == "readonly":
            _chmod(self._home, 0o555, 0o444)
        if COMMANDS[case.command].seconds is not None:
            changes //= 2  # on a busy machine servers get less far in their time
        began = time.monotonic()
        for turn in range({"kill": _KILLS, "clock": 2}.get(case.fault, 1)):
            fired = self._turn(case, changes, turn, setup, row)
            if case.fault == "kill" and (not fired or time.monotonic() - began > _KILLING):
                break
        self._shim.deny_locks(False)
        if case.fault == "readonly":
            _chmod(self._home, 0o755, 0o644)

    def _turn(self, case: Case, changes: int, turn: int, setup: Callable[[], None], row: Row) -> int:
        """Run the command of a case once; return how many of its calls failed or killed it."""
        if kills := case.fault in ("kill", "clock"):
            # Later kills come behind the first ones, or the command would never get on.
            self._shim.kill(1 + int((case.place * (turn + 1) * 0.61803) % 1 * changes))
            self._shim.shift_clock((-1) ** turn * _DAY if case.fault == "clock" else 0)
        code, text = self._navi(case.command, setup)
        fired = self._shim.fired
        row["kills"] += fired if kills else 0
        row["fired"] += fired
        # Without memory a C library may abort, or fail without a Python exception: the home alone is judged.
        if case.fault != "memory" or not (code == -signal.SIGABRT or "SystemError: error return" in text):
            row["faults"] += faults_of(code, text, becomes_dagster=COMMANDS[case.command].becomes_dagster)
        return fired

    def _finished(self, command: str, expected: Row) -> list[str]:
        """Run the command again, undisturbed; return the faults of the home that it leaves."""
        served = COMMANDS[command].seconds is not None
        # What servers write depends on time: rows that are there must stay, and nothing else is compared.
        expected = self._ask("state") if served else expected
        code, text = self._navi(command)
        done = COMMANDS[command].done
        if code != 0 and not (done and done in text):
            return [f"the next command ended with {code}: {text[-500:]}"]
        found = self._ask("state")
        for state in (expected, found):
            if "rows" not in state:
                return [f"{name}: {texts}" for name, texts in state.items()]
        faults = [
            f"{name} is {str(found.get(name))[:200]}, not {str(expected.get(name))[:200]}"
            for name in expected.keys() | found.keys()
            if name != "rows" and not served and found.get(name) != expected.get(name)
        ]
        lost, more = (set(a["rows"]) - set(b["rows"]) for a, b in ((expected, found), (found, expected)))
        if served:
            more = set()
        if lost or more:
            faults.append(f"{len(lost)} rows lost, {len(more)} too many: {sorted(lost | more)[:3]}")
        verified = self._ask("verify")
        return faults + [f"{table}: {counts}" for table, counts in verified.items() if counts]

    def _undisturbed(self, command: str) -> Row:
        """Return changes of files and final state of an undisturbed run, from the folder of homes or made now."""
        document = self._folder / "homes" / f"{command}.json"
        if document.exists():
            return read_document(document, made_by="the campaign")
        given = COMMANDS[command]
        for name in given.before:
            self._undisturbed(name)
        before, after = (self._folder / "homes" / f"{word}-{command}" for word in ("before", "after"))
        shutil.rmtree(before, ignore_errors=True)
        if given.before:
            shutil.copytree(self._folder / "homes" / f"after-{given.before[-1]}", before)
        else:
            before.mkdir(parents=True)
        if given.prepare:
            given.prepare(before)
        self._reset(command)
        self._shim.trace()
        code, text = self._navi(command)
        changes, traced = self._shim.changes, self._shim.traced()
        self._shim.count()
        if code != 0:
            raise RunError(f"{command} ends with {code} when nothing disturbs it: {text[-2000:]}")
        state = self._ask("state")
        if "rows" not in state:
            raise RunError(f"the home of {command} cannot be read when nothing disturbed it: {state}")
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(self._home, after)
        row = {"changes": changes, "places": places_of(traced), "state": state}
        write_document(document, row)
        return row

    def _reset(self, command: str) -> None:
        """Lay down the home as it is before the command."""
        self._shim.count()
        self._shim.shift_clock(0)
        shutil.rmtree(self._home, ignore_errors=True)
        shutil.copytree(self._folder / "homes" / f"before-{command}", self._home)

    def _navi(self, command: str, setup: Callable[[], None] = lambda: None) -> tuple[int, str]:
        """Run a command and those beside it; return as `run_forked`."""
        given = COMMANDS[command]

        def called(words: str) -> Callable[[], None]:
            arguments = [word.replace("{home}", str(self._home)).replace("+", " ") for word in words.split()]

            def call() -> None:
                from navi_core.cli.main import main

                main(arguments)

            return call

        calls = [called(words) for words in (given.words, *given.beside)]
        return run_forked(calls, self._home, self._log, setup, given.seconds)

    def _ask(self, what: str) -> Row:
        """Return the state of the home, or the differences of its warehouse by table; computed in a fork."""
        answer = self._folder / "answer.json"
        answer.unlink(missing_ok=True)

        def call() -> None:
            from navi_pipeline.lib.warehouse.warehouse import Warehouse

            found: Row = state_of(self._home) if what == "state" else Warehouse(self._home).verify()
            if what == "verify":
                found = {
                    table: {name: count for name, count in counts.items() if name != "rows" and count}
                    for table, counts in found.items()
                }
            answer.write_text(json.dumps(found))

        code, text = run_forked([call], self._home, self._log)
        if code != 0 or not answer.exists():
            return {f"{what} cannot be read": [text[-500:]]}
        return dict(json.loads(answer.read_text()))


def _chmod(home: Path, folder: int, file: int) -> None:
    for place, _, names in os.walk(home):
        os.chmod(place, folder)
        for name in names:
            with suppress(FileNotFoundError):
                os.chmod(Path(place) / name, file)
