"""Double DQN in the common run loop: transitions, sequences, resume with the replay, exploration, refusals."""

import logging
import resource
import signal
from dataclasses import replace

import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import CheckpointError
from navi_core.learn import Collector, DQNLearner, train
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.learn.replay.q_batches import SequenceBatches, TransitionBatches
from navi_core.learn.replay.replay_file import load_replay, save_replay
from navi_core.learn.rollout.storage import ObservationCodec
from navi_core.models import load_checkpoint, load_policy
from navi_core.policy import RewardShaper, build_policy
from navi_core.policy.distributions import table_index
from navi_core.policy.heads import QHead
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, ReplayUpdate, UpdateMade
from tests.learn.toy_environments import MixedEndingsEnv

ROWS = 4
CPU = torch.device("cpu")
QUIET = {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0}


def make_config(core="none", **changes) -> TrainConfig:
    data = {
        "algorithm": "dqn",
        "actors": ROWS,
        "seed": 5,
        "threads": 1,
        "device": "cpu",
        "total_steps": ROWS * 16 * 6,
        "checkpoint_every": ROWS * 16 * 2,
        "env": {"azimuth_bins": 16, "elevation_bins": 8},
        "policy": {"encoder": "ring_cnn", "core": core, "azimuth_bins": 16, "elevation_bins": 8},
        "shaper": QUIET,
        "dqn": {"rollout": 16, "bptt": 8, "learning_starts": 64, "replay_ratio": 2.0, "n_step": 3},
        "replay": {"capacity": 256, "batch_size": 32},
    }
    for key, value in changes.items():
        data[key] = data.get(key, {}) | value if isinstance(value, dict) else value
    return parse_config(TrainConfig, data)


def parts(config, env=None):
    """A collector and a learner of one policy on panoramas or a task."""
    env = env or MixedEndingsEnv(ROWS)
    policy = build_policy(config.policy, 0, env.spaces)
    shaper = RewardShaper(config.shaper, ROWS, config.policy.width, 0)
    learner = DQNLearner(policy, shaper, config, CPU)
    return Collector(env, policy, shaper, config, device=CPU), learner


def collected(collector):
    dqn = collector.config.dqn
    rollout = collector.new_rollout(dqn.rollout, dqn.bptt)
    collector.collect(rollout)
    return rollout


def fly(root, config, env=None, **kw):
    with RunDirectory.open(root / "runs", asset="toy", partition="p", config=config) as run:
        log = run.metric_log(root / "outbox")
        return train(config, run, env=env or MixedEndingsEnv(ROWS), log=log, **kw)


def test_transitions_bootstrap_from_the_observation_before_the_reset():
    collector, learner = parts(make_config())
    seen, acts, after = [], [], []
    step = collector.env.step

    def watched(actions):
        seen.append(collector.obs.clone())
        acts.append(actions.clone())
        batch = step(actions)
        after.append(batch)
        return replace(batch)

    collector._fly = watched  # what `env.step` became when the way of execution was chosen
    rollout = collected(collector)
    one_step = make_config(dqn={"gamma": 0.9, "n_step": 1})
    got = TransitionBatches(one_step, ObservationCodec((3, 16, 8)), aux=True).items(
        rollout, table_index(rollout.actions, learner.policy.heads.table)
    )
    truncated = 0
    for t in range(16):
        for b in range(ROWS):
            i, batch = t * ROWS + b, after[t]
            assert torch.equal(got["obs.0"][i], seen[t][b])
            over = bool(batch.terminated[b])
            assert float(got["discount"][i]) == pytest.approx(0.0 if over else 0.9)
            assert float(got["return"][i]) == float(batch.reward[b])
            if not over:
                assert torch.equal(got["next.0"][i], batch.final_obs[b]), "not the next episode's first"
                truncated += bool(batch.truncated[b])
            assert torch.equal(learner.policy.heads.table[got["action"][i]], acts[t][b])
    assert truncated > 2


