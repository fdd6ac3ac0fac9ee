"""Initial weights of a run, and the environments it accepts."""

import math
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.errors import CheckpointError, ConfigError, RunError
from navi_core.learn import train
from navi_core.models import Registry, load_checkpoint, trained_on
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from navi_core.scenes import compile_mesh
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of
from tests.learn.run.test_train_loop import ROWS, fly, make_config, same_weights, stopper
from tests.learn.toy_environments import MemoryEnv, MixedEndingsEnv


def test_initial_weights_are_loaded_and_parent_is_recorded(straight, tmp_path):
    config = make_config(total_steps=None)
    result, _ = fly(tmp_path, config, initial=straight[0].checkpoint, stop=lambda: True)
    assert result.steps == 0
    assert same_weights(result.checkpoint, straight[0].checkpoint)
    assert load_checkpoint(result.checkpoint).parent_checkpoint == str(straight[0].checkpoint)


@pytest.mark.parametrize("returns", [True, False])
def test_initial_weights_keep_reward_scale_with_new_rows(returns, tmp_path):
    """The reward scale of the parent run is kept; the running sums of its rows are not."""
    first, _ = fly(tmp_path / "a", make_config(ppo={"normalise_rewards": True, "normalise_returns": returns}))
    kept = load_checkpoint(first.checkpoint).normalisers["reward_scale"]
    assert kept["discounted"].any() and kept["moments"]["count"] == 320
    config = make_config(actors=6, total_steps=None, ppo={"normalise_rewards": True, "normalise_returns": not returns})
    begun = {"initial": first.checkpoint, "stop": lambda: True}
    second, _ = fly(tmp_path / "b", config, env=MixedEndingsEnv(6), **begun)
    taken = load_checkpoint(second.checkpoint).normalisers["reward_scale"]
    assert all(torch.equal(taken["moments"][name], x) for name, x in kept["moments"].items())
    assert taken["discounted"].tolist() == [0.0] * 6


def test_initial_weights_of_another_core_are_refused(straight, tmp_path):
    with pytest.raises(CheckpointError, match=r"mamba2.*--init none"):
        fly(tmp_path, make_config(policy={"core": "mamba2"}), initial=straight[0].checkpoint)


def test_initial_weights_of_another_width_are_refused_in_one_line(straight, tmp_path):
    with pytest.raises(CheckpointError, match=r"another network, .*; \d+ more like it; begin with") as reported:
        fly(tmp_path, make_config(policy={"width": 32}), initial=straight[0].checkpoint)
    assert "\n" not in str(reported.value)


def test_run_stopped_before_its_first_update_has_no_reward(straight, tmp_path):
    """Zero would exceed every trained version whose smoothed reward is negative, and take the alias latest."""
    from navi_core.cli.training.inputs import enter_version

    registry = Registry(tmp_path / "models")
    trained = load_checkpoint(straight[0].checkpoint)
    poor = tmp_path / "poor.pt"
    torch.save({f.name: getattr(trained, f.name) for f in fields(trained)} | {"reward_ema": -2.0}, poor)
    registry.register(poor)
    result, _ = fly(tmp_path, make_config(seed=9), stop=lambda: True)
    assert result.steps == 0 and math.isnan(result.reward_ema)
    assert math.isnan(load_checkpoint(result.checkpoint).reward_ema)
    assert enter_version(registry, result) == ("v002", False)
    assert registry.resolve("latest").version == "v001" and registry.resolve("v002").metrics["reward_ema"] is None
    # Going on from there, the first decision sets the average.
    on, rows = fly(tmp_path, make_config(seed=9), **stopper(1))
    assert on.resumed_from == 0 and math.isfinite(on.reward_ema) and on.reward_ema == rows[64, "reward_ema"]


