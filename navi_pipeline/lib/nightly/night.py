"""Nightly job: its settings, and its stages in order, each with gates, each done once, stored in a JSON document.

    <home>/pipeline/nights/<night>.json    finished stages, from which a restarted night resumes

A failed hard gate ends the night: later stages are skipped, and the summary is still written. A failed soft gate is a
warning.
"""

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from navi_core.config import TrainConfig, config_hash, parse_config
from navi_core.errors import ConfigError, NaviError, RunError
from navi_core.presets import merge, parse_assignments, read_config_file, resolve_config
from navi_pipeline.lib.records import pipeline_folder, pipeline_log, read_document, write_document
from navi_pipeline.settings import NightlyConfig

Status = Literal["passed", "warned", "failed", "skipped"]
_BESIDE = ("compact_segments", "webhook", "training_cron", "training_hour", "validation_hour", "time_zone")
"""Settings that do not affect the result of a night."""
_NAME = re.compile(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+)*")


@dataclass(frozen=True)
class Gate:
    """Result of one acceptance check of a nightly run.

    Attributes:
        name: Name of the check.
        hard: Whether the night fails without it.
        passed: Whether the condition holds.
        detail: Measured values, as text.
    """

    name: str
    hard: bool
    passed: bool
    detail: str


@dataclass(frozen=True)
class Stage:
    """Result of one finished stage of a nightly run: status, duration, gates, data for later stages.

    Attributes:
        name: Name of the stage.
        status: passed, warned (a soft gate), failed (a hard one), skipped (an earlier stage had failed).
        seconds: Duration [s].
        gates: Acceptance checks of the stage.
        data: Results for later stages and the summary.
    """

    name: str
    status: Status
    seconds: float
    gates: list[Gate] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


Work = Callable[["Night"], tuple[list[Gate], dict[str, Any]]]
"""Callable that does a stage's work: takes the night, returns gates and the data to keep."""


