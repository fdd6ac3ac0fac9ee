"""Rows of docs/reference/source-systems.md: commands, options, settings, metrics and status keys do what it describes.

Where Navi installs the old spelling, both are run; elsewhere Navi's alone. The default suite runs the commands and one
training per learner. The slow tests run each setting alone, servers and the actor on Ray.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from navi_core.cli import main, pages
from navi_core.cli.training.flags import TrainFlags, expand_flags
from navi_core.config import TrainConfig
from navi_core.demos import read_index
from navi_core.learn.run.process import StopFlag
from navi_core.models import Registry, load_checkpoint, save_checkpoint
from navi_core.presets import resolve_config
from tests.config.walk import TIMED
from tests.evaluate.conftest import boxes_scene
from tests.evaluate.test_promotion_and_records import CIRCLE, HOVER, flying
from tests.service.conftest import until

PAGE = (Path(__file__).resolve().parent.parent / "docs/reference/source-systems.md").read_text()
SMALL: dict[str, Any] = {
    "actors": 4,
    "threads": 1,
    "device": "cpu",
    "total_steps": 128,
    "compile": {"resolution": 64},
    "corpus": {"families": {"apartment": [3]}},
    "env": {"azimuth_bins": 16, "elevation_bins": 8, "max_steps": 20, "void_grace": 4},
    "policy": {"encoder": "ring_cnn", "core": "gru", "azimuth_bins": 16, "elevation_bins": 8, "width": 16},
    "shaper": {"memory_capacity": 400, "memory_exclusion": 4},
    "ppo": {"rollout": 16, "bptt": 8, "minibatch": 4},
    "grpo": {"rollout": 16, "bptt": 8, "horizon": 8},
    "dpo": {"rollout": 16, "bptt": 8, "horizon": 8},
    "bc": {"epochs": 1, "bptt": 8, "sequences": 2},
    "dqn": {"rollout": 16, "bptt": 8, "learning_starts": 32},
    "replay": {"batch_size": 32, "capacity": 2000},
    "distributed": {"actors_per_gpu": 1, "replay_shards": 1, "prefetch": 2},
}
"""Settings that make a training take a second."""
AGM = {
    "replay": {"batch_size": 32, "prioritized_replay": True, "alpha": 0.6, "beta0": 0.4},
    "kernel_smoothing": {"enabled": True, "k": 8, "latent_dim": 64},
    "early_stopping": {"enabled": True, "eval_interval": 64, "patience": 10},
}
FLIGHT = "--scene apartment:3 --starts 2 --steps 5 --resolution 64 --json"


def table(heading: str) -> list[tuple[str, str, str]]:
    """Return the rows of all tables below a heading: source, Navi and the third column, without code type."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
    lines = re.findall(r"^\|(.*)\|$", section, re.M)
    rows = [tuple(cell.strip().replace("`", "") for cell in line.split(" | ")) for line in lines]
    return [row for row in rows if row[0] != "source" and not row[0].startswith("---")]  # type: ignore[misc]


LEARNERS = {
    "Settings of the navigation system": "ppo",
    "Settings of group-relative learning": "grpo",
    "Settings of the fast PPO trainer": "ppo",
    "Settings of drift-smoothed Q-learning": "dqn",
}
SETTINGS = [(LEARNERS[heading], *row) for heading in LEARNERS for row in table(heading)]
COMMANDS = {old: new for old, new, _ in table("Commands")}
OPTIONS = table("Options and variables")
METRICS = table("Metrics")
SERVICE = table("Settings of training in service")


def test_every_row_of_the_page_is_in_a_table_that_is_tested():
    known = [*COMMANDS, *OPTIONS, *SETTINGS, *METRICS, *SERVICE]
    assert len(re.findall(r"^\|(?! source \||---)", PAGE, re.M)) == len(known) and set(COMMANDS) == set(CHECKS)