def test_a_run_does_not_resume_in_other_scenes(tmp_path):
    """Poses, recurrent states and semantic ids of a checkpoint belong to the scenes it was made in."""

    def room(width: float):
        mesh = mesh_of(box_triangles((0, 0, 0), (width, 2.5, 4)), "room")
        return Field([compile_mesh(mesh, CompileConfig(resolution=64))])

    config = make_config(total_steps=ROWS * 16 * 2)
    with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=config) as run:
        log = run.metric_log(tmp_path / "outbox")
        first = train(config, run, field=room(4.0), log=log, **stopper(1))
        assert first.steps == 64
        with pytest.raises(CheckpointError, match=r"scenes have changed since step 64 \(room\).*--fresh"):
            train(config, run, field=room(4.5), log=log)
        last = train(config, run, field=room(4.0), log=log)
    assert (last.resumed_from, last.steps) == (64, 128)


def test_checkpoint_lists_scenes_of_all_its_ancestors(tmp_path):
    """Scenes of the run and of its initial weights, by content and source hash, also after a resume."""
    fields = [
        Field([compile_mesh(mesh_of(box_triangles((0, 0, 0), (width, 2.5, 4)), "room"), CompileConfig(resolution=64))])
        for width in (4.0, 4.5)
    ]
    config, seen, begin = make_config(total_steps=ROWS * 16 * 2), set(), None
    for number, field in enumerate(fields):
        seen |= {field.scenes[0].content_hash(), field.scenes[0].source_hash}
        with RunDirectory.open(tmp_path / str(number), asset="toy", partition="p", config=config) as run:
            log = run.metric_log(tmp_path / "outbox")
            train(config, run, field=field, log=log, initial=begin, **stopper(1))
            begin = train(config, run, field=field, log=log).checkpoint
        assert trained_on(load_checkpoint(begin)) == seen
    assert len(seen) == 4


@pytest.mark.slow
def test_the_ray_kernels_do_not_change_the_threads_of_training(tmp_path):
    """In a process whose first kernel call is made by the run: it would leave torch with every core."""
    code = """
import sys, torch
from pathlib import Path
from tests.conftest import box_triangles, mesh_of
from tests.learn.run.test_train_loop import ROWS, make_config
from navi_core.config import CompileConfig
from navi_core.learn import train
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from navi_core.scenes import compile_mesh
from navi_core.world import Field
scene = compile_mesh(mesh_of(box_triangles((0, 0, 0), (4, 2.5, 4)), "room"), CompileConfig(resolution=64))
config, root = make_config(threads=1, total_steps=ROWS * 16), Path(sys.argv[1])
with RunDirectory.open(root, asset="a", partition="p", config=config) as run:
    train(config, run, field=Field([scene]), log=run.metric_log(root / "outbox"),
          events=EventBus({UpdateMade: lambda p: print("threads", torch.get_num_threads())}))
"""
    place = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["threads", "1"], done.stdout + done.stderr


def test_run_without_field_or_with_open_directory_is_refused(tmp_path):
    config = make_config()
    with RunDirectory.open(tmp_path, asset="toy", partition="p", config=config) as run:
        with pytest.raises(ConfigError, match="field="):
            train(config, run, log=run.metric_log(tmp_path / "outbox"))
        with pytest.raises(RunError, match=str(os.getpid())):
            RunDirectory.open(tmp_path, asset="toy", partition="p", config=config)


@pytest.mark.slow
def test_ppo_learns_to_remember(tmp_path):
    """A sign shown once must be acted on for five decisions: impossible without memory."""
    config = make_config(
        actors=32,
        total_steps=32 * 24 * 14,
        checkpoint_every=10**9,
        shaper={"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
        ppo={"rollout": 24, "bptt": 24, "minibatch": 8, "learning_rate": 3e-3, "gamma": 0.5, "target_kl": None},
    )
    returns = []
    result, _ = fly(
        tmp_path,
        config,
        env=MemoryEnv(32, length=6),
        events=EventBus({UpdateMade: lambda p: returns.append(p.metrics["episode_return"])}),
    )
    assert abs(returns[0]) < 0.6
    assert sum(returns[-3:]) / 3 > 3.0, "the best possible return is 5"
    assert result.reason == "total_steps"
