"""Cloning runs: records, resume, checkpoints, refusals, and the command."""

from __future__ import annotations

import json
import math
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import CheckpointError, ConfigError, NaviError, NonFiniteError
from navi_core.learn import train
from navi_core.learn.algorithms.cloning import DemoFeed
from navi_core.models import Registry, load_checkpoint, load_policy, trained_on
from navi_core.policy import RewardShaper
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from tests.learn.algorithms.test_cloning import CPU, SMALL, fly, make_config, make_learner


def test_cloning_run_keeps_its_best_epoch(tmp_path, data):
    seen, progress, began = [], [], time.perf_counter()
    events = EventBus({UpdateMade: seen.append})
    events.progress = lambda *done_and_total: progress.append(done_and_total)
    result = fly(tmp_path, data, make_config(data, bc={"learning_rate": 5e-4}), events=events)
    assert [p.updates for p in seen] == [1, 2, 3, 4, 5, 6] and result.reason == "epochs"
    assert progress[:2] == [(0, result.steps), (4 * 8, result.steps)], "a minibatch is four sequences of eight"
    held_out = [p.metrics["validation_nll"] for p in seen]
    assert load_checkpoint(result.checkpoint).training_source == "bc"
    assert result.metrics["best_validation_nll"] == min(held_out) < held_out[0]
    assert "held out" in seen[-1].line()
    best = load_checkpoint(result.checkpoint)
    assert best.extra["counters"]["best_epoch"] == 1 + held_out.index(min(held_out))
    assert best.corpus_summary["semantic_vocabulary"] == data.vocabulary and len(best.corpus_summary["held_out"]) == 1
    assert trained_on(best) == {*data.scene_hashes.values(), *data.sources}
    assert best.rnd_state and math.isnan(best.reward_ema) and best.decision_hz == 10.0
    assert 0.0 < 3600.0 * best.wall_time_hours < time.perf_counter() - began
    rows = [json.loads(line) for f in sorted((tmp_path / "outbox").glob("*-metrics.ndjson")) for line in f.open()]
    names = {row["name"] for row in rows if "name" in row}
    assert {"nll", "validation_nll", "grad_norm", "entropy"} <= names