class Home:
    """A Navi home whose commands run in this process, with settings from the environment.

    Args:
        folder: Where the home and the files of command lines lie.
        monkeypatch: Sets the environment.
        trained: The folder of `Trained`, whose compiled scenes are copied; None has none.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, trained: Path | None = None) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        if trained is not None:
            shutil.copytree(trained / "home" / "scenes", folder / "home" / "scenes")
            for file in trained.glob("seed*.pt"):
                shutil.copy(file, folder)
        for name in [name for name in os.environ if name.startswith("NAVI_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("NAVI_HOME", str(folder / "home"))
        monkeypatch.setenv("DAGSTER_HOME", str(folder / "no-dagster-home"))
        monkeypatch.chdir(folder)
        for section, values in SMALL.items():
            for name, value in values.items() if isinstance(values, dict) else [(None, values)]:
                variable = f"NAVI_{section}__{name}" if name else f"NAVI_{section}"
                monkeypatch.setenv(variable.upper(), json.dumps(value) if isinstance(value, dict) else str(value))

    @property
    def registry(self) -> Registry:
        return Registry(self.folder / "home" / "models")

    def run(self, command: str, more: str = "", code: int = 0) -> str:
        """Run a command line as it stands, with options that make it small; return its standard output."""
        program, *words = shlex.split(command)
        entry = {"navi": main.main, "navi-actor": main.navi_actor, "brain": main.brain}[program]
        out, errors = io.StringIO(), io.StringIO()
        with pytest.raises(SystemExit) as ended, redirect_stdout(out), redirect_stderr(errors):
            entry([*words, *shlex.split(more)])
        assert (ended.value.code or 0) == code, errors.getvalue()
        return out.getvalue()

    def both(self, old: str, more: str = "--json") -> list[Any]:
        """Run an old command line and its new one; return the JSON documents that they print."""
        return [json.loads(self.run(command, more)) for command in (old, COMMANDS[old])]

    def train(self, learner: str, *settings: str, more: str = "") -> dict[str, Any]:
        given = " ".join(f"--set {shlex.quote(setting)}" for setting in settings)
        return json.loads(self.run(f"navi train {learner} {given}", f"--fresh --json {more}"))

    def file(self, name: str, seed: int = 0) -> str:
        """Put the checkpoint of a seed where a command line names it; return its weights hash."""
        shutil.copy(self.folder / f"seed{seed}.pt", self.folder / name)
        return load_checkpoint(self.folder / name).weights_hash

    def register(self) -> None:
        """Register the checkpoint of seed 0 as v001."""
        assert self.registry.register(self.folder / "seed0.pt") == "v001"

    def record(self, old: str = "explore --record --gmdag-file FILE.gmdag") -> int:
        """Fly by hand what the explorer's page would send, and return the number of recorded files."""

        def fly(show: Any, *_: object) -> None:
            for _ in range(2):
                show.session.record()
                for _ in range(20):
                    show.session.fly((0.5, 0.0, 0.0, 0.2))
                show.session.finish()
                show.session.respawn()

        (made,) = (self.folder / "home" / "scenes").glob("*.gmdag")
        shutil.copy(made, self.folder / "FILE.gmdag")
        self.monkeypatch.setattr(pages, "open_page", fly)
        self.run(COMMANDS[old], "--azimuth-bins 16 --elevation-bins 8")
        return len(read_index(self.folder / "home" / "recordings")["files"])