class Night:
    """State of one nightly run: settings and finished stages, loaded from and saved to its JSON document.

    Args:
        config: Settings of the night; None: those that it was begun with.
        name: Name of the night; by default that of `night_name`. The same name resumes the night.
        report: Called with progress, a line at a time.
        keep_failed: Take up failed and skipped stages too, to go on within the night; by default they are done again.

    Raises:
        RunError: The name cannot name a file, or the night was begun with other settings or by an earlier Navi.
        RecordError: There are no settings, and no such night.
    """

    def __init__(
        self,
        config: NightlyConfig | None,
        name: str | None = None,
        *,
        report: Callable[[str], None],
        keep_failed: bool = False,
    ) -> None:
        self.config = config or parse_config(NightlyConfig, read_night(str(name))["config"])
        self.name = night_name(self.config, name)
        self.report = report
        self.stages: dict[str, Stage] = {}
        self.began_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._file = pipeline_folder() / "nights" / f"{self.name}.json"
        if self._file.exists():
            self._take_up(read_night(self.name), keep_failed)

    @property
    def run_id(self) -> str:
        """Run id of the night's own rows in the warehouse."""
        return f"night-{self.name}"

    @property
    def failed(self) -> list[Gate]:
        """Hard gates that failed, over all stages."""
        return [gate for stage in self.stages.values() for gate in stage.gates if gate.hard and not gate.passed]

    @property
    def warnings(self) -> list[Gate]:
        """Soft gates that failed, over all stages."""
        return [gate for stage in self.stages.values() for gate in stage.gates if not gate.hard and not gate.passed]

    @property
    def verdict(self) -> str:
        """Overall result of the night: passed, warned or failed."""
        return "failed" if self.failed else ("warned" if self.warnings else "passed")

    def run(self, name: str, work: Work) -> Stage:
        """Run a stage once and save its result; a finished stage is skipped.

        A `NaviError` counts as a failed hard gate. Any other exception (a cancelled run, a bug) is raised, and the
        stage runs again next time.
        """
        if name in self.stages:
            self.report(f"{name}: {self.stages[name].status} before")
            return self.stages[name]
        if self.failed:
            stage = Stage(name, "skipped", 0.0)
        else:
            self.report(f"{name} …")
            began = time.monotonic()
            try:
                gates, data = work(self)
            except NaviError as error:
                gates, data = [Gate(name, True, False, str(error))], {}
            broken = [gate for gate in gates if not gate.passed]
            status: Status = "failed" if any(g.hard for g in broken) else ("warned" if broken else "passed")
            stage = Stage(name, status, round(time.monotonic() - began, 2), gates, data)
        self.stages[name] = stage
        self._keep()
        detail = f"{stage.status} after {stage.seconds:.0f} s"
        self.record("events", {"event": f"night_{name}", "detail": detail, "gates": asdict(stage)["gates"]})
        self.report(f"{name}: {detail}")
        for gate in stage.gates:
            if not gate.passed:
                self.report(f"  {'FAILED' if gate.hard else 'warning'} {gate.name}: {gate.detail}")
        return stage

    def data(self, stage: str) -> dict[str, Any]:
        """Return the output data of a finished stage, for later stages; empty if it was skipped."""
        return self.stages[stage].data if stage in self.stages else {}

    def gate_rows(self) -> list[dict[str, Any]]:
        """Return every gate (acceptance check) as a table row."""
        return [
            {"gate": gate.name, "stage": stage.name, "kind": "hard" if gate.hard else "soft",
             "holds": "yes" if gate.passed else "NO", "figures": gate.detail}
            for stage in self.stages.values() for gate in stage.gates
        ]  # fmt: skip

    def record(self, table: str, row: dict[str, Any]) -> None:
        """Record a row of this night."""
        with pipeline_log(self.run_id, seed=self.config.seed, config_hash=config_hash(self.config)) as log:
            log.row(table, row)

    def note(self, name: str, gate: Gate) -> None:
        """Add a stage that consists of one gate to this object; nothing is saved."""
        self.stages[name] = Stage(name, "passed" if gate.passed else "failed", 0.0, [gate])

    def _take_up(self, document: dict[str, Any], keep_failed: bool) -> None:
        """Take up the stages of the night's document; it must have these settings, besides those of a later Navi."""
        another = "give it another --name"
        try:
            then = parse_config(NightlyConfig, document["config"]).model_dump(mode="json")
        except ConfigError as error:
            raise RunError(f"night {self.name} was begun with other settings ({error}); {another}") from None
        now = self.config.model_dump(mode="json")
        options = [
            f"{name}={json.dumps(then[name])}" for name in then if name not in _BESIDE and then[name] != now[name]
        ]
        if options:
            chosen = shlex.join(part for option in options for part in ("--set", option))
            raise RunError(f"night {self.name} was begun with other settings: go on with {chosen}, or {another}")
        self.began_at = document["began_at"]
        for row in document["stages"]:
            stage = Stage(**(row | {"gates": [Gate(**gate) for gate in row["gates"]]}))
            if keep_failed or stage.status in ("passed", "warned"):
                self.stages[stage.name] = stage

    def _keep(self) -> None:
        write_document(
            self._file,
            {
                "night": self.name,
                "began_at": self.began_at,
                "config_hash": config_hash(self.config),
                "config": self.config.model_dump(mode="json"),
                "stages": [asdict(stage) for stage in self.stages.values()],
            },
        )


def night_name(config: NightlyConfig, name: str | None = None) -> str:
    """Return the name of a night: the given one, or date, time and kind, which no schedule generates.

    Args:
        config: Settings of the night; its kind (training, validation) ends the name.
        name: Explicit name; None generates one.

    Raises:
        RunError: The name cannot name a file.
    """
    name = name or f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}-{'training' if config.train else 'validation'}"
    if not _NAME.fullmatch(name):
        raise RunError(f"night {name!r} cannot name a file; use letters, digits, '_', '.' and '-'")
    return name