@pytest.mark.parametrize("burn_in", [0, 8])
def test_sequence_targets_equal_stepwise_targets(burn_in):
    config = make_config("gru", dqn={"burn_in": burn_in})
    collector, learner = parts(config)
    policy, target = learner.policy, learner.target
    with torch.no_grad():
        for p in target.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    batches = SequenceBatches(config, ObservationCodec((3, 16, 8)))
    counts = []
    for _ in range(2):
        rollout = collected(collector)
        items = batches.items(rollout, table_index(rollout.actions, policy.heads.table))
        counts.append(len(items["action"]))
    assert counts == ([ROWS, 2 * ROWS] if burn_in else [2 * ROWS, 2 * ROWS])
    batch = batches.evaluate(items, policy, target)
    obs, length, gamma = items["obs.0"], burn_in + 8, config.dqn.gamma
    states = [x for name, x in items.items() if name.startswith("state.")]
    skipped = 0
    for s in range(len(obs)):
        values = []
        for net in (policy, target):
            state, walked = tuple(x[s : s + 1] for x in states), []
            for t in range(length + 1):
                reported = items["aux"][s : s + 1, t]
                _, features, state = net.step(obs[s : s + 1, t], reported, state, items["reset"][s : s + 1, t])
                walked.append(net.heads(features)[0].detach())
            values.append(torch.stack(walked))
        for t in range(burn_in, length):
            cut = items["truncated"][s] & ~items["terminated"][s]
            at = t - burn_in
            assert float(batch.q[s, at].detach()) == pytest.approx(float(values[0][t, items["action"][s, t]]), abs=1e-5)
            if cut[t]:
                assert batch.valid[s, at] == 0 and batch.target[s, at] == batch.q[s, at]
                skipped += 1
                continue
            total, k = 0.0, 0
            while True:
                total += gamma**k * float(items["reward"][s, t + k])
                k += 1
                over = bool(items["terminated"][s, t + k - 1])
                if over or k == 3 or t + k == length or cut[t + k]:
                    break
            best = int(values[0][t + k].argmax())
            wanted = total + (0.0 if over else gamma**k * float(values[1][t + k, best]))
            assert float(batch.target[s, at]) == pytest.approx(wanted, abs=1e-4)
    assert skipped


def test_gradient_equals_weighted_huber_loss():
    settings = {"huber": 0.05, "max_grad_norm": 1e9, "polyak": 0.25, "learning_rate": 2e-4}
    collector, learner = parts(make_config(dqn=settings))
    assert learner.update(collected(collector), index=0, steps=0).metrics["learning_rate"] == 2e-4
    before = [p.detach().clone() for p in learner.target.parameters()]
    items, _, weights = learner.replay.sample(32)
    learner.replay._draws -= 1
    batch = learner._batches.evaluate(items, learner.policy, learner.target)
    off = batch.target - batch.q
    loss = torch.where(off.abs() <= 0.05, 0.5 * off**2, 0.05 * (off.abs() - 0.025))
    wanted = torch.autograd.grad((weights * loss).mean(), learner.parameters)
    from navi_core.learn.rollout.execution import stage_timer

    figures = learner._gradient_step(stage_timer(CPU, False), 0)
    for got, right in zip(learner.parameters, wanted):
        torch.testing.assert_close(got.grad, right, rtol=1e-4, atol=1e-7)
    norm = torch.stack([w.norm() for w in wanted]).norm()
    reported = [(weights * loss).mean(), off.mean(), off.var(correction=0), batch.q.mean(), batch.target.mean(), norm]
    assert figures.tolist() == pytest.approx([float(x.detach()) for x in reported], rel=1e-4, abs=1e-6)
    for was, now, p in zip(before, learner.target.parameters(), learner.parameters):
        torch.testing.assert_close(now, 0.75 * was + 0.25 * p.detach())


def test_sequence_priority_mixes_largest_and_mean_error():
    config = make_config("gru")
    collector, learner = parts(config)
    learner.update(collected(collector), index=0, steps=0)
    assert learner.gradient_steps == 16 * ROWS * 2.0 / 32
    error = torch.tensor([[1.0, -3.0, 0.5], [2.0, 7.0, 0.0]])
    valid = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    drawn = learner._batches.errors(error, valid)
    assert drawn.tolist() == pytest.approx([0.9 * 3 + 0.1 * 1.5, 0.9 * 2 + 0.1 * 1])