class Trained:
    """One training for each command line that trains from nothing, in one home.

    Args:
        folder: Where the home lies, and the checkpoints `seed0.pt` and `seed5.pt` of PPO.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, dict[str, Any]] = {}
        with pytest.MonkeyPatch.context() as patch:
            home = Home(folder, patch)
            (folder / "agm.yaml").write_text(yaml.safe_dump(AGM))
            for command in ("navi-actor train", "navi train ppo"):
                self.records[command] = json.loads(home.run(command, "--json"))
            shutil.copy(self.records["navi-actor train"]["checkpoint"], folder / "seed0.pt")
            shutil.copy(home.train("ppo", "seed=5", more="--no-register")["checkpoint"], folder / "seed5.pt")
            for old in ("training.algorithm: grpo", "training.algorithm: dpo", "agm.yaml"):
                self.records[old] = json.loads(home.run(COMMANDS[old], "--fresh --json"))
            self.registry = home.registry


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def home(tmp_path, monkeypatch, trained) -> Home:
    return Home(tmp_path, monkeypatch, trained.folder)


def replaced_run(file: Path, run_id: str) -> Path:
    """Give a checkpoint another run's name: equal weights of one run are one version."""
    return save_checkpoint(file, replace(load_checkpoint(file), run_id=run_id))


Pair = tuple[Any, Any]
"""What the old spelling did (or must be done, where Navi does not have it), and what Navi's did."""


def _same_training(_: Home, trained: Trained, old: str) -> Pair:
    first, second = trained.records[old], trained.records[COMMANDS[old]]
    assert first["steps"] == second["resumed_from"] == 128 and first["version"] == "v001"
    return tuple((each["run_id"], each["version"]) for each in (first, second))  # type: ignore[return-value]


def _train_from(home: Home, _: Trained, old: str) -> Pair:
    home.file("FILE.pt", seed=5)
    first, second = home.both(old)
    assert first["initial"].endswith("FILE.pt") and first["version"] == "v001"
    return first["run_id"], second["run_id"]


def _serve(home: Home, _: Trained, old: str) -> Pair:
    """The server starts and ends; `navi serve` does so in one of the two rows. The slow test below flies with it."""
    home.register()
    home.monkeypatch.setattr(StopFlag, "__call__", lambda _: True)
    commands = [old] if old == "brain" else [old, COMMANDS[old]]
    done = []
    for command in commands:
        free = re.sub(r"--pub \S+", "", command)
        facts = json.loads(home.run(free, "--pub tcp://127.0.0.1:0 --json"))
        done.append((facts["model"][:4], facts["follows"], facts["observations from"], facts["steps"]))
    return [("v001", "latest", "tcp://127.0.0.1:5559", "tcp://127.0.0.1:5560")] * len(commands), done


def _models(home: Home, _: Trained, old: str) -> Pair:
    home.register()
    first, second = home.both(old)
    assert [row["version"] for row in first] == ["v001"]
    return first, second


def _register(home: Home, _: Trained, old: str) -> Pair:
    weights = home.file("FILE.pt", seed=5)
    first, second = home.both(old)
    assert first["version"] == "v001" and home.registry.resolve("v001").weights_hash == weights
    return first["version"], second["version"]


def _promote(home: Home, _: Trained, old: str) -> Pair:
    """A policy that circles is better than a champion that hovers; one that hovers is not better than itself."""
    for name, command in (("circles", CIRCLE), ("hovers", HOVER), ("hovers_too", HOVER)):
        home.registry.register(replaced_run(flying(command, home.folder / f"{name}.pt"), name))
    home.registry.promote("v002", "champion")
    halls = [boxes_scene(f"hall{n}", ((0, 0, 0), (5.0 + 0.5 * n, 2.4, 4))) for n in range(4)]
    files = [str(hall.save(home.folder / f"{hall.name}.gmdag")) for hall in halls]
    more = f"--scene {' --scene '.join(files)} --starts 6 --steps 40 --json"
    assert json.loads(home.run(old, more))["promoted"]
    champion = home.registry.aliases()["champion"]
    home.run(COMMANDS[old].replace("v001", "v003"), more, code=1)
    return ("v001", "v001"), (champion, home.registry.aliases()["champion"])


def _evaluate(home: Home, _: Trained, old: str) -> Pair:
    home.file("FILE.pt")
    first, second = home.both(old, FLIGHT)
    assert len(first["episodes"]) == 2
    return first["episodes"], second["episodes"]