def night_lock(name: str) -> Path:
    """Return the path of a night's lock file; the process that runs the night holds the lock."""
    return pipeline_folder() / "nights" / ".locks" / f"{name}.lock"


def read_night(name: str) -> dict[str, Any]:
    """Load the JSON document of a night.

    Raises:
        RecordError: There was no such night.
        RunError: An earlier Navi began it, and did not store what the rest of its training needs.
    """
    document = read_document(pipeline_folder() / "nights" / f"{name}.json", made_by="night_preflight")
    done = {row["name"]: row["data"] for row in document["stages"] if row["status"] in ("passed", "warned")}
    # What is stored decides the start and the resume proof; a proven night needs neither.
    unproven = document.get("config", {}).get("train", True) and "resume_proof" not in done
    needs = {"preflight": "start", "training": "settings"} if unproven else {}
    if "config" not in document or any(needs[stage] not in done[stage] for stage in needs if stage in done):
        raise RunError(f"night {name} was begun by an earlier Navi; give it another --name")
    return document


SMALL_MINUTES = 60.0
"""Maximum length of a small night, which has reduced settings [min]."""

_SMALL: dict[str, Any] = {
    "profile": "quick",
    "train_scenes": 4,
    "validation_scenes": 4,
    "test_scenes": 2,
    "eval_starts": 3,
    "eval_steps": 100,
    "bench_steps": 10,
    "monitor_seconds": 10.0,
    "training_share": 0.5,
    "free_disk_gib": 0.5,
}
_SHORT_MINUTES = 5.0
"""Maximum length of a short night, which process starts and single updates would otherwise exceed [min]."""
_SHORT: dict[str, Any] = {"train_scenes": 2, "validation_scenes": 2, "eval_steps": 50, "proof_steps": [256]}


def nightly_config(
    *,
    minutes: float | None = None,
    file: Path | str | None = None,
    assignments: Iterable[str] = (),
    train: bool = True,
) -> NightlyConfig:
    """Merge the settings of a night: defaults < small night < file < minutes < assignments.

    Args:
        minutes: Length [min]; None: the default or the file's.
        file: YAML or JSON file; by default the one that `$NAVI_NIGHTLY` names, if it does.
        assignments: `a=b` texts.
        train: False for a validation night.

    Raises:
        ConfigError: A key is unknown, a value impossible, or the file unreadable.
    """
    file = file or os.environ.get("NAVI_NIGHTLY") or None
    values = dict(_SMALL) if minutes is not None and minutes <= SMALL_MINUTES else {}
    values |= _SHORT if minutes is not None and minutes <= _SHORT_MINUTES else {}
    values = merge(values, read_config_file(file) if file is not None else {})
    values = merge(values, {"train": train} | ({} if minutes is None else {"minutes": minutes}))
    return parse_config(NightlyConfig, merge(values, parse_assignments(assignments)))


def preset_settings(config: NightlyConfig, scenes: Sequence[str] | None = None) -> TrainConfig:
    """Resolve the training configuration of a night's profile.

    Args:
        config: The night's settings.
        scenes: Files of the training scenes; None: those of the preset.

    Raises:
        ConfigError: There is no such profile, or a `NAVI_*` variable is not a setting.
    """
    corpus = {} if scenes is None else {"corpus": {"scenes": list(scenes)}}
    flags = {"seed": config.seed, "checkpoint_every": config.checkpoint_every} | corpus
    settings = resolve_config(preset=config.profile, flags=flags)
    if config.minutes > _SHORT_MINUTES:
        return settings
    # One sequence a rollout: an update under way when time is up takes seconds, not a third of the night.
    return settings.model_copy(update={"ppo": settings.ppo.model_copy(update={"rollout": settings.ppo.bptt})})