def test_kill_between_checkpoint_and_row_loses_no_row(tmp_path, data, monkeypatch):
    config = make_config(data)
    fly(tmp_path / "a", data, config)
    with monkeypatch.context() as patch:
        patch.setattr("navi_core.learn.run.records.RunRecord.checkpoint", lambda *args, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fly(tmp_path / "b", data, config)
    fly(tmp_path / "b", data, config)
    steps = [
        {
            json.loads(line)["step"]
            for file in (tmp_path / run / "outbox").glob("*-checkpoints.ndjson")
            for line in file.read_text().splitlines()[1:]
        }
        for run in "ab"
    ]
    assert steps[0] == steps[1] and len(steps[0]) > 1


def test_stopped_and_resumed_cloning_equals_straight_run(tmp_path, data):
    config = make_config(data)
    straight = fly(tmp_path / "a", data, config)
    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        return calls % 23 == 0

    starts = 0
    while True:
        result = fly(tmp_path / "b", data, config, stop=stop)
        starts += 1
        if result.reason == "epochs":
            break
        assert starts < 30
    assert starts > 2 and result.resumed_from is not None
    for name in ("best.pt", sorted(p.name for p in straight.checkpoint.parent.glob("step-*.pt"))[-1]):
        one, two = (load_checkpoint(r.checkpoint.parent / name) for r in (straight, result))
        assert all(torch.equal(one.policy_state[k], two.policy_state[k]) for k in one.policy_state)
        assert one.extra["counters"]["best"] == two.extra["counters"]["best"]
    again = fly(tmp_path / "a", data, config)
    assert again.resumed_from == again.steps == straight.steps, "a finished run makes no further epoch"


@pytest.mark.slow
def test_clones_depend_on_the_seed(tmp_path, data):
    hashes = [
        load_checkpoint(
            fly(tmp_path / name, data, make_config(data, seed=seed, bc={"epochs": 2})).checkpoint
        ).weights_hash
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_cloning_starts_from_checkpoint_weights(tmp_path, data):
    first = fly(tmp_path / "a", data, make_config(data, bc={"epochs": 8}))
    second = fly(tmp_path / "b", data, make_config(data, seed=1, bc={"epochs": 2}), initial=first.checkpoint)
    checkpoint = load_checkpoint(second.checkpoint)
    assert second.initial == checkpoint.parent_checkpoint == str(first.checkpoint)
    fresh = fly(tmp_path / "c", data, make_config(data, seed=1, bc={"epochs": 2}))
    assert second.metrics["nll"] < fresh.metrics["nll"] - 0.1
    with pytest.raises(CheckpointError, match=r"mamba2.*gru|gru.*mamba2"):
        fly(tmp_path / "d", data, make_config(data, policy={"core": "mamba2"}), initial=first.checkpoint)


def test_scenes_learned_by_the_parent_are_not_held_out(tmp_path, data):
    """With another seed, or more scenes, the split would be another one: the loss would be that of known scenes."""

    def split(result):
        reported = load_checkpoint(result.checkpoint).corpus_summary
        return set(reported["held_out"]), set(reported["learned"])

    first = fly(tmp_path / "first", data, make_config(data, bc={"epochs": 1}))
    held, learned = split(first)
    assert held | learned == {f"room{n}" for n in range(5)} and not held & learned
    for seed in range(1, 3):
        config = make_config(data, seed=seed, bc={"epochs": 2})
        there, made = tmp_path / f"then{seed}", []
        then = fly(
            there, data, config, initial=first.checkpoint, stop=made.__len__, events=EventBus({UpdateMade: made.append})
        )
        assert split(then)[0] == held
        # Stopped and given again, it holds out the same ones.
        again = fly(there, data, config, initial=first.checkpoint)
        assert again.resumed_from is not None and split(again)[0] == held
    # Where more is held out than was before, some of the known ones are.
    more = fly(
        tmp_path / "more", data, make_config(data, bc={"epochs": 1, "validation": 0.5}), initial=first.checkpoint
    )
    assert held < split(more)[0] and split(more)[1] == learned


def test_clone_keeps_critic_units(tmp_path, data):
    first = fly(tmp_path / "a", data, make_config(data, bc={"epochs": 1}))
    parent, scale = load_checkpoint(first.checkpoint), {"mean": torch.tensor(-7.0), "square": torch.tensor(60.0)}
    plain = {each.name: getattr(parent, each.name) for each in fields(parent)}
    reported = tmp_path / "ppo.pt"
    torch.save(plain | {"normalisers": {"value_scale": scale | {"updates": 3}}}, reported)
    config, seen = make_config(data, bc={"epochs": 4, "learning_rate": 1e-4}), []
    fly(
        tmp_path / "b",
        data,
        config,
        initial=reported,
        stop=lambda: len(seen) > 1,
        events=EventBus({UpdateMade: seen.append}),
    )
    second = fly(tmp_path / "b", data, config, initial=reported)
    assert second.resumed_from and second.initial == str(reported)
    for kept in (second.checkpoint, max((tmp_path / "b").rglob("step-*.pt"))):
        assert load_checkpoint(kept).normalisers == {"value_scale": scale | {"updates": 3}}
    assert load_checkpoint(first.checkpoint).normalisers == {}


def test_clone_ignores_auxiliary_input(tmp_path, data):
    config = make_config(data, bc={"epochs": 1}, policy={"separate_value": True})
    policy, _ = load_policy(fly(tmp_path / "a", data, config).checkpoint)
    obs, state, reset = torch.rand(2, 3, 16, 8), policy.initial_state(2), torch.zeros(2, dtype=torch.bool)
    with torch.no_grad():
        without, given = (policy.act(obs, aux, state, reset, None) for aux in (torch.zeros(2, 3), torch.ones(2, 3)))
    assert torch.equal(without.action, given.action) and torch.equal(without.value, given.value)


def test_mismatched_settings_are_refused(tmp_path, data):
    for change, words in (
        ({"bc": {"data": "0" * 64}}, "bc.data"),
        ({"env": {"max_distance": 50.0}}, "max_distance"),
        ({"env": {"dynamics": {"steps_per_decision": 1}}}, "decisions per second"),
        ({"env": {"dynamics": {"max_speed": (4.0, 2.0, 3.0)}}}, "speed limits"),
        ({"algorithm": "ppo"}, "algorithm bc"),
        ({"policy": {"distribution": "discrete"}}, "motion primitives"),
    ):
        with pytest.raises(ConfigError, match=words):
            fly(tmp_path, data, make_config(data, **change))
    config = make_config(data)
    with (
        RunDirectory.open(tmp_path, asset="bc", partition="x", config=config) as run,
        pytest.raises(ConfigError, match="navi train bc"),
    ):
        train(config, run, env=object(), log=run.metric_log(tmp_path / "outbox"))


def test_cloning_uses_the_requested_precision(tmp_path, data):
    made = {}
    for precision in ("fp32", "bf16"):
        config = make_config(data, precision=precision, bc={"epochs": 2})
        made[precision] = fly(tmp_path / precision, data, config)
    one, two = (load_checkpoint(x.checkpoint).policy_state for x in made.values())
    assert not torch.equal(one["heads.actor.0.weight"], two["heads.actor.0.weight"])
    assert all(x.dtype == torch.float32 for x in two.values())
    assert made["bf16"].metrics["nll"] == pytest.approx(made["fp32"].metrics["nll"], abs=0.05)


def test_graph_execution_is_refused_on_the_cpu(data):
    with pytest.raises(ConfigError, match=r"execution graph .* cpu"):
        make_learner(make_config(data, execution="graph"))


@pytest.mark.slow
def test_compiled_cloning_equals_eager_cloning(data):
    feed, made = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8), []
    for execution in ("eager", "compile"):
        _, learner = make_learner(make_config(data, execution=execution))
        # Adam turns roundings of tiny gradients into whole steps, so the loss is compared after them.
        made.append((learner.validate(feed), learner.update(feed, index=0, steps=0).metrics["nll"]))
    assert made[1][0] == pytest.approx(made[0][0], abs=1e-5) and made[1][1] == pytest.approx(made[0][1], abs=1e-3)


def test_cloning_is_not_stopped_early(tmp_path, data):
    config = make_config(data, early_stopping={"enabled": True, "eval_interval": 1, "patience": 1}, bc={"epochs": 2})
    assert fly(tmp_path, data, config).reason == "epochs"


def test_an_infinite_loss_stops_the_run_by_name(data):
    policy, learner = make_learner(make_config(data))
    with torch.no_grad():
        policy.heads.actor[0].weight[0, 0] = math.inf
    with pytest.raises(NonFiniteError, match="nll"):
        learner.update(DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8), index=0, steps=0)


