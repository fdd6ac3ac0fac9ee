"""GRPO: loss against a scalar loop, divergence estimators, the reference policy, and requirements of a run."""

import copy
import json
import logging
import math

import numpy as np
import pytest
import torch

from navi_core.config import GRPOConfig, TrainConfig, parse_config
from navi_core.errors import CheckpointError, ConfigError
from navi_core.learn import GRPOLearner, train
from navi_core.learn.algorithms.grpo import grpo_loss
from navi_core.learn.algorithms.rollout_learner import ReferencePolicy
from navi_core.learn.estimators.losses import reference_kl
from navi_core.learn.parallel import Workers
from navi_core.learn.rollout.collector import Collector
from navi_core.models import load_checkpoint
from navi_core.policy import RewardShaper, build_policy
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from navi_core.tasks import reference_task
from tests.learn.builders import CPU, small_config, weights
from tests.learn.toy_environments import MixedEndingsEnv, PoisonEnv

GRPO = {"rollout": 32, "bptt": 8, "horizon": 8, "group_size": 4, "learning_rate": 1e-3}


def grpo_config(rows: int = 6, grpo: dict | None = None, **top) -> TrainConfig:
    return small_config(rows=rows, algorithm="grpo", grpo=GRPO | (grpo or {}), **top)


def parts(config: TrainConfig, env=None) -> tuple[Collector, GRPOLearner]:
    env = env or MixedEndingsEnv(config.actors)
    net = build_policy(config.policy, seed=0, spaces=env.spaces)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, 0)
    collector = Collector(env, net, shaper, config, device=CPU)
    return collector, GRPOLearner(net, shaper, config, CPU)


def rolled(collector: Collector):
    rollout = collector.new_rollout(collector.config.rule.rollout, collector.config.rule.bptt)
    collector.collect(rollout)
    return rollout


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_loss_equals_a_scalar_loop(clip, estimator):
    g = torch.Generator().manual_seed(1)
    old, new, ref = -3 + 0.3 * torch.randn(3, 6, 5, generator=g)
    entropy, mask = torch.rand(6, 5, generator=g), torch.rand(6, 5, generator=g) < 0.7
    advantages = torch.randn(6, generator=g)[:, None].expand(6, 5)
    total, policy, bonus, divergence = grpo_loss(
        new, old, entropy, advantages, mask, segments=6, decisions=int(mask.sum()), ent_coef=0.03, clip=clip,
        ref_kl_coef=0.4, reference_log_prob=ref, kl_estimator=estimator,
    )  # fmt: skip
    gained = heat = gap = 0.0
    for i in range(6):
        for t in range(5):
            if not mask[i, t]:
                continue
            a, p, q, r = (float(x[i, t]) for x in (advantages, new, old, ref))
            ratio = math.exp(p - q)
            gained += a * p if clip is None else min(ratio * a, min(max(ratio, 1 - clip), 1 + clip) * a)
            heat += float(entropy[i, t])
            gap += p - r if estimator == "k1" else math.exp(r - p) - 1 - (r - p)
    count = int(mask.sum())
    expected = -gained / 6 - 0.03 * heat / count + 0.4 * gap / count
    assert float(total) == pytest.approx(expected, rel=1e-6)
    assert [float(policy), float(bonus), float(divergence)] == pytest.approx(
        [-gained / 6, heat / count, gap / count], rel=1e-6
    )


def test_kl_penalty_gradient_is_zero_for_k1_and_not_for_k3():
    """Expected gradients over all actions of a categorical policy, exactly."""
    logits = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.2, -0.4, 0.1], dtype=torch.float64).log_softmax(0)
    log_prob = logits.log_softmax(0)
    probability = log_prob.detach().exp()
    (k1,) = torch.autograd.grad(
        (probability * reference_kl(log_prob, reference, "k1")).sum(), logits, retain_graph=True
    )
    (k3,) = torch.autograd.grad(
        (probability * reference_kl(log_prob, reference, "k3")).sum(), logits, retain_graph=True
    )
    assert k1.abs().max() < 1e-15
    # That of k3 is the gradient of KL(reference‖policy).
    (forward,) = torch.autograd.grad(-(reference.exp() * log_prob).sum(), logits)
    torch.testing.assert_close(k3, forward, rtol=0, atol=1e-15)
    assert k3.abs().max() > 0.01
    true = (probability * (log_prob.detach() - reference)).sum()
    for estimator in ("k1", "k3"):
        assert float((probability * reference_kl(log_prob.detach(), reference, estimator)).sum()) == pytest.approx(
            float(true), abs=1e-12
        )