def _compare(home: Home, _: Trained, old: str) -> Pair:
    home.file("FILE.pt")
    home.file("OTHER.pt", seed=5)
    first, second = home.both(old, FLIGHT)
    assert first["comparisons"] != []
    return first["comparisons"], second["comparisons"]


def _clone(home: Home, _: Trained, old: str) -> Pair:
    home.record()
    if "FILE.pt" in old:
        home.file("FILE.pt")
    first, second = home.both(old)
    assert first["decisions"] == 40 and first["version"] == "v001"
    assert (first["initial"] or "").endswith("FILE.pt") == ("FILE.pt" in old)
    return first["run_id"], second["run_id"]


def _explore(home: Home, _: Trained, old: str) -> Pair:
    recorded = home.record(old)
    assert not (home.folder / "--gmdag-file").exists()
    return 2, recorded


def _learner(_: Home, trained: Trained, old: str) -> Pair:
    made = trained.records[old]
    version = trained.registry.resolve(made["version"])
    assert made["steps"] >= 128 and made["run_id"] == version.run_id
    assert version.weights_hash == load_checkpoint(made["checkpoint"]).weights_hash
    return old.removeprefix("training.algorithm: "), load_checkpoint(made["checkpoint"]).train_config().algorithm


def _agm(home: Home, trained: Trained, old: str) -> Pair:
    made = trained.records.get(old)
    if made is None:
        (home.folder / "agm.yaml").write_text(yaml.safe_dump(AGM))
        made = json.loads(home.run(COMMANDS[old], "--in-process --json"))
    config = load_checkpoint(made["checkpoint"]).train_config()
    assert made["metrics"]["smoothed_share"] == 1.0
    return (8, 64), (config.kernel_smoothing.k, config.early_stopping.eval_interval)


def _ray_actor(home: Home, _: Trained, old: str) -> Pair:
    pytest.importorskip("ray")
    (home.folder / "agm.yaml").write_text(yaml.safe_dump(AGM))
    words = [sys.executable, "-m", "navi_core.cli.main"]
    learner = subprocess.Popen([*words, "learner", "--config", "agm.yaml", "--processes", "0"], start_new_session=True)
    try:
        return True, json.loads(home.run(COMMANDS[old], "--json"))["rollouts"] > 0
    finally:
        os.killpg(learner.pid, signal.SIGTERM)
        learner.wait(60)


CHECKS: dict[str, Callable[[Home, Trained, str], Pair]] = {
    "navi-actor train": _same_training,
    "navi-actor train --checkpoint FILE.pt": _train_from,
    next(old for old in COMMANDS if old.startswith("navi-actor serve")): _serve,
    "brain": _serve,
    "brain models": _models,
    "brain promote FILE.pt": _register,
    "brain promote v001": _promote,
    "brain evaluate FILE.pt": _evaluate,
    "brain compare FILE.pt OTHER.pt": _compare,
    "brain bc-pretrain": _clone,
    "brain bc-pretrain --checkpoint FILE.pt": _clone,
    "explore --record --gmdag-file FILE.gmdag": _explore,
    "training.algorithm: grpo": _learner,
    "training.algorithm: dpo": _learner,
    "agm.yaml": _agm,
    "scripts/learner.py --config agm.yaml": _agm,
    "scripts/actor.py --shard 0": _ray_actor,
}


@pytest.mark.parametrize("old", COMMANDS)
def test_command_does_what_the_old_spelling_did(home, trained, old):
    wanted, done = CHECKS[old](home, trained, old)
    assert done == wanted


