"""Shards accept a rollout once, hold actors back, forget what is gone; minibatches of several shards are unbiased."""

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError, RunError
from navi_core.learn.parallel import Workers
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.scale import ReplayShard, ShardedReplay, check_apex
from navi_core.scale.cluster import LocalShard
from tests.scale.builders import apex_config, experience

CONFIG = apex_config(replay={"capacity": 32, "batch_size": 8}, dqn={"learning_starts": 8}, distributed={"ahead": 64})


def shards(count=2, config=CONFIG):
    ports = [LocalShard(i, lambda i=i: ReplayShard(config, i)) for i in range(count)]
    return ports, ShardedReplay(config, ports)


def test_a_rollout_sent_twice_counts_once():
    shard = ReplayShard(CONFIG, 0)
    assert shard.add(experience(0)) and shard.add(experience(0)) and shard.add(experience(1, first=8.0))
    status = shard.status("", 0, 0)
    assert [item.number for item in status.reports] == [0, 1]
    assert (status.items, status.added, status.repeated) == (16, 16, 1)
    assert shard.add(experience(0, life=2)), "another life is another sender"


def test_reports_stay_until_they_are_confirmed():
    shard = ReplayShard(CONFIG, 0)
    shard.add(experience(0))
    first = shard.status("", 0, 0)
    assert shard.status("", 0, 0).reports == first.reports, "an answer that was lost is asked for again"
    shard.add(experience(1))
    then = shard.status(first.token, first.cursor, 0)
    assert [item.number for item in then.reports] == [1]
    assert shard.status("another life", then.cursor, 0).reports == then.reports, "its cursor confirms nothing here"
    assert shard.status(then.token, then.cursor, 0).reports == ()


def test_actors_wait_while_the_learner_is_far_behind():
    shard = ReplayShard(CONFIG, 0)
    assert all(shard.add(experience(i)) for i in range(3)), "96 decisions: 64 may be unread before the last"
    assert not shard.add(experience(3))
    status = shard.status("", 0, 0)
    shard.status(status.token, status.cursor, 65)
    assert not shard.add(experience(3)), "read, but not learned from"
    shard.status(status.token, status.cursor, 64)
    assert shard.add(experience(3))


def test_priorities_update_only_the_drawn_items():
    shard = ReplayShard(CONFIG, 0)
    shard.add(experience(0, count=16))
    drawn = shard.draw(16)
    assert np.array_equal(drawn.serials, drawn.places)
    shard.add(experience(1, count=4, first=100.0))  # capacity 16: four of the first are written over
    before = shard.replay.priorities().numpy().copy()
    shard.update(drawn.token, drawn.places, drawn.serials, np.full(16, 9.0))
    after = shard.replay.priorities().numpy()
    assert np.array_equal(after[:4], before[:4]), "the new items keep their own"
    drawn_old = np.unique(drawn.places[drawn.places >= 4])
    assert np.allclose(after[drawn_old], 9.0**CONFIG.replay.alpha)
    gone = int((drawn.places < 4).sum())
    shard.update("another life", drawn.places, drawn.serials, np.full(16, 5.0))
    assert np.array_equal(shard.replay.priorities().numpy(), after)
    assert shard.status("", 0, 0).stale == gone + 16


def test_minibatches_of_unequal_shards_are_unbiased():
    """Σ w·f / Σ w over many draws is the mean of f over all items, with β 1, whatever the shards weigh."""
    config = apex_config(replay={"capacity": 64, "batch_size": 64, "alpha": 1.0})
    ports, replay = shards(2, config)
    rng = np.random.default_rng(0)
    sizes = (24, 8)
    for port, size, scale in zip(ports, sizes, (1.0, 50.0)):
        port.add(experience(0, count=size, first=100.0 * port.number, priorities=scale * rng.uniform(0.5, 2.0, size)))
    replay.anneal(1.0)
    total = weight = 0.0
    for _ in range(400):
        items, _, weights = replay.sample(64)
        # Divided by the largest of its minibatch, each draw has another unit; that of shard 0's share is brought back.
        unit = float(weights.double().sum())
        total += float((weights.double() * items["x"]).sum()) / unit
        weight += 1.0
    mean = (np.arange(24).sum() + (100.0 + np.arange(8)).sum()) / 32
    assert total / weight == pytest.approx(mean, rel=0.03)


