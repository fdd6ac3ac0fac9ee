"""Behaviour cloning: the loss, the walk over episodes, what stays frozen, and runs that survive being stopped."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import TrainConfig, parse_config
from navi_core.demos import load_dataset, save_demonstration, write_index
from navi_core.errors import CheckpointError, ConfigError, DemoError, NaviError, NonFiniteError
from navi_core.learn import CloningLearner, clone, cloning_loss, train
from navi_core.learn.demos.sequences import DemoFeed
from navi_core.models import Registry, load_checkpoint, load_policy, trained_on
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import RunDirectory
from tests.demos.conftest import make_demo

CPU = torch.device("cpu")
SMALL = {"azimuth_bins": 16, "elevation_bins": 8}


def teach(demo, seed):
    """A sign at the start of an episode says which way to turn all along; how fast to fly is seen at each decision."""
    rng = np.random.default_rng(seed)
    obs, actions = demo.observations, np.zeros_like(demo.actions)
    obs[:, 0] = 0.4
    for begin, stop in demo.episodes():
        turn = rng.choice([-0.8, 0.8])
        obs[begin, 0] += 0.2 * turn
        actions[begin:stop, 3] = turn
    near = rng.uniform(-0.1, 0.1, len(obs)).astype(np.float32)
    obs[:, 0, :4] += near[:, None, None]
    actions[:, 0] = near * 8
    object.__setattr__(demo, "actions", actions)
    return demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five scenes of three flights of 11, 20 and 9 decisions."""
    path = tmp_path_factory.mktemp("demos")
    demos = [teach(make_demo(40, seed=n, scene=f"room{n}", starts=(0, 11, 31)), n) for n in range(5)]
    for number, demo in enumerate(demos):
        save_demonstration(path / f"{number}.npz", demo)
    write_index(path, ((f"{n}.npz", demo) for n, demo in enumerate(demos)))
    return path


@pytest.fixture(scope="module")
def data(folder):
    return load_dataset([folder])


def make_config(data, **settings):
    base = {
        "algorithm": "bc",
        "threads": 1,
        "device": "cpu",
        "checkpoint_every": 400,
        "env": dict(SMALL),
        "policy": {"encoder": "ring_cnn", "core": "gru", **SMALL},
        "shaper": {"memory_capacity": 64},
        "bc": {"data": data.content_hash, "epochs": 6, "sequences": 4, "bptt": 8, "learning_rate": 3e-3},
    }
    for key, value in settings.items():
        base[key] = base.get(key, {}) | value if isinstance(value, dict) else value
    return parse_config(TrainConfig, base)


def fly(root, data, config, **options):
    with RunDirectory.open(root, asset="bc", partition="toy", config=config) as run:
        return clone(config, run, data, log=run.metric_log(root / "outbox"), **options)


def make_learner(config):
    policy = build_policy(config.policy, seed=config.seed)
    return policy, CloningLearner(policy, None, config, CPU)


def test_the_loss_is_that_of_the_formula():
    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, -90.0]])
    mask = torch.tensor([[True, True], [True, False]])
    total, nll = cloning_loss(log_prob, torch.full((2, 2), 4.0), mask, 0.01)
    assert nll.item() == pytest.approx(2.0) and total.item() == pytest.approx(2.0 - 0.04)


def test_the_entropy_that_is_told_is_that_of_the_decisions_of_the_epoch(data):
    """A Beta policy's differs from decision to decision; that of the last minibatch, padding and all, says little."""
    learner = make_learner(make_config(data, policy={"distribution": "beta"}, bc={"sequences": 3, "bptt": 6}))[1]
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=3, bptt=6)
    seen, score = [], learner._score
    learner._score = lambda *a: seen.append(score(*a)) or seen[-1]
    told = learner.update(feed, index=0, steps=0).metrics
    masks = [batch.mask for batch in feed.epoch(0, CPU)]
    assert len(masks) > 3 and not masks[-1].all()
    every = torch.cat([out.entropy.detach()[mask] for out, mask in zip(seen, masks, strict=True)])
    assert told["entropy"] == pytest.approx(float(every.double().mean()), rel=1e-5) and every.std() > 1e-3
    scores = torch.cat([out.log_prob.detach()[mask] for out, mask in zip(seen, masks, strict=True)])
    assert told["nll"] == pytest.approx(-float(scores.double().mean()), rel=1e-5)