@pytest.mark.parametrize(
    "options", [{}, {"length_normalisation": True}, {"ent_coef": 0.5}, {"ref_kl_coef": 0.8}], ids=lambda x: "".join(x)
)
def test_single_step_gradient_equals_the_formula(options):
    """The second one: by then the policy has left its reference."""
    plain = {"clip": None, "update_epochs": 1, "groups_per_step": 99, "ent_coef": 0.0, "learning_rate": 1e-2}
    collector, learner = parts(grpo_config(grpo=plain | options))
    reference, first = copy.deepcopy(learner.policy), rolled(collector)
    learner.update(first, index=0, steps=0)
    rollout = rolled(collector)
    twin = copy.deepcopy(learner.policy)
    groups = learner._groups(rollout, 1.0)
    learner.update(rollout, index=1, steps=0)
    batch = rollout.minibatch(torch.arange(rollout.sequences))
    out = twin.evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
    by_chunk = (x.unflatten(0, (rollout.chunks, rollout.rows)) for x in (out.log_prob, out.entropy))
    log_prob, entropy = (x.transpose(1, 2).flatten(0, 1) for x in by_chunk)
    state = tuple(x[0] for x in first.chunk_state)
    for part in (first, rollout):
        # The reference walks along under its own weights, here in one piece.
        reported = (part.observations.by_step(), part.aux, part.reset, part.actions)
        obs, aux, reset, actions = (x.transpose(0, 1) for x in reported)
        with torch.no_grad():
            out = reference.evaluate(obs, aux, state, reset, actions)
        state, held = out.state, out.log_prob.transpose(0, 1)
    spoken = [i for i in range(len(groups.segments)) if not groups.silent[i // 4]]
    decisions = int(groups.segments.length[spoken].sum())
    loss = torch.zeros(())
    for i in spoken:
        r, s, n = (int(x[i]) for x in (groups.segments.row, groups.segments.start, groups.segments.length))
        here, share = slice(s, s + n), n if "length_normalisation" in options else 1
        gap = held[here, r] - log_prob[here, r]
        loss = loss - float(groups.advantages[i]) / share * log_prob[here, r].sum() / len(spoken)
        loss = loss - options.get("ent_coef", 0.0) * entropy[here, r].sum() / decisions
        loss = loss + options.get("ref_kl_coef", 0.0) * (gap.exp() - 1 - gap).sum() / decisions
    loss.backward()
    gradients = [p.grad for p in twin.parameters() if p.grad is not None]
    bound = 0.5 / (float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))) + 1e-6)
    learned = [p.grad for p in learner.policy.parameters() if p.grad is not None]
    assert len(learned) == len(gradients)
    for ours, expected in zip(learned, gradients):
        torch.testing.assert_close(ours, expected * min(1.0, bound), rtol=1e-3, atol=1e-5)
    assert all(p.grad is None for name, p in learner.policy.named_parameters() if "critic" in name)


def test_clip_fraction_counts_ratios_beyond_the_clip():
    """The second of two epochs is evaluated at the weights after one epoch."""
    made = []
    for epochs in (1, 2):
        collector, learner = parts(grpo_config(grpo={"clip": 0.01, "groups_per_step": 99, "update_epochs": epochs}))
        rollout = rolled(collector)
        groups = learner._groups(rollout, 1.0)
        made.append((learner.update(rollout, index=0, steps=0).metrics, learner.policy))
    batch = rollout.minibatch(torch.arange(rollout.sequences))
    out = made[0][1].evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
    off = (out.log_prob.detach() - batch.log_probs).exp().sub(1).abs()
    off = off.unflatten(0, (rollout.chunks, rollout.rows)).transpose(1, 2).flatten(0, 1)
    step, row, _ = groups.segments[np.flatnonzero(np.repeat(~groups.silent, 4))].decisions()
    share = float((off[step, row] > 0.01).double().mean())
    assert 0 < share < 1 and made[0][0]["clip_fraction"] == 0.0
    assert made[1][0]["clip_fraction"] == pytest.approx(share / 2, rel=1e-3)


def test_segments_can_be_grouped_by_start_age():
    collector, learner = parts(grpo_config(grpo={"group_by": "age"}))
    rolled(collector)
    rollout = rolled(collector)
    segments = learner._groups(rollout, 1.0).segments
    age = rollout.episode_length.numpy()[segments.start, segments.row]
    assert (age[1:] >= age[:-1]).all() and (segments.start[1:] < segments.start[:-1]).any()


@pytest.mark.parametrize("distribution", ["gaussian", "beta", "discrete"])
def test_every_head_learns_and_acting_equals_learning(distribution):
    config = grpo_config(policy={**small_config().policy.model_dump(), "distribution": distribution})
    collector, learner = parts(config)
    before = weights(learner)
    for index in range(2):
        metrics = learner.update(rolled(collector), index=index, steps=0).metrics
        assert metrics["parity_ratio"] < 1e-4 and metrics["groups"] >= 1
        assert metrics["dropped_truncated"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(learner)))