def test_importance_weights_match_the_draw_probability():
    config = apex_config(replay={"capacity": 8, "batch_size": 2, "alpha": 1.0}, dqn={"learning_starts": 8})
    ports, replay = shards(2, config)
    ports[0].add(experience(0, count=1, priorities=[3.0]))
    ports[1].add(experience(0, count=2, first=10.0, priorities=[1.0, 4.0]))
    replay.beta = 1.0
    for _ in range(20):
        items, _, weights = replay.sample(2)
        chances = {0.0: 0.5, 10.0: 0.5 * 0.2, 11.0: 0.5 * 0.8}
        wanted = torch.tensor([1.0 / chances[float(x)] for x in items["x"]])
        torch.testing.assert_close(weights, wanted / wanted.max())


def test_importance_weights_of_a_substitute_shard():
    config = apex_config(replay={"capacity": 12, "batch_size": 3, "alpha": 1.0}, dqn={"learning_starts": 8},
                         distributed={"replay_shards": 3, "learners": 1, "actors_per_gpu": 2})  # fmt: skip
    ports, replay = shards(3, config)
    ports[0].add(experience(0, count=2, priorities=[1.0, 3.0]))
    ports[1].add(experience(0, count=1, first=10.0))
    replay.beta = 1.0
    for _ in range(20):
        items, _, weights = replay.sample(3)
        # The third shard is empty; the first gives its share and that one's.
        chances = {0.0: 2 / 3 * 0.25, 1.0: 2 / 3 * 0.75, 10.0: 1 / 3}
        wanted = torch.tensor([1.0 / chances[float(x)] for x in items["x"]])
        torch.testing.assert_close(weights, wanted / wanted.max())


def test_prefetched_minibatches_equal_single_ones():
    config = apex_config(replay={"capacity": 256, "batch_size": 16, "alpha": 1.0})
    ports = [LocalShard(i, lambda i=i: ReplayShard(config, i)) for i in range(2)]
    replay = ShardedReplay(config, ports, prefetch=4)
    for port in ports:
        port.add(experience(0, count=64, first=100.0 * port.number, priorities=np.arange(1, 65)))
    drawn = []
    for number in range(8):
        items, parts, weights = replay.sample(16)
        assert len(weights) == 16 and sum(drawn.places.size for _, drawn in parts) == 16
        low = items["x"][items["x"] < 100]
        assert float(low.max() - low.min()) > 20, "each minibatch is spread over all priorities"
        drawn += items["x"].tolist()
        replay.update(parts, torch.full((16,), 2.0))
        changed = bool((ports[0].shard.replay.priorities() != torch.arange(1, 65)).any())
        assert changed == (number >= 3), "priorities travel together as well"
    assert len(drawn) == 128 and np.mean(np.array(drawn) % 100) > 35, "by priority"


def test_lost_shard_is_replaced_and_others_substitute():
    ports, replay = shards()
    item = []
    replay._lost = lambda port: item.append(port.number)
    for port in ports:
        port.add(experience(0, count=8, first=100.0 * port.number))
    _, parts, _ = replay.sample(8)
    ports[1].shard = None
    replay.update(parts, torch.ones(8))
    assert item == [1] and ports[1].shard is not None
    items, parts, weights = replay.sample(8)
    assert len(weights) == 8 and bool((items["x"] < 100).all()), "the newcomer is empty"
    assert replay.status(ports[1], 0).items == 0
    ports[1].shard = None
    assert replay.status(ports[1], 0) is None and item == [1, 1]


def test_uneven_shards_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="2 shards cannot be shared by 3 learners"):
        check_apex(apex_config(distributed={"learners": 3}), Workers(0, 3))
    _, replay = shards()
    with pytest.raises(ConfigError, match=r"raise replay\.batch_size"):
        replay.sample(1)
    monkeypatch.setattr("navi_core.scale.sharded_replay._PATIENCE", 0.02)
    with pytest.raises(RunError, match="do the actors fly"):
        replay.sample(8)


def test_shard_save_and_load_round_trip(tmp_path):
    shard, again = (ReplayShard(CONFIG, 1) for _ in range(2))
    shard.add(experience(0, count=5, priorities=[1, 2, 3, 4, 5]))
    assert shard.save(str(tmp_path), "step-000000000032.pt") == 5
    assert again.load(str(tmp_path), "step-000000000032.pt", 5)
    assert torch.equal(again.replay.priorities(), shard.replay.priorities())
    assert not ReplayShard(CONFIG, 0).load(str(tmp_path), "step-000000000032.pt", 5), "another shard's folder"


def test_probabilities_are_fractions_of_the_sum():
    replay = PrioritizedReplay(4, alpha=1.0)
    replay.add({"x": torch.zeros(3)}, [1.0, 2.0, 5.0])
    assert replay.probabilities(torch.tensor([2, 0])).tolist() == [0.625, 0.125]


def test_shards_that_learners_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be shared by 1 learners"):
        ShardedReplay(apex_config(distributed={"replay_shards": 2}), [])