def test_an_epoch_holds_every_decision_once_and_no_sequence_crosses_an_episode(data):
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8)
    assert {e.scene for e in feed.held_out}.isdisjoint({e.scene for e in feed.training})
    assert len(feed.held_out) == 3 and len(feed.training) == 12
    span = {n: e for e in data.episodes for n in range(e.start, e.stop)}
    # Every action is one of the data's, so that a decision can be told by it.
    place = {data.observations(np.array([n])).tobytes(): n for n in range(len(data))}
    seen: list[int] = []
    lane_of: dict[int, int] = {}
    orders = []
    for epoch in (0, 0, 1):
        seen.clear()
        for batch in feed.epoch(epoch, CPU):
            assert len(batch.lanes) <= 4 and batch.obs.shape[1] == 8
            for row in range(len(batch.lanes)):
                numbers = [place[batch.obs[row, t].numpy().tobytes()] for t in range(8)]
                kept = [n for n, counts in zip(numbers, batch.mask[row].tolist(), strict=True) if counts]
                episode = span[kept[0]]
                assert all(span[n] is episode for n in numbers) and kept == list(range(kept[0], kept[0] + len(kept)))
                assert batch.reset[row].tolist() == [n == episode.start and t == 0 for t, n in enumerate(numbers)]
                lane = int(batch.lanes[row])
                if kept[0] != episode.start:
                    assert lane_of[lane] == kept[0], "a lane goes on where it stopped"
                lane_of[lane] = kept[-1] + 1
                seen += kept
        assert sorted(seen) == sorted(n for e in feed.training for n in range(e.start, e.stop))
        assert len(seen) == feed.steps
        orders.append(list(seen))
    assert orders[0] == orders[1] != orders[2]


def test_episodes_are_held_out_where_scenes_are_few(folder, data, tmp_path):
    demo = make_demo(60, starts=(0, 10, 20, 30, 40, 50))
    save_demonstration(tmp_path / "a.npz", demo)
    write_index(tmp_path, [("a.npz", demo)])
    feed = DemoFeed(load_dataset([tmp_path]), seed=3, validation=0.3, lanes=2, bptt=5)
    assert len(feed.held_out) == 2 and len(feed.training) == 4
    assert len(list(feed.epoch(0, CPU))) == 4, "episodes of two whole sequences end with the second"
    demo = make_demo(10)
    save_demonstration(tmp_path / "a.npz", demo)
    write_index(tmp_path, [("a.npz", demo)])
    with pytest.raises(DemoError, match="hold out"):
        DemoFeed(load_dataset([tmp_path]), seed=0, validation=0.1, lanes=2, bptt=4)


@pytest.mark.parametrize("policy", [{"core": "gru", "separate_value": True}, {"core": "mamba2"}])
def test_walking_in_sequences_is_the_whole_episode_at_once(data, policy):
    """The slow twin: every held-out episode through the policy in one piece, from a zero state."""
    config = make_config(data, policy=policy)
    policy, learner = make_learner(config)
    feed = DemoFeed(data, seed=0, validation=0.4, lanes=3, bptt=4)
    total, count = 0.0, 0
    with torch.no_grad():
        for episode in feed.held_out:
            index = np.arange(episode.start, episode.stop)
            obs = torch.from_numpy(data.observations(index))[None]
            reset = torch.zeros(1, len(index), dtype=torch.bool)
            out = policy.evaluate(
                obs, torch.zeros(1, len(index), 3), policy.initial_state(1), reset,
                torch.from_numpy(data.actions[index])[None],
            )  # fmt: skip
            total -= float(out.log_prob.double().sum())
            count += len(index)
    assert learner.validate(feed) == pytest.approx(total / count, abs=1e-4)


def test_the_deviation_and_the_critic_stay_and_the_rest_learns(data):
    config = make_config(data)
    policy, learner = make_learner(config)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8)
    first = learner.update(feed, index=0, steps=0).metrics["nll"]
    for epoch in range(1, 12):
        last = learner.update(feed, index=epoch, steps=0).metrics["nll"]
    assert last < first - 0.2
    for name, value in policy.state_dict().items():
        same = torch.equal(value, before[name])
        frozen = name == "heads.log_std" or name.startswith("heads.critic") or name == "aux.weight"
        assert same == frozen, name


def test_gradients_of_what_is_not_learned_do_not_add_up(data):
    """A compiled evaluation gives the critic gradients of zeros, which lie in a graph's memory: the next replay's."""
    config = make_config(data)
    policy, learner = make_learner(config)
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.update(feed, index=0, steps=0)
    assert all(p.grad is None for name, p in policy.named_parameters() if name.startswith("heads.critic."))