def test_microbatches_give_the_gradient_of_the_whole():
    made = []
    for size in (None, 3):
        collector, learner = parts(grpo_config(grpo={"microbatch": size}, shaper={"rnd_start": 0.5}))
        learner.update(rolled(collector), index=0, steps=0)
        made.append(weights(learner))
    assert max(float((a - b).abs().max()) for a, b in zip(*made)) < 2e-5


def test_zero_kl_coefficient_builds_no_reference():
    collector, learner = parts(grpo_config())
    learner.update(rolled(collector), index=0, steps=0)
    assert learner.reference is None


def test_reference_is_frozen_until_synchronised():
    collector, learner = parts(grpo_config(grpo={"ref_kl_coef": 0.1, "ref_sync_every_updates": 10, "update_epochs": 1}))
    first = weights(learner)
    metrics = learner.update(rolled(collector), index=0, steps=0).metrics
    assert learner.reference is not None and metrics["groups"] < 10
    assert all(torch.equal(a, b) for a, b in zip(first, learner.reference.policy.parameters()))
    index = 1
    while learner.updates < 10:
        metrics = learner.update(rolled(collector), index=index, steps=0).metrics
        index += 1
    assert metrics["reference_kl"] > 0
    assert all(torch.equal(a, b) for a, b in zip(weights(learner), learner.reference.policy.parameters()))


def test_reference_state_is_carried_under_its_own_weights():
    """Over rollouts that another policy flies, in chunks; the acting policy's states would differ."""
    collector, learner = parts(grpo_config())
    reference, state, held = ReferencePolicy(learner.policy), None, []
    with torch.no_grad():
        for p in learner.policy.parameters():
            p.mul_(1.5)
    for _ in range(2):
        r = rolled(collector)
        state = tuple(x[0] for x in r.chunk_state) if state is None else state
        reported = (r.observations.by_step(), r.aux, r.reset, r.actions)
        obs, aux, reset, actions = (x.transpose(0, 1) for x in reported)
        with torch.no_grad():
            out = reference.policy.evaluate(obs, aux, state, reset, actions)
            theirs = tuple(x[0] for x in r.chunk_state)
            held.append(reference.policy.evaluate(obs, aux, theirs, reset, actions).log_prob.transpose(0, 1))
        state = out.state
        torch.testing.assert_close(reference.log_probs(r), out.log_prob.transpose(0, 1), rtol=1e-4, atol=1e-4)
    assert (held[1] - out.log_prob.transpose(0, 1)).abs().max() > 2e-3


def test_reference_synchronises_at_multiples_of_its_groups():
    """The number of groups of an update varies, so the count passes a multiple more often than it hits one."""
    _, learner = parts(grpo_config(grpo={"ref_kl_coef": 0.1, "ref_sync_every_updates": 4}))
    learner.reference, synced = ReferencePolicy(learner.policy), []
    learner.reference.sync = lambda policy: synced.append(learner.updates)
    for groups in (3, 3, 1, 1, 0, 9):
        learner.count(groups)
    assert synced == [6, 8, 17]


def test_reference_with_equal_weights_has_equal_log_probs():
    collector, learner = parts(grpo_config(grpo={"ref_kl_coef": 0.1}))
    rolled(collector)  # the second rollout begins with a carried state
    for _ in range(2):
        rollout = rolled(collector)
        if learner.reference is None:
            learner._reference_log_probs(rollout, 0.1)
            continue
        torch.testing.assert_close(learner._reference_log_probs(rollout, 0.1), rollout.log_probs, rtol=0, atol=1e-5)


