"""`navi train ppo` on the command line: started, killed, resumed, refused."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.cli.training.flags import TrainFlags
from navi_core.cli.training.inputs import fitting_latest
from navi_core.config import NOISY_SENSOR
from navi_core.errors import CheckpointError, ConfigError, NaviError, RunError, SceneError
from navi_core.learn.run.process import StopFlag
from navi_core.models import Registry, load_checkpoint

ROWS, ROLLOUT = 4, 16
TIMES = {"sps", "env_ms", "ppo_update_ms", "zero_wait_ratio"}
SETTINGS = {
    "actors": ROWS,
    "threads": 1,
    "device": "cpu",
    "checkpoint_every": 2 * ROWS * ROLLOUT,
    "compile": {"resolution": 64},
    "corpus": {"families": {"apartment": [3]}},
    "env": {"azimuth_bins": 16, "elevation_bins": 8, "max_steps": 40, "void_grace": 4},
    "policy": {"encoder": "ring_cnn", "core": "gru", "azimuth_bins": 16, "elevation_bins": 8},
    "ppo": {"rollout": ROLLOUT, "bptt": 8, "minibatch": 4},
    "shaper": {"loop_coefficient": 0.0},
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    for name in [n for n in os.environ if n.startswith("NAVI_") and n != "NAVI_HOME"]:
        monkeypatch.delenv(name)
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    return tmp_path / "home"


def navi(home: Path, *arguments: str, learner: str = "ppo"):
    command = ["train", learner, "--config", str(home.parent / "settings.json"), "--json", *arguments]
    result = CliRunner().invoke(build_app(groups=("training.train",), plugins=False), command)
    if isinstance(result.exception, NaviError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


@pytest.mark.slow
def test_a_policy_learns_to_fly_to_goals_and_is_evaluated_there(home):
    """Two updates, then an evaluation; a point-goal run starts from fresh weights."""
    goal = ("--task", "point_goal", "--set", "env.goal.per_scene=2", "--steps", str(2 * ROWS * ROLLOUT))
    done = navi(home, *goal)
    assert done["initial"] is None and done["metrics"]["goal_progress"] != 0.0
    checkpoint = load_checkpoint(done["checkpoint"]).train_config()
    assert checkpoint.policy.goal and checkpoint.policy.place_memory and checkpoint.env.reward.preset == "point_goal"
    assert checkpoint.policy.log_std_init == -1.2 and checkpoint.policy.recovery
    blind = load_checkpoint(navi(home, *goal, "--set", "policy.place_memory=false")["checkpoint"]).train_config()
    assert blind.policy.goal and not blind.policy.place_memory
    command = ["evaluate", done["checkpoint"], "--task", "point_goal", "--scene", "apartment:3", "--starts", "1"]
    flown = CliRunner().invoke(build_app(), [*command, "--steps", "5", "--resolution", "64", "--json"])
    assert flown.exit_code == 0, flown.output
    row = json.loads(flown.stdout)["episodes"][0]
    assert row["success"] is False and row["spl"] == 0.0 and row["geodesic"] > 2.0 and 0.0 <= row["soft_spl"] < 1.0


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (["env.task=point_goal"], "keeps the reward preset explore"),
        (["env.task=point_goal", "env.reward.preset=point_goal"], None),
        (["env.reward.preset=point_goal"], None),
    ],
)
def test_task_set_without_its_flag_warns_of_the_missing_setting(settings, reported, capsys):
    TrainFlags(preset="quick", assign=settings).resolve("ppo")
    TrainFlags(preset="quick", assign=["env.reward.preset=explore"], task="point_goal").resolve("ppo")
    warned = capsys.readouterr().err
    assert (reported in warned and "--task point_goal sets both" in warned) if reported else warned == ""


def test_unfit_latest_is_ignored_and_named_version_refused(home, caplog):
    one = ("--steps", str(ROWS * ROLLOUT))
    assert navi(home, *one)["version"] == "v001"
    other = (*one, "--set", "policy.width=32", "--set", "seed=1")
    with caplog.at_level(logging.INFO, logger="navi.train"):
        assert navi(home, *other)["initial"] is None
    assert any("latest is v001, another network than this run's" in record.message for record in caplog.records)
    with pytest.raises(NaviError, match="--init none"):
        navi(home, *one, "--set", "policy.width=48", "--init", "latest")


def test_run_without_updates_registers_no_version(home, monkeypatch):
    monkeypatch.setattr(StopFlag, "__call__", lambda self: True)
    made = navi(home, "--steps", str(ROWS * ROLLOUT))
    assert (made["steps"], made["version"], made["latest"]) == (0, None, False)


def metric_rows(home: Path) -> list[tuple[int, str, float]]:
    """All rows in the order they were acknowledged, repeated ones included."""
    rows = []
    for file in sorted((home / "outbox").glob("*-metrics.ndjson")):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)
            rows.append((row["step"], row["name"], row["value"]))
    return rows


def untimed(rows) -> dict[tuple[int, str], float]:
    return {(step, name): value for step, name, value in rows if name not in TIMES}


def test_latest_registered_during_start_is_ignored(home, monkeypatch):
    """Another run may register `latest` between its look-up and the reading of its weights."""
    from navi_core.cli.training import train

    other = navi(home, "--steps", "64", "--set", "policy.width=48", "--no-register")["checkpoint"]
    begin = train.run_training

    def late(*arguments, **settings):
        Registry(home / "models").register(other)
        return begin(*arguments, **settings)

    monkeypatch.setattr(train, "run_training", late)
    assert navi(home, "--steps", "64")["initial"] is None
    # Where there is one, it is settled which version that is.
    latest = Registry(home / "models").resolve("latest")
    assert fitting_latest(load_checkpoint(latest.path).train_config()) == latest.version


def test_training_reuses_finished_runs_and_starts_from_latest(home):
    first = navi(home, "--steps", "128")
    assert (first["version"], first["latest"], first["steps"], first["initial"]) == ("v001", True, 128, None)
    assert first["scenes"] == ["apartment_0003"] and Path(first["checkpoint"]).is_file()
    assert {"view_gain", "collision", "exploration"} <= set(first["metrics"])
    checkpoint = load_checkpoint(first["checkpoint"])
    assert list(checkpoint.scene_hashes) == ["apartment_0003"] and checkpoint.decision_hz == 10.0

    again = navi(home, "--steps", "128")
    assert (again["version"], again["resumed_from"]) == ("v001", 128), "a finished run is neither flown nor registered"

    registry = Registry(home / "models")
    reported = [json.loads(line) for file in (home / "outbox").glob("*-models.ndjson") for line in file.open()]
    assert {(row["version"], row["run_id"]) for row in reported if "version" in row} == {("v001", first["run_id"])}
    further = navi(home, "--steps", "64")
    assert further["initial"] == str(registry.resolve("v001").path)
    assert registry.resolve(further["version"]).parents == ("v001",)
    fresh = navi(home, "--steps", "64", "--fresh")
    assert fresh["initial"] is None and registry.resolve(fresh["version"]).parents == ()


def test_a_given_seed_begins_with_new_weights_and_the_log_names_the_alternative(home, caplog):
    navi(home, "--steps", "64")
    with caplog.at_level(logging.INFO, logger="navi.train"):
        made = navi(home, "--steps", "64", "--seed", "1")
    assert made["initial"] is None and Registry(home / "models").resolve(made["version"]).parents == ()
    assert any("--init latest begins with v001" in record.message for record in caplog.records)
    named = navi(home, "--steps", "64", "--seed", "2", "--init", "latest")
    assert named["initial"] == str(Registry(home / "models").resolve("v001").path)


def test_grpo_trains_in_scenes_from_ppo_weights(home):
    navi(home, "--steps", "64")
    grpo = ("--set", "grpo.rollout=16", "--set", "grpo.horizon=8")
    made = navi(home, "--steps", "128", *grpo, learner="grpo")
    registry = Registry(home / "models")
    assert registry.resolve(made["version"]).parents == ("v001",) and registry.resolve(made["version"]).tags == (
        "grpo",
    )
    assert made["metrics"]["groups"] >= 1 and {"view_gain", "collision"} <= set(made["metrics"])
    assert load_checkpoint(made["checkpoint"]).train_config().algorithm == "grpo"


def test_reference_task_trains_without_a_version(home):
    task = ("--task", "cart_pole", "--set", "task_options.masked=false")
    made = navi(home, "--steps", "64", *task)
    assert (made["task"], made["scenes"], made["version"], made["latest"]) == ("cart_pole", [], None, False)
    assert made["metrics"]["episode_return"] > 0 and Registry(home / "models").list() == []
    assert navi(home, "--steps", "64", *task)["resumed_from"] == 64
    with pytest.raises(ConfigError, match="allowed: repeat_previous"):
        navi(home, "--steps", "64", "--task", "cart_pol")
    with pytest.raises(ConfigError, match="cart_pole"):
        navi(home, "--steps", "64", "--task", "cart_pole", "--set", "task_options.poles=2")


def test_unregistered_run_logs_the_reason(home):
    settings = str(home.parent / "settings.json")
    command = ["train", "ppo", "--config", settings, "--steps", "64", "--no-register"]
    done = CliRunner().invoke(build_app(groups=("training.train",), plugins=False), command)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "not to be registered" in done.output and "cannot fly" not in done.output


def test_a_pipeline_run_begins_with_new_weights(home):
    navi(home, "--steps", "64")
    made = navi(home, "--steps", "64", "--seed", "1", "--asset", "ppo_policy", "--partition", "ppo.quick")
    assert made["initial"] is None and made["run_id"].startswith("ppo_policy-ppo.quick-")


def test_compiled_corpus_is_reused(home, monkeypatch):
    from navi_core.cli.training.inputs import compiled_scenes
    from navi_core.config import TrainConfig
    from navi_core.scenes.corpus import corpus

    asked = []
    monkeypatch.setattr(corpus, "default_jobs", lambda estimates: asked.append(len(estimates)) or 1)
    families = {"rooms": [0, 1]}
    config = TrainConfig.model_validate(SETTINGS | {"corpus": {"families": families}})
    first = compiled_scenes(config)
    files = {file.name: file.stat().st_mtime_ns for file in (home / "scenes").glob("*.gmdag")}
    assert [item.scene.name for item in first] == [item.scene.name for item in compiled_scenes(config)]
    assert files == {file.name: file.stat().st_mtime_ns for file in (home / "scenes").glob("*.gmdag")}
    assert asked == [2, 2] and len(files) == 2 and (home / "scenes" / "manifest.json").is_file()


def test_unreadable_scenes_are_skipped_with_a_warning(home, caplog):
    """One of a folder, a mesh or a compiled scene, does not end the training on the others."""
    first = navi(home, "--steps", str(ROWS * ROLLOUT))
    folder = home.parent / "flats"
    folder.mkdir()
    for source in (home / "scenes").glob("*.gmdag"):
        (folder / source.name).write_bytes(source.read_bytes())
    (folder / "broken.gmdag").write_bytes(b"GDAG")
    done = navi(home, "--scene", str(folder), "--steps", str(ROWS * ROLLOUT))
    assert done["steps"] == ROWS * ROLLOUT and done["run_id"] != first["run_id"]
    assert "scene broken is left out: " in caplog.text and "broken.gmdag" in caplog.text
    (folder / "broken.glb").write_bytes(b"glTF")
    with pytest.raises(SceneError, match=r"broken\.glb"):
        navi(home, "--scene", str(folder))
    (folder / "torn.glb").write_bytes(b"glTF")
    with pytest.raises(SceneError, match="no scene can be flown in; cannot be read: broken, torn"):
        navi(home, "--scene", str(folder))
    (good,) = (home / "scenes").glob("*.gmdag")
    for named in ("broken.glb", "broken.gmdag"):
        with pytest.raises(SceneError, match=named):
            navi(home, "--scene", str(good), "--scene", str(folder / named))
    done = navi(home, "--scene", str(good), "--scene", str(folder), "--steps", str(ROWS * ROLLOUT))
    assert done["steps"] == ROWS * ROLLOUT


def test_flags_and_selectors_reach_the_run(home, monkeypatch):
    monkeypatch.setenv("NAVI_ACTOR_TEMPORAL_CORE", "mamba2")
    made = navi(home, "--steps", "32", "--actors", "2", "--noisy", "--set", "ppo.gamma=0.9")
    checkpoint = load_checkpoint(made["checkpoint"])
    assert checkpoint.temporal_core == "mamba2"
    config = checkpoint.train_config()
    assert (config.actors, config.total_steps, config.ppo.gamma) == (2, 32, 0.9)
    assert config.env.sensor == NOISY_SENSOR
    with pytest.raises(CheckpointError, match=r"mamba2.*gru.*--init none"):
        navi(home, "--steps", "32", "--temporal-core", "gru", "--init", "latest")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--set", "ppo.learning_rat=1"], ConfigError, "learning_rate"),
        (["--actors", "0"], ConfigError, "actors"),
        (["--set", "ppo.learning_rate=-0.1"], ConfigError, "-0.1"),
        (["--encoder-backend", "rayvit", "--set", "policy.patch=7"], ConfigError, "patch 7"),
        (["--encoder-backend", "resnet"], ConfigError, "ring_cnn"),
        (["--preset", "quik"], ConfigError, "quick"),
        (["--noisy", "--task", "cart_pole"], ConfigError, "--noisy.*cart_pole"),
        (["--scene", "maze:3", "--task", "cart_pole"], ConfigError, "--scene.*cart_pole"),
        (["--scene", "missing.glb"], SceneError, "missing.glb"),
        (["--init", "v007"], NaviError, "v007"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(home, arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        navi(home, *arguments)
    assert caught.value.exit_code != 0
    assert not (home / "runs").exists() and not (home / "models").exists() and not (home / "outbox").exists()


@pytest.mark.slow
def test_killed_trainer_resumes_and_no_acknowledged_row_is_lost(home):
    steps = 16 * ROWS * ROLLOUT
    command = [sys.executable, "-c", "from navi_core.cli.main import navi_actor; navi_actor()"]
    command += ["train", "ppo", "--config", str(home.parent / "settings.json"), "--json", "--steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not [p for p in home.rglob("step-*.pt") if int(p.stem.split("-")[1]) >= 256]:
        assert process.poll() is None, "the trainer ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)  # so that it cannot end before it is killed
    with pytest.raises(RunError, match=str(process.pid)):
        navi(home, "--steps", str(steps))
    process.send_signal(signal.SIGKILL)
    process.wait()
    acknowledged = metric_rows(home)
    assert acknowledged and max(step for step, _, _ in acknowledged) < steps

    resumed = navi(home, "--steps", str(steps))
    assert 256 <= resumed["resumed_from"] < steps and resumed["steps"] == steps
    rows = metric_rows(home)
    assert rows[: len(acknowledged)] == acknowledged
    keys = [(step, name) for step, name, _ in rows[len(acknowledged) :]]
    assert len(keys) == len(set(keys)), "the resumed part writes every key once"
    # A key written before the kill and again after it holds the same number: nothing is doubled or changed.
    assert untimed(acknowledged).items() <= untimed(rows).items()

    straight = navi(home, "--steps", str(steps), "--run-root", str(home / "other"), "--init", "none")
    assert straight["resumed_from"] is None
    one, two = (load_checkpoint(r["checkpoint"]).policy_state for r in (resumed, straight))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert untimed(metric_rows(home)) == untimed(rows)