def test_a_teacher_with_a_memory_is_cloned(data):
    """The turn is decided by the first observation alone; a clone without memory could not know it."""
    policy, learner = make_learner(make_config(data))
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8)
    before = learner.validate(feed)
    for epoch in range(25):
        learner.update(feed, index=epoch, steps=0)
    assert learner.validate(feed) < before - 0.5
    for episode in feed.held_out:
        index = np.arange(episode.start, episode.stop)
        state, turns = policy.initial_state(1), []
        with torch.no_grad():
            for t, n in enumerate(index):
                obs = torch.from_numpy(data.observations(np.array([n])))
                out = policy.act(obs, torch.zeros(1, 3), state, torch.tensor([t == 0]), None)
                state = out.state
                turns.append(float(out.action[0, 3]))
        assert np.sign(turns[-1]) == np.sign(data.actions[index[0], 3])


def test_a_run_validates_records_and_keeps_its_best_epoch(tmp_path, data):
    seen = []
    result = fly(tmp_path, data, make_config(data, bc={"learning_rate": 5e-4}), progress=seen.append)
    assert [p.updates for p in seen] == [1, 2, 3, 4, 5, 6] and result.reason == "epochs"
    held_out = [p.metrics["validation_nll"] for p in seen]
    assert load_checkpoint(result.checkpoint).training_source == "bc"
    assert result.metrics["best_validation_nll"] == min(held_out) < held_out[0]
    assert "held out" in seen[-1].line()
    best = load_checkpoint(result.checkpoint)
    assert best.extra["counters"]["best_epoch"] == 1 + held_out.index(min(held_out))
    assert best.corpus_summary["semantic_vocabulary"] == data.vocabulary and len(best.corpus_summary["held_out"]) == 1
    assert trained_on(best) == {*data.scene_hashes.values(), *data.sources}
    assert best.rnd_state and math.isnan(best.reward_ema) and best.decision_hz == 10.0
    rows = [json.loads(line) for f in sorted((tmp_path / "outbox").glob("*-metrics.ndjson")) for line in f.open()]
    names = {row["name"] for row in rows if "name" in row}
    assert {"nll", "validation_nll", "grad_norm", "entropy"} <= names


def test_a_kill_between_a_checkpoint_and_its_row_costs_no_row(tmp_path, data, monkeypatch):
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


def test_stopped_anywhere_and_resumed_is_straight_through(tmp_path, data):
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


def test_other_seeds_are_other_clones_and_the_same_seed_is_the_same(tmp_path, data):
    hashes = [
        load_checkpoint(
            fly(tmp_path / name, data, make_config(data, seed=seed, bc={"epochs": 2})).checkpoint
        ).weights_hash
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_it_goes_on_from_a_checkpoint(tmp_path, data):
    first = fly(tmp_path / "a", data, make_config(data, bc={"epochs": 8}))
    second = fly(tmp_path / "b", data, make_config(data, seed=1, bc={"epochs": 2}), initial=first.checkpoint)
    checkpoint = load_checkpoint(second.checkpoint)
    assert second.initial == checkpoint.parent_checkpoint == str(first.checkpoint)
    fresh = fly(tmp_path / "c", data, make_config(data, seed=1, bc={"epochs": 2}))
    assert second.metrics["nll"] < fresh.metrics["nll"] - 0.1
    with pytest.raises(CheckpointError, match=r"mamba2.*gru|gru.*mamba2"):
        fly(tmp_path / "d", data, make_config(data, policy={"core": "mamba2"}), initial=first.checkpoint)


def test_scenes_that_were_learned_from_are_not_held_out_of_what_goes_on_from_there(tmp_path, data):
    """With another seed, or more scenes, the split would be another one: the loss would be that of known scenes."""

    def split(result):
        told = load_checkpoint(result.checkpoint).corpus_summary
        return set(told["held_out"]), set(told["learned"])

    first = fly(tmp_path / "first", data, make_config(data, bc={"epochs": 1}))
    held, learned = split(first)
    assert held | learned == {f"room{n}" for n in range(5)} and not held & learned
    for seed in range(1, 3):
        config = make_config(data, seed=seed, bc={"epochs": 2})
        there, made = tmp_path / f"then{seed}", []
        then = fly(there, data, config, initial=first.checkpoint, stop=made.__len__, progress=made.append)
        assert split(then)[0] == held
        # Stopped and given again, it holds out the same ones.
        again = fly(there, data, config, initial=first.checkpoint)
        assert again.resumed_from is not None and split(again)[0] == held
    # Where more is held out than was before, some of the known ones are.
    more = fly(
        tmp_path / "more", data, make_config(data, bc={"epochs": 1, "validation": 0.5}), initial=first.checkpoint
    )
    assert held < split(more)[0] and split(more)[1] == learned


def test_a_clone_carries_the_units_of_the_critic_that_it_does_not_learn(tmp_path, data):
    first = fly(tmp_path / "a", data, make_config(data, bc={"epochs": 1}))
    parent, scale = load_checkpoint(first.checkpoint), {"mean": torch.tensor(-7.0), "square": torch.tensor(60.0)}
    plain = {each.name: getattr(parent, each.name) for each in fields(parent)}
    told = tmp_path / "ppo.pt"
    torch.save(plain | {"normalisers": {"value_scale": scale | {"updates": 3}}}, told)
    config, seen = make_config(data, bc={"epochs": 4, "learning_rate": 1e-4}), []
    fly(tmp_path / "b", data, config, initial=told, stop=lambda: len(seen) > 1, progress=seen.append)
    second = fly(tmp_path / "b", data, config, initial=told)
    assert second.resumed_from and second.initial == str(told)
    for kept in (second.checkpoint, max((tmp_path / "b").rglob("step-*.pt"))):
        assert load_checkpoint(kept).normalisers == {"value_scale": scale | {"updates": 3}}
    assert load_checkpoint(first.checkpoint).normalisers == {}


def test_a_clone_does_not_read_the_auxiliary_input_it_never_saw(tmp_path, data):
    config = make_config(data, bc={"epochs": 1}, policy={"separate_value": True})
    policy, _ = load_policy(fly(tmp_path / "a", data, config).checkpoint)
    obs, state, reset = torch.rand(2, 3, 16, 8), policy.initial_state(2), torch.zeros(2, dtype=torch.bool)
    with torch.no_grad():
        without, given = (policy.act(obs, aux, state, reset, None) for aux in (torch.zeros(2, 3), torch.ones(2, 3)))
    assert torch.equal(without.action, given.action) and torch.equal(without.value, given.value)


def test_what_does_not_fit_is_refused(tmp_path, data):
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
        pytest.raises(ConfigError, match="navi bc"),
    ):
        train(config, run, env=object(), log=run.metric_log(tmp_path / "outbox"))