def _resolved(spelling: str, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Return the configuration of a PPO training that is given an option, or a variable as NAME=value."""
    found: list[TrainConfig] = []

    def command(flags: TrainFlags) -> None:
        found.append(flags.resolve("ppo"))

    app = typer.Typer()
    app.command()(expand_flags(command))
    with monkeypatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("NAVI_")]:
            patch.delenv(name)
        if not spelling.startswith("--"):
            patch.setenv(*spelling.split("="))
            spelling = ""
        app(spelling.split(), standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(("old", "new", "setting"), OPTIONS)
def test_option_or_variable_of_the_page_sets_its_setting(monkeypatch, old, new, setting):
    wanted = resolve_config(environ={}, assignments=["algorithm=ppo", f"{setting}={re.split('[ =]', new)[1]}"])
    assert _resolved(old, monkeypatch) == _resolved(new, monkeypatch) == wanted != _resolved("--", monkeypatch)


BASE: dict[str, dict[str, Any]] = {
    "ppo": {},
    "grpo": {"grpo": {"ref_kl_coef": 0.1}},
    "dpo": {},
    "dqn": AGM,
    "apex": AGM,
}
ANY = "tcp://127.0.0.1:0"


def _learner_of(table_learner: str, setting: str) -> str:
    section = setting.partition(".")[0]
    return {"dpo": "dpo", "distributed": "apex"}.get(section, table_learner)


def _train_with(home: Home, learner: str, values: dict[str, str]) -> dict[str, Any]:
    """Train with the settings of some rows (value by setting, or by settings that go together) on top of the base."""
    (home.folder / "base.yaml").write_text(yaml.safe_dump(BASE[learner]))
    given = [f"{name}={value}" for names, value in values.items() for name in names.split(", with ")]
    for name in (each.partition("=")[0] for each in given):
        home.monkeypatch.delenv(f"NAVI_{name.replace('.', '__')}".upper(), raising=False)
    if learner == "apex":
        flags = " ".join(f"--set {shlex.quote(each)}" for each in given)
        return json.loads(home.run(f"navi learner --config base.yaml {flags}", "--in-process --fresh --json"))
    return home.train(learner, *given, more="--config base.yaml")


def _signature(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a setting can change in a run: weights, metrics that are no times, end, compiled scenes."""
    numbers = {name: value for name, value in record["metrics"].items() if not name.endswith(TIMED)}
    checkpoint = load_checkpoint(record["checkpoint"])
    return checkpoint.weights_hash, numbers, record["steps"], record["reason"], checkpoint.scene_hashes


def _stored(record: dict[str, Any], setting: str) -> Any:
    value: Any = load_checkpoint(record["checkpoint"]).train_config().model_dump(mode="json")
    for part in setting.split("."):
        value = value[part]
    return value


@pytest.mark.slow
@pytest.mark.parametrize("learner", BASE)
def test_all_settings_of_the_page_together_reach_a_run(home, learner):
    rows = {new: example for own, _, new, example in SETTINGS if _learner_of(own, new) == learner}
    record = _train_with(home, learner, rows)
    assert rows and record["version"] == "v001"
    for names, example in rows.items():
        for name in names.split(", with "):
            wanted, stored = yaml.safe_load(example), _stored(record, name)
            if isinstance(wanted, dict):
                assert wanted["learning_rate"].items() <= stored["learning_rate"].items()
            else:
                assert stored == wanted or stored == float(wanted), name


ACTS_LATER = {
    "kernel_smoothing.gate_by_td_variance": "test_the_gate_opens_by_either_sign",
    "distributed.learners": "test_two_learners_take_the_steps_of_one_learner",
}
"""Settings that change no run of a few updates, and the test that shows what they change."""
_BASE_RUNS: dict[str, tuple[Any, ...]] = {}


@pytest.mark.slow
@pytest.mark.parametrize(("own", "old", "new", "example"), SETTINGS, ids=lambda cell: cell.split(",")[0])
def test_setting_of_the_page_changes_a_run(home, own, old, new, example):
    learner = _learner_of(own, new)
    if learner not in _BASE_RUNS:
        first, again = (_signature(_train_with(home, learner, {})) for _ in range(2))
        assert first == again
        _BASE_RUNS[learner] = first
    changed = _signature(_train_with(home, learner, {new: example})) != _BASE_RUNS[learner]
    assert changed != (new in ACTS_LATER)


def test_settings_that_act_later_have_a_test_of_their_own():
    sources = "".join(file.read_text() for file in Path(__file__).parent.rglob("test_*.py"))
    assert all(f"def {test}(" in sources for test in ACTS_LATER.values())


@pytest.mark.slow
def test_metrics_of_the_page_are_recorded(trained, monkeypatch):
    asked = "select algorithm, name from metrics join runs using (run_id) where isfinite(value) group by all"
    printed = Home(trained.folder, monkeypatch).run(f'navi query "{asked}" --json')
    recorded = {(row["algorithm"], row["name"]) for row in json.loads(printed)}
    wanted = {(learner, new) for _, new, learner in METRICS if learner != "status"}
    assert len(wanted) > 30 and wanted - recorded == set()


class Started:
    """A command of a console script in a process of its own.

    Args:
        command: The command line.
    """

    def __init__(self, command: str) -> None:
        program, *words = shlex.split(command)
        entry = {"navi": "main", "navi-actor": "navi_actor", "brain": "brain"}[program]
        code = f"from navi_core.cli.main import {entry}; {entry}()"
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", code, *words], **pipes)

    def facts(self) -> dict[str, Any]:
        """Return the JSON object that a server prints when it listens."""
        assert self.process.stdout is not None
        printed = ""
        for line in iter(self.process.stdout.readline, ""):
            printed += line
            if line.startswith("}"):
                return json.loads(printed)
        return pytest.fail(self.process.communicate()[1])

    def end(self) -> tuple[str, str]:
        """Ask it to end and return what it printed on both streams."""
        self.process.send_signal(signal.SIGTERM)
        out, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return out, errors


@pytest.fixture
def start():
    """Return a function that starts a command; what still runs at the end is killed."""
    running: list[Started] = []

    def begin(command: str) -> Started:
        running.append(Started(command))
        return running[-1]

    yield begin
    for each in running:
        each.process.kill()
        each.process.wait()


def _status(facts: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(f"{facts['pages']}/status", timeout=10) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_train_of_navi_actor_goes_on_until_it_is_stopped(home, start):
    home.monkeypatch.delenv("NAVI_TOTAL_STEPS")
    home.monkeypatch.setenv("NAVI_CHECKPOINT_EVERY", "64")
    training = start("navi-actor train --json")
    until(lambda: list((home.folder / "home" / "runs").glob("*/checkpoints/step-*.pt")), 120)
    record = json.loads(training.end()[0])
    assert record["reason"] == "SIGTERM" and record["steps"] >= 64 and record["version"] == "v001"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["navi-actor serve", "brain", "navi serve"])
def test_served_drones_fly_learn_and_report_the_status_of_the_page(home, start, command):
    """The endpoints are others than the page's, which a service of this machine may hold."""
    home.register()
    scene = "--scene apartment:3 --resolution 64"
    there = start(f"navi environment --like v001 {scene} --sessions 2 --pub {ANY} --rep {ANY} --json").facts()
    wired = f"--sub {there['observations']} --pub {ANY} --mode step --step-endpoint {there['step requests']}"
    settings = " ".join(f"--set {new}={example}" for _, new, example in SERVICE)
    server = start(f"{command} {wired} --gate {scene} --learn {settings} --http 127.0.0.1:0 --json")
    facts = server.facts()
    until(lambda: _status(facts)["training"]["total_steps"] >= 3, 120)
    status = _status(facts)
    for _, new, kind in METRICS:
        if kind == "status":
            section, name = new.split()
            assert status[section][name] is not None
    assert status["buffer"]["capacity"] == 500 and 4 <= status["training"]["average_batch_size"] <= 8
    assert status["training"]["is_running"] and status["metrics"]["decisions_total"] > 0
    assert "stopped by SIGTERM" in server.end()[1]