def test_changes_of_the_replay_are_published_to_subscribers():
    collector, learner = parts(make_config())
    reported = []
    learner.events.subscribe(ReplayUpdate, reported.append)
    learner.update(collected(collector), index=0, steps=0)
    added, updated = reported
    assert (added.change, added.count, added.before, added.after) == ("added", 16 * ROWS, 0, 16 * ROWS)
    assert added.step == updated.step == 16 * ROWS and added.priority_stats["max"] == 1.0
    assert updated.change == "priorities" and updated.count == learner.gradient_steps * 32
    assert updated.priority_stats["min"] < updated.priority_stats["mean"] < updated.priority_stats["max"]


def test_periodic_target_copies_every_target_period():
    collector, learner = parts(make_config(dqn={"target_update": "periodic", "target_period": 3}))
    rollout = collected(collector)
    same = lambda: all(torch.equal(a, b) for a, b in zip(learner.target.parameters(), learner.parameters))  # noqa: E731
    learner.update(rollout, index=0, steps=0)
    assert learner.gradient_steps == 4 and not same()
    from navi_core.learn.rollout.execution import stage_timer

    for step in (5, 6):
        learner._gradient_step(stage_timer(CPU, False), 0)
        assert same() == (step % 3 == 0)


@pytest.mark.parametrize("update", ["polyak", "periodic"])
def test_target_network_update_keeps_no_graph(update):
    """Otherwise the target would keep a graph node of every step taken."""
    collector, learner = parts(make_config(dqn={"target_update": update, "target_period": 2}))
    learner.update(collected(collector), index=0, steps=0)
    assert learner.gradient_steps > 2
    assert all(p.is_leaf and not p.requires_grad for p in learner.target.parameters())


@pytest.mark.parametrize(("core", "burn_in"), [("none", 0), ("gru", 8), ("mamba2", 0)])
def test_resumed_equals_straight_through_with_the_replay(core, burn_in, tmp_path):
    config = make_config(core, dqn={"burn_in": burn_in, "replay_ratio": 1.0})
    whole = fly(tmp_path / "whole", config)
    seen = []
    first = fly(tmp_path / "parts", config, stop=lambda: len(seen) >= 3, events=EventBus({UpdateMade: seen.append}))
    assert first.steps == 192 and first.checkpoint.with_suffix(".replay").is_file()
    second = fly(tmp_path / "parts", config)
    assert second.resumed_from == 192 and second.steps == whole.steps == 384
    one, two = (load_checkpoint(r.checkpoint) for r in (whole, second))
    assert all(torch.equal(one.policy_state[k], two.policy_state[k]) for k in one.policy_state)
    assert whole.metrics["gradient_steps"] == second.metrics["gradient_steps"] > 0
    assert len(list(second.checkpoint.parent.glob("*.replay"))) == 2


def test_fresh_run_keeps_its_own_replays(tmp_path):
    """Replays of the previous run have higher numbers, and the last two files are kept."""
    config, short = make_config(), make_config(total_steps=ROWS * 16 * 2)
    folder = fly(tmp_path, config).checkpoint.parent
    assert len(list(folder.glob("*.replay"))) == 2
    with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=config) as run:
        log = run.metric_log(tmp_path / "outbox")
        again = train(short, run, env=MixedEndingsEnv(ROWS), log=log, fresh=True)
    assert again.steps == 128 and again.checkpoint.parent == folder
    assert [path.name for path in folder.glob("*.replay")] == [again.checkpoint.with_suffix(".replay").name]


def test_pruning_removes_replays_without_a_checkpoint_first(tmp_path):
    """A process killed between replay and checkpoint leaves a replay with a higher number than the next."""
    config, seen = make_config(), []
    folder = fly(
        tmp_path, config, stop=lambda: len(seen) >= 3, events=EventBus({UpdateMade: seen.append})
    ).checkpoint.parent
    for place in (folder, folder / "shard-0"):
        place.mkdir(exist_ok=True)
        (place / "step-000000009999.replay").write_bytes(b"x")
    assert fly(tmp_path, config).resumed_from == 192
    kept = list(folder.rglob("*.replay"))
    assert len(kept) == 2 and all(replay.with_suffix(".pt").exists() for replay in kept)


