"""Learners and pilots of a user: the guide's module trains, resumes, is evaluated; a missing member is an error."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import EvalConfig, TrainConfig, config_hash, parse_config
from navi_core.config import registry as plugin_loader
from navi_core.config.base import settings_of
from navi_core.config.registry import LEARNER_NAMES, PILOT_NAMES
from navi_core.errors import ConfigError
from navi_core.evaluate import evaluate
from navi_core.evaluate.flight.subjects import resolve_subject
from navi_core.learn import PPOLearner, UpdateStats, register_learner, train
from navi_core.learn.algorithms.registry import LEARNERS
from navi_core.models import load_checkpoint
from navi_core.pilots import PILOTS, build_pilot, register_pilot
from navi_core.presets import load_preset
from navi_core.record import RunDirectory, StageTimer
from navi_core.record.events import EventBus, UpdateMade
from navi_core.world import Field, NavigationEnv
from tests.own_parts import forgotten

EXAMPLES = Path(__file__).parents[3] / "examples"
OWN = "\n".join((EXAMPLES / f"{name}.py").read_text() for name in ("learner", "pilot"))
SMALL = {"azimuth_bins": 32, "elevation_bins": 8}
SETTINGS = {
    "actors": 2,
    "policy": {"encoder": "ring_cnn", "core": "gru", **SMALL},
    "env": SMALL,
    "ppo": {"rollout": 32, "bptt": 16, "minibatch": 16, "epochs": 1},
    "checkpoint_every": 64,
}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield from forgotten(monkeypatch, LEARNERS, PILOTS)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "my_learner.py").write_text(OWN)
    monkeypatch.setenv("NAVI_PLUGINS", "my_learner")
    plugin_loader.load_plugins()


def forget(monkeypatch):
    """Be as a process without the module."""
    monkeypatch.delenv("NAVI_PLUGINS")
    for names, parts in ((LEARNER_NAMES, LEARNERS), (PILOT_NAMES, PILOTS)):
        names._custom.clear()
        for name in parts._sources:
            del parts._builders[name]
        parts._sources.clear()


def run(scene, folder, name="hesitant", **settings):
    config = load_preset("quick", SETTINGS | {"algorithm": name, "total_steps": 64} | settings)
    env = NavigationEnv(Field([scene]), config.actors, config.env, config.seed)
    with RunDirectory.open(folder, asset="own", partition="a", config=config) as directory:
        return train(config, directory, env=env)


def test_guide_learner_uses_its_option_and_flies_without_its_module(plugin, box_scene, tmp_path, monkeypatch) -> None:
    whole, part = (run(box_scene, tmp_path / str(x), learner_options={"share": x}) for x in (1.0, 0.25))
    ppo = run(box_scene, tmp_path / "ppo", name="ppo")
    weights = [load_checkpoint(result.checkpoint).policy_state for result in (whole, part, ppo)]
    assert all(torch.equal(value, weights[2][name]) for name, value in weights[0].items())
    assert any(not torch.equal(value, weights[2][name]) for name, value in weights[1].items())
    assert part.metrics["parity_ratio"] < 1e-5
    forget(monkeypatch)
    evaluate(part.checkpoint, [box_scene], EvalConfig(starts=1, max_steps=5))
    assert load_checkpoint(part.checkpoint).train_config().learner_options == {"share": 0.25}
    with pytest.raises(ConfigError, match=r"no learner 'hesitant'; allowed: ppo, .*NAVI_PLUGINS"):
        parse_config(TrainConfig, {"algorithm": "hesitant"})
    monkeypatch.setitem(loaded := load_checkpoint(part.checkpoint).config, "algorithm", 3)
    with pytest.raises(ConfigError):
        parse_config(TrainConfig, loaded, context={"past": ["learner"]})


def test_custom_learner_command_trains_and_resumes(plugin, tmp_path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS | {"compile": {"resolution": 64}}))
    app = build_app(groups=("training.train",), plugins=False)
    listed = CliRunner().invoke(app, ["train", "--help"]).stdout
    assert "hesitant" in listed and "Train by hesitant" in listed
    unknown = CliRunner().invoke(app, ["train", "hesitan"])
    assert isinstance(unknown.exception, ConfigError) and "did you mean 'hesitant'" in str(unknown.exception)
    record = {}
    for steps in ("64", "128"):
        flags = ["--steps", steps, "--set", "learner_options.share=0.3", "--task", "repeat_previous", "--json"]
        flags += ["--run-root", str(tmp_path / "runs"), "--partition", "a"]
        done = CliRunner().invoke(app, ["train", "hesitant", *flags, "--set", "actors=2", "--set", "ppo.rollout=32"])
        assert done.exit_code == 0, done.output
        record = json.loads(done.stdout)
    assert record["steps"] == 128


def test_learner_options_leave_other_configs_unchanged() -> None:
    assert "learner_options" not in TrainConfig().model_dump()
    assert config_hash(TrainConfig()) == "47b3542592f60d4e"
    assert [s.value for s in settings_of(TrainConfig()) if s.name == "learner_options"] == [{}]
    with pytest.raises(ConfigError, match=r"ppo is set by its section: ppo\.share"):
        parse_config(TrainConfig, {"learner_options": {"share": 1.0}})


class Plain:
    """The least that a learner may be."""

    def __init__(self, policy, shaper, config, device, workers):
        self.policy, self.optimizer = policy, torch.optim.SGD(policy.parameters(), lr=1e-3)
        self.seen = 0

    def update(self, rollout, *, index, steps):
        self.seen += 1
        loss = sum((weight**2).sum() for weight in self.policy.parameters())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return UpdateStats({"policy_loss": float(loss.detach())}, 0.01, 1, StageTimer())

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_minimal_custom_learner_trains_and_resumes_bit_for_bit(box_scene, tmp_path) -> None:
    register_learner("plain", Plain)
    stopping = {"early_stopping": {"enabled": True, "eval_interval": 64}}
    whole = run(box_scene, tmp_path / "whole", "plain", total_steps=256, **stopping)
    config = load_preset("quick", SETTINGS | {"algorithm": "plain", "total_steps": 256} | stopping)
    for updates in (2, None):
        env = NavigationEnv(Field([box_scene]), config.actors, config.env, config.seed)
        with RunDirectory.open(tmp_path / "parts", asset="own", partition="a", config=config) as directory:
            made: list = []
            ended = partial(lambda made, updates: len(made) == updates, made, updates)
            parts = train(config, directory, env=env, events=EventBus({UpdateMade: made.append}), stop=ended)
    assert parts.resumed_from == 128 and load_checkpoint(parts.checkpoint).normalisers == {"seen": 4}
    ours, theirs = (load_checkpoint(result.checkpoint).policy_state for result in (parts, whole))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_an_invalid_learner_or_pilot_is_refused(box_scene, tmp_path) -> None:
    register_learner("empty", lambda *parts: object())
    register_learner("mute", type("Mute", (Plain,), {"update": lambda self, rollout, *, index, steps: None}))
    register_pilot("three", lambda **settings: 3)
    with pytest.raises(ConfigError, match="which has no optimizer, update, state_dict, load_state_dict"):
        run(box_scene, tmp_path, "empty")
    with pytest.raises(ConfigError, match="learner mute: update returned NoneType; it returns UpdateStats"):
        run(box_scene, tmp_path, "mute")
    with pytest.raises(ConfigError, match="learner mute: got an unexpected keyword argument 'share'"):
        run(box_scene, tmp_path, "mute", learner_options={"share": 0.5})
    with pytest.raises(ConfigError, match="pilot 'three' is built as int"):
        build_pilot("three")
    for taken, register in (("ppo", register_learner), ("planner", register_pilot)):
        with pytest.raises(ConfigError, match=f"{taken!r} is taken"):
            register(taken, PPOLearner)
    with pytest.raises(ConfigError, match="a name is small letters"):
        register_pilot("my-own", PPOLearner)


def test_guide_pilot_is_evaluated_and_identified_by_sources(plugin, box_scene, monkeypatch) -> None:
    result = evaluate("circling", [box_scene], EvalConfig(starts=1, max_steps=20))
    assert result.summary["subject"] == "circling" and result.summary["path_length"] > 1.0
    digits = resolve_subject("circling", EvalConfig()).identity["own_networks"]
    assert re.fullmatch("pilot circling [0-9a-f]{12}", digits)
    assert "own_networks" not in resolve_subject("planner", EvalConfig()).identity
    forget(monkeypatch)
    with pytest.raises(ConfigError, match=r"no pilot 'circling'; .*NAVI_PLUGINS"):
        build_pilot("circling")