def test_clone_checkpoint_has_fresh_rnd_state(tmp_path, data):
    config = make_config(data, bc={"epochs": 1})
    state = load_checkpoint(fly(tmp_path, data, config).checkpoint).rnd_state
    fresh = RewardShaper(config.shaper, 1, config.policy.width, config.seed, CPU).state_dict()
    assert "memory" not in state
    assert all(torch.equal(state["rnd"][k], fresh["rnd"][k]) for k in fresh["rnd"])


def navi(*arguments: str):
    result = CliRunner().invoke(
        build_app(groups=("training.bc", "training.train"), plugins=False), [*arguments, "--json"]
    )
    if isinstance(result.exception, NaviError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


@pytest.mark.slow
def test_ppo_continues_from_a_registered_clone(tmp_path, folder, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("NAVI_HOME", str(home))
    file = tmp_path / "settings.json"
    settings = {
        "actors": 4, "threads": 1, "device": "cpu", "compile": {"resolution": 64},
        "corpus": {"families": {"apartment": [3]}},
        "env": {**SMALL, "max_steps": 40},
        "policy": {"encoder": "ring_cnn", "core": "gru", **SMALL},
        "ppo": {"rollout": 16, "bptt": 8, "minibatch": 4},
        "shaper": {"loop_coefficient": 0.0, "memory_capacity": 64},
    }  # fmt: skip
    file.write_text(json.dumps(settings))
    cloned = navi("bc", "--demos", str(folder), "--config", str(file), "--epochs", "2")
    registry = Registry(home / "models")
    assert cloned["version"] == "v001" and registry.resolve("v001").parents == ()
    assert registry.resolve("v001").training_source == "bc" and registry.resolve("v001").tags == ("bc",)
    assert navi("bc", "--demos", str(folder), "--config", str(file), "--epochs", "2")["resumed_from"] == cloned["steps"]

    learned = navi("train", "ppo", "--config", str(file), "--steps", "128", "--from", cloned["checkpoint"])
    child = registry.resolve(learned["version"])
    assert child.parents == ("v001",) and child.training_source == "rl"
    assert [v.version for v in registry.lineage(learned["version"])] == [learned["version"], "v001"]
    before, after = (load_checkpoint(path).policy_state["heads.log_std"] for path in (cloned["checkpoint"], child.path))
    assert torch.equal(before, torch.full((4,), -0.5)) and not torch.equal(before, after)

    further = navi(
        "bc", "--demos", str(folder), "--config", str(file), "--epochs", "1", "--from", "v001", "--seed", "5"
    )
    assert registry.resolve(further["version"]).parents == ("v001",)


def test_unregistered_clone_keeps_a_usable_checkpoint(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    command = ["bc", "--demos", str(folder), "--preset", "quick", "--epochs", "1", "--set", "device=cpu"]
    cloned = navi(*command, "--no-register")
    assert cloned["version"] is None and cloned["latest"] is False and Path(cloned["checkpoint"]).is_file()
    assert Registry(tmp_path / "home" / "models").list() == []
    shown = CliRunner().invoke(build_app(groups=("training.bc",), plugins=False), [*command, "--no-register"])
    assert "not to be registered" in shown.output
    assert navi(*command)["version"] == "v001"


def test_a_preset_file_names_the_partition_by_its_stem(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    (tmp_path / "best.yaml").write_text("bc: {epochs: 1}\npolicy: {encoder: ring_cnn, core: gru}\n")
    command = ["bc", "--demos", str(folder), "--preset", str(tmp_path / "best.yaml"), "--set", "device=cpu"]
    assert navi(*command, "--no-register")["run_id"].startswith("bc-best-")