@pytest.mark.parametrize("there", [200, 900])
def test_a_replay_is_written_and_read_without_a_copy_in_memory(there, tmp_path):
    """It may fill most of the memory. One that is half empty is copied, or the file would hold the empty half, too."""
    replay = PrioritizedReplay(1000, seed=3)
    replay.add({"obs": torch.arange(there * 8.0).view(there, 8)})
    kept = replay.state_dict(copy=False)["fields"]["obs"]
    assert len(kept) == there and kept.untyped_storage().nbytes() // 32 == (1000 if there > 500 else there)
    assert replay.state_dict()["fields"]["obs"].untyped_storage().nbytes() // 32 == there
    save_replay(replay, tmp_path / "step-1.pt")
    again = PrioritizedReplay(1000, seed=3)
    assert load_replay(again, tmp_path / "step-1.pt", there)
    assert torch.equal(again.state_dict()["fields"]["obs"], replay.state_dict()["fields"]["obs"])


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.unlink(), "there is no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-900]), "not a zip file"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(bytes(4096), b"\1" * 4096, 1)),
            "does not have the checksum",
        ),
        (lambda path: torch.save({"added": 7}, path), "it is of another checkpoint"),
    ],
)
def test_a_run_warns_of_an_unusable_replay_and_begins_an_empty_one(tmp_path, caplog, harm, reason):
    replay = PrioritizedReplay(1000)
    replay.add({"obs": torch.zeros(500, 8)})
    save_replay(replay, tmp_path / "step-1.pt")
    harm(tmp_path / "step-1.replay")
    again = PrioritizedReplay(1000)
    assert not load_replay(again, tmp_path / "step-1.pt", 500) and len(again) == 0
    (reported,) = [record.message for record in caplog.records]
    assert "step-1.replay is lost" in reported and reason in reported and "500 items" in reported


def test_failed_replay_write_keeps_the_previous_file(tmp_path):
    replay = PrioritizedReplay(1000)
    replay.add({"obs": torch.ones(1000, 8)})
    save_replay(replay, tmp_path / "step-1.pt")
    before = (tmp_path / "step-1.replay").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with pytest.raises(CheckpointError, match="replay cannot be written: File too large"):
            save_replay(replay, tmp_path / "step-1.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1.replay"]
    assert (tmp_path / "step-1.replay").read_bytes() == before


def test_lost_replay_warns_and_refills(tmp_path, caplog):
    config, seen = make_config(dqn={"learning_starts": 128}), []
    first = fly(tmp_path, config, stop=lambda: len(seen) >= 3, events=EventBus({UpdateMade: seen.append}))
    path = first.checkpoint.with_suffix(".replay")
    path.write_bytes(path.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING, logger="navi.learn"):
        last = fly(tmp_path, config)
    assert "192 items" in caplog.text and "lost" in caplog.text
    assert last.steps == 384 and last.metrics["replay_size"] == 192


def test_a_checkpoint_flies_greedily_without_the_learner(tmp_path):
    made = fly(tmp_path, make_config("gru"))
    policy, _ = load_policy(made.checkpoint)
    obs = torch.rand(3, 3, 16, 8)
    out = policy.act(obs, torch.zeros(3, 3), policy.initial_state(3), torch.ones(3, dtype=torch.bool), None)
    values = policy.heads(policy.step(obs, torch.zeros(3, 3), policy.initial_state(3), None)[1])
    assert torch.equal(out.action, policy.heads.table[values.argmax(-1)]) and torch.equal(out.value, values.amax(-1))


def test_a_dueling_head_adds_advantages_less_their_mean_to_a_value():
    head = QHead(4, 8, dueling=True)
    with torch.no_grad():
        for layer in (head.values, head.state_value):
            torch.nn.init.normal_(layer.weight)
            torch.nn.init.normal_(layer.bias)
        latents = torch.rand(5, 8)
        value, advantage = head.state_value(latents), head.values(latents)
        wanted = torch.stack([value[:, 0] + a - advantage.mean(1) for a in advantage.unbind(1)], dim=1)
        torch.testing.assert_close(head.values_of(latents), wanted)