def test_a_clone_is_learned_in_the_precision_that_was_asked_for(tmp_path, data):
    made = {}
    for precision in ("fp32", "bf16"):
        config = make_config(data, precision=precision, bc={"epochs": 2})
        made[precision] = fly(tmp_path / precision, data, config)
    one, two = (load_checkpoint(x.checkpoint).policy_state for x in made.values())
    assert not torch.equal(one["heads.actor.0.weight"], two["heads.actor.0.weight"])
    assert all(x.dtype == torch.float32 for x in two.values())
    assert made["bf16"].metrics["nll"] == pytest.approx(made["fp32"].metrics["nll"], abs=0.05)


def test_a_clone_is_learned_by_the_execution_that_was_asked_for(data):
    with pytest.raises(ConfigError, match=r"execution graph .* cpu"):
        make_learner(make_config(data, execution="graph"))


@pytest.mark.slow
def test_a_compiled_clone_is_the_same(data):
    feed, made = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8), []
    for execution in ("eager", "compile"):
        _, learner = make_learner(make_config(data, execution=execution))
        # Adam turns roundings of tiny gradients into whole steps, so what is compared after them is the loss.
        made.append((learner.validate(feed), learner.update(feed, index=0, steps=0).metrics["nll"]))
    assert made[1][0] == pytest.approx(made[0][0], abs=1e-5) and made[1][1] == pytest.approx(made[0][1], abs=1e-3)


def test_cloning_tells_that_it_is_not_stopped_early(tmp_path, data, caplog):
    config = make_config(data, early_stopping={"enabled": True, "eval_interval": 1, "patience": 1}, bc={"epochs": 2})
    with caplog.at_level("WARNING", logger="navi.learn"):
        result = fly(tmp_path, data, config)
    assert result.reason == "epochs" and "early_stopping does not end cloning" in caplog.text


def test_an_infinite_loss_stops_the_run_by_name(data):
    policy, learner = make_learner(make_config(data))
    with torch.no_grad():
        policy.heads.actor[0].weight[0, 0] = math.inf
    with pytest.raises(NonFiniteError, match="nll"):
        learner.update(DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8), index=0, steps=0)


def test_the_curiosity_of_a_clone_is_that_of_a_new_run(tmp_path, data):
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


def test_from_demonstrations_to_a_clone_to_a_reinforcement_learner(tmp_path, folder, monkeypatch):
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


def test_a_clone_that_is_no_version_is_a_checkpoint_to_train_on_from(tmp_path, folder, monkeypatch):
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