def test_scheduled_settings_reach_the_update():
    schedules = {
        "ref_kl_coef": {"shape": "piecewise", "points": [[100, 0.0], [200, 0.2]]},
        "max_grad_norm": {"end": 5.0},
        "ent_coef": {"end": 0.0},
        "gamma": {"end": 0.5},
        "learning_rate": {"end": 1e-4},
    }
    collector, learner = parts(grpo_config(grpo={"schedules": schedules}, total_steps=200))
    for steps, expected in ((100, (0.0, 2.75, 0.005, 0.75)), (150, (0.1, 3.875, 0.0025, 0.625))):
        metrics = learner.update(rolled(collector), index=0, steps=steps).metrics
        names = ("ref_kl_coef", "max_grad_norm", "ent_coef", "gamma")
        assert [metrics[name] for name in names] == pytest.approx(expected)
        assert metrics["learning_rate"] == learner.optimizer.param_groups[0]["lr"]
    assert learner.reference.state_dict()["state"] is not None
    learner.update(rolled(collector), index=0, steps=100)
    assert learner.reference.state_dict()["state"] is None, "memory of the rollout before a skipped one"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"horizon": 500}, "rollout 256"),
        ({"horizon": 1}, "min_steps 2"),
        ({"min_steps": 500}, "min_steps 500 .*rollout of 256; allowed: 1 … rollout 256"),
        ({"group_size": 1}, "group_size"),
        ({"normalize_group": "median"}, "mean_std"),
        ({"kl_estimator": "k2"}, "k3"),
        ({"schedules": {"clip": {"end": 0.1}}}, "clip"),
        ({"schedules": {"learning_rate": {"end": 0.0}}}, "learning_rate names 0"),
        ({"schedules": {"gamma": {"end": 1.5}}}, r"gamma names 1.5; allowed: above 0 up to 1 \(and 0\)"),
    ],
)
def test_impossible_settings_are_refused(data, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(GRPOConfig, data)


def test_too_few_rows_and_several_processes_are_refused():
    with pytest.raises(ConfigError, match=r"6 actors make 24 segments.*--actors 32"):
        parts(grpo_config(grpo={"group_size": 128}))
    collector, learner = parts(grpo_config())
    with pytest.raises(ConfigError, match="one process"):
        GRPOLearner(learner.policy, collector.shaper, learner.config, CPU, Workers(0, 2))


def test_further_epochs_without_a_clip_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "navi.learn"):
        parts(grpo_config(grpo={"clip": None}))
        assert "grpo.clip" in caplog.text
        caplog.clear()
        parts(grpo_config(grpo={"clip": None, "update_epochs": 1}))
        assert not caplog.text


def fly(root, config, env=None, **kw):
    with RunDirectory.open(root / "runs", asset="toy", partition="p", config=config) as run:
        return train(config, run, env=env or MixedEndingsEnv(config.actors), log=run.metric_log(root / "outbox"), **kw)


def test_a_run_is_recorded_stopped_and_resumed_bit_for_bit(tmp_path):
    grpo = {"ref_kl_coef": 0.05, "ref_sync_every_updates": 7, "group_size": 8, "update_epochs": 2}
    config = grpo_config(grpo=grpo, total_steps=6 * 32 * 3, checkpoint_every=6 * 32)
    straight = fly(tmp_path / "a", config)
    seen: list = []
    stopped = fly(tmp_path / "b", config, stop=lambda: len(seen) >= 1, events=EventBus({UpdateMade: seen.append}))
    assert stopped.reason == "stopped" and stopped.steps == 192
    resumed = fly(tmp_path / "b", config)
    assert resumed.resumed_from == 192
    one, two = (load_checkpoint(r.checkpoint) for r in (straight, resumed))
    assert all(torch.equal(one.policy_state[k], two.policy_state[k]) for k in one.policy_state)
    assert one.normalisers["group_updates"] == two.normalisers["group_updates"]
    rows = [
        json.loads(line)["name"]
        for file in (tmp_path / "a" / "outbox").glob("*-metrics.ndjson")
        for line in file.read_text().splitlines()[1:]
    ]
    assert {"groups", "zero_variance_groups", "dropped_truncated", "surplus_segments", "reference_kl"} <= set(rows)


def test_weights_transfer_between_ppo_and_grpo(tmp_path):
    ppo = small_config(rows=4, total_steps=128)
    first = fly(tmp_path / "ppo", ppo)
    second = fly(
        tmp_path / "grpo", grpo_config(rows=4, total_steps=128, grpo={"update_epochs": 1}), initial=first.checkpoint
    )
    assert second.initial == str(first.checkpoint)
    assert fly(tmp_path / "back", ppo, initial=second.checkpoint).steps == 128
    with pytest.raises(CheckpointError, match="--init none"):
        fly(tmp_path / "core", small_config("mamba2", rows=4, total_steps=128), initial=second.checkpoint)


def test_nan_error_names_the_tensor(tmp_path):
    with pytest.raises(Exception, match="reward term pay") as caught:
        fly(tmp_path, grpo_config(total_steps=10_000), env=PoisonEnv(6))
    assert type(caught.value).__name__ == "NonFiniteError"


def test_cart_pole_is_learned_within_a_few_rollouts(tmp_path):
    data = {
        "algorithm": "grpo",
        "actors": 64,
        "threads": 1,
        "device": "cpu",
        "total_steps": 40_960,
        "task": "cart_pole",
        "policy": {"core": "gru", "aux": "off", "width": 32},
        "shaper": {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
        "grpo": {"learning_rate": 3e-3, "rollout": 128, "bptt": 32, "horizon": 64, "group_size": 64}
        | {"normalize_group": "mean_std", "ent_coef": 0.0},
    }
    config = parse_config(TrainConfig, data)
    env = reference_task("cart_pole", 64, 0, masked=False)
    assert fly(tmp_path, config, env=env).metrics["episode_return"] > 60
