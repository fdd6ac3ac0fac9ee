"""Behaviour cloning: the loss, the walk over episodes, what stays frozen, and runs that survive being stopped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.demos import index_folder, load_dataset, save_demonstration
from navi_core.errors import DemoError
from navi_core.learn import CloningLearner, clone, cloning_loss
from navi_core.learn.algorithms.cloning import DemoFeed
from navi_core.policy import build_policy
from navi_core.record import RunDirectory
from tests.demos.conftest import make_demo

CPU = torch.device("cpu")
SMALL = {"azimuth_bins": 16, "elevation_bins": 8}


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


def test_cloning_loss_equals_the_formula():
    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, -90.0]])
    mask = torch.tensor([[True, True], [True, False]])
    total, nll = cloning_loss(log_prob, torch.full((2, 2), 4.0), mask, 0.01)
    assert nll.item() == pytest.approx(2.0) and total.item() == pytest.approx(2.0 - 0.04)


def test_reported_entropy_averages_the_decisions_of_the_epoch(data):
    """The entropy of a Beta policy varies by decision, so that of the last padded minibatch differs."""
    learner = make_learner(make_config(data, policy={"distribution": "beta"}, bc={"sequences": 3, "bptt": 6}))[1]
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=3, bptt=6)
    seen, score = [], learner._score
    learner._score = lambda *a: seen.append(score(*a)) or seen[-1]
    reported = learner.update(feed, index=0, steps=0).metrics
    masks = [batch.mask for batch in feed.epoch(0, CPU)]
    assert len(masks) > 3 and not masks[-1].all()
    every = torch.cat([out.entropy.detach()[mask] for out, mask in zip(seen, masks, strict=True)])
    assert reported["entropy"] == pytest.approx(float(every.double().mean()), rel=1e-5) and every.std() > 1e-3
    scores = torch.cat([out.log_prob.detach()[mask] for out, mask in zip(seen, masks, strict=True)])
    assert reported["nll"] == pytest.approx(-float(scores.double().mean()), rel=1e-5)


def test_epoch_sequences_cover_each_decision_once(data):
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8)
    assert {e.scene for e in feed.held_out}.isdisjoint({e.scene for e in feed.training})
    assert len(feed.held_out) == 3 and len(feed.training) == 12
    span = {n: e for e in data.episodes for n in range(e.start, e.stop)}
    # Every action is one of the data's, so that it identifies a decision.
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
    index_folder(tmp_path, ["a.npz"])
    feed = DemoFeed(load_dataset([tmp_path]), seed=3, validation=0.3, lanes=2, bptt=5)
    assert len(feed.held_out) == 2 and len(feed.training) == 4
    assert len(list(feed.epoch(0, CPU))) == 4, "episodes of two whole sequences end with the second"
    demo = make_demo(10)
    save_demonstration(tmp_path / "a.npz", demo)
    index_folder(tmp_path, ["a.npz"])
    with pytest.raises(DemoError, match="hold out"):
        DemoFeed(load_dataset([tmp_path]), seed=0, validation=0.1, lanes=2, bptt=4)


@pytest.mark.parametrize("policy", [{"core": "gru", "separate_value": True}, {"core": "mamba2"}])
def test_validation_in_sequences_equals_whole_episodes(data, policy):
    """Slow twin: each held-out episode passes the policy in one piece, from a zero state."""
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


def test_cloning_trains_all_but_deviation_and_critic(data):
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


def test_frozen_parameters_accumulate_no_gradient(data):
    """A compiled evaluation gives the critic zero gradients in graph memory, which the next replay overwrites."""
    config = make_config(data)
    policy, learner = make_learner(config)
    feed = DemoFeed(data, seed=0, validation=0.2, lanes=4, bptt=8)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.update(feed, index=0, steps=0)
    assert all(p.grad is None for name, p in policy.named_parameters() if name.startswith("heads.critic."))


def test_teacher_with_memory_is_cloned(data):
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
