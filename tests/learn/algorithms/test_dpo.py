"""DPO: loss by hand, ln 2 at the start, pairs of rollouts and of files, and invalid files."""

import base64
import json
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from navi_core.config import parse_config
from navi_core.config.algorithms import DPOConfig
from navi_core.demos import Pairs, read_pairs, write_pairs
from navi_core.demos.pairs import _halved
from navi_core.errors import ConfigError, DemoError
from navi_core.learn import DPOLearner
from navi_core.learn.algorithms.dpo import dpo_loss
from navi_core.learn.parallel import Workers
from navi_core.learn.rollout.collector import Collector
from navi_core.policy import RewardShaper, build_policy
from tests.learn.builders import CPU, small_config
from tests.learn.toy_environments import MixedEndingsEnv

DPO = {"rollout": 32, "bptt": 8, "horizon": 8, "learning_rate": 3e-3, "minibatch": 4}


def parts(dpo: dict | None = None, policy: dict | None = None, **top) -> tuple[Collector, DPOLearner]:
    base = small_config()
    network = {**base.policy.model_dump(), **(policy or {})}
    config = small_config(algorithm="dpo", dpo=DPO | (dpo or {}), policy=network, **top)
    net = build_policy(config.policy, seed=0)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, 0)
    return Collector(MixedEndingsEnv(6), net, shaper, config, device=CPU), DPOLearner(net, shaper, config, CPU)


def rolled(collector: Collector):
    rollout = collector.new_rollout(32, 8)
    collector.collect(rollout)
    return rollout


def some_pairs(count: int = 20, steps: int = 5) -> Pairs:
    """The winner always turns left where the depth is small, the loser right."""
    g = torch.Generator().manual_seed(0)
    obs = torch.rand(count, 2, steps, 3, 16, 8, generator=g).half()
    actions = 0.3 * torch.randn(count, 2, steps, 4, generator=g)
    actions[:, 0, :, 3] += 0.5
    actions[:, 1, :, 3] -= 0.5
    lengths = torch.full((count, 2), steps)
    lengths[0] = torch.tensor([3, 4])
    scores = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(count, 1)
    return Pairs(obs, actions, lengths, scores, {"winner": "left", "vocabulary": {"wall": 1}})


@pytest.fixture
def file(tmp_path):
    write_pairs(tmp_path / "pairs.jsonl", some_pairs())
    return tmp_path / "pairs.jsonl"


def test_dpo_loss_by_hand():
    zero = torch.zeros(3, dtype=torch.float64)
    assert dpo_loss(zero, zero, 0.1).tolist() == pytest.approx([math.log(2)] * 3, abs=1e-15)
    moved = dpo_loss(torch.tensor([3.0]), torch.tensor([-2.0]), 0.1)
    assert float(moved) == pytest.approx(math.log(1 + math.exp(-0.5)), rel=1e-6)


@pytest.mark.parametrize("distribution", ["gaussian", "discrete"])
def test_rollout_update_starts_at_ln_2_and_favours_winners(distribution):
    collector, learner = parts({"minibatch": 64}, {"distribution": distribution})
    rollout = rolled(collector)
    places, counts = learner._choose(rollout, 0)
    earned = [[float(rollout.rewards[s : s + n, r].sum()) for r, s, n in pair] for pair in places]
    assert counts["pairs"] > 4 and all(winner > loser for winner, loser in earned)
    first = learner.update(rollout, index=0, steps=0).metrics
    assert first["dpo_loss"] == pytest.approx(math.log(2), abs=1e-6) and abs(first["preference_margin"]) < 1e-6
    again = learner._rollout_batch(rollout, places, None)
    s = again.sequences
    now = learner.policy.evaluate(s.obs, s.aux, s.state, s.reset, s.actions).log_prob.detach()
    margin = learner._sums(now - s.log_probs, again)
    assert float((margin[:, 0] - margin[:, 1]).mean()) > 0


def test_a_full_buffer_holds_pairs_of_the_whole_rollout():
    """Segments come in the order of their beginnings: the first of them would be the first seconds alone."""
    collector, learner = parts({"horizon": 4, "pair_buffer": 12, "rollout": 32, "bptt": 8})
    rollout = rolled(collector)
    places, counts = learner._choose(rollout, 0)
    starts = places[:, :, 1].flatten()
    assert counts["pairs"] == 12 and (starts < 16).any() and (starts >= 16).any()
    assert not np.array_equal(places, learner._choose(rollout, 1)[0])
    assert np.array_equal(places, learner._choose(rollout, 0)[0])


def test_log_prob_sums_cover_exactly_their_segments():
    collector, learner = parts()
    rollout = rolled(collector)
    places, _ = learner._choose(rollout, 0)
    batch = learner._rollout_batch(rollout, places, rollout.log_probs)
    expected = [[float(rollout.log_probs[s : s + n, r].sum()) for r, s, n in pair] for pair in places]
    torch.testing.assert_close(learner._sums(batch.reference, batch), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(learner._sums(batch.sequences.log_probs, batch), torch.tensor(expected))


def test_reference_policy_follows_updates_or_stays(file):
    for every, same in ((1, True), (0, False)):
        collector, learner = parts({"ref_sync_every_updates": every, "pairs": str(file)})
        learner.update(rolled(collector), index=0, steps=0)
        both = zip(learner.policy.parameters(), learner.reference.policy.parameters())
        assert all(torch.equal(a, b) for a, b in both) is same


def test_pair_file_padding_is_not_counted(file):
    _, learner = parts({"pairs": str(file)})
    batch = learner._file_batch(np.arange(len(learner.pairs)))
    number, lengths = batch.number, learner.pairs.lengths.flatten()
    assert batch.sequences.reset.nonzero()[:, 1].tolist() == [0] * len(lengths), "a segment begins with empty memory"
    assert lengths.min() < number.shape[1]
    assert torch.equal((number >= 0).sum(1), lengths)
    assert all((row[row >= 0] == i).all() for i, row in enumerate(number))


def test_learned_preferences_generalise_to_held_out_pairs(file):
    collector, learner = parts({"pairs": str(file), "ref_sync_every_updates": 0})
    rollout = rolled(collector)
    first = learner._margins(learner._held_out)
    seen = [learner.update(rollout, index=i, steps=0).metrics for i in range(6)]
    moved = learner._margins(learner._held_out) - first
    assert seen[-1]["held_out_margin"] == pytest.approx(float(moved.mean()), rel=1e-5)
    assert seen[-1]["held_out_accuracy"] == float((moved > 0).double().mean())
    assert seen[0]["dpo_loss"] == pytest.approx(math.log(2), abs=0.1) and seen[-1]["dpo_loss"] < seen[0]["dpo_loss"]
    assert seen[-1]["held_out_accuracy"] >= 0.9 and seen[-1]["held_out_margin"] > 0
    _, twin = parts({"pairs": str(file), "ref_sync_every_updates": 0})
    twin.policy.load_state_dict(learner.policy.state_dict())
    twin.load_state_dict(learner.state_dict())
    assert torch.equal(twin._start, learner._start) and twin.updates == 6


def test_pair_file_round_trips_and_lists_are_read(file):
    made, (read, digest) = some_pairs(), read_pairs(file)
    assert torch.equal(read.lengths, made.lengths) and torch.equal(read.scores, made.scores) and len(digest) == 64
    assert torch.equal(read.observations[1], made.observations[1])
    torch.testing.assert_close(read.actions[1], made.actions[1], rtol=0, atol=1e-6)
    assert read.metadata == {"winner": "left", "vocabulary": {"wall": 1}} and not read.actions[0, 0, 3:].any()
    side = {"observations": [[0.5, 1.0]], "actions": [[1.0]], "score": 2}
    header = {"format": "navi-pairs", "version": 1, "observation": [2], "action_axes": 1, "steps": 3}
    lines = [header, *[{"winner": side, "loser": side}] * 2]
    file.write_text("\n".join(map(json.dumps, lines)))
    plain, _ = read_pairs(file)
    assert plain.observations[0, 0].tolist() == [[0.5, 1.0], [0, 0], [0, 0]] and plain.lengths.tolist() == [[1, 1]] * 2


def spoilt(lines: list[dict], what: str) -> list:
    header, first = lines[0], lines[1]["winner"]
    bomb = base64.b64encode(zlib.compress(b"\0" * 50_000_000)).decode()
    changes = {
        "format": lambda: header.update(format="other"),
        "observation": lambda: header.update(observation=[3, "16", 8]),
        "steps": lambda: header.update(steps=10**12),
        "numbers": lambda: header.update(observation=[2**20, 2**20, 1]),
        "pairs": lambda: header.update(pairs=7),
        "line 2, winner.actions": lambda: first.update(actions=[[1.0]]),
        "line 2, winner.score": lambda: first.update(score="good"),
        "line 2, winner.observations": lambda: first.update(observations={"zlib": bomb}),
        "line 2, loser": lambda: lines[1].pop("loser"),
        "line 3": lambda: lines.__setitem__(2, [1]),
    }
    changes[what]()
    return lines


@pytest.mark.parametrize(
    ("field", "value"),
    [("score", 10**400), ("actions", [[10**400]]), ("actions", [[1e300]]), ("observations", [[0.5, 70_000.0]])],
    ids=["score", "whole action", "action", "observation"],
)
def test_out_of_range_number_error_names_its_field(file, field, value):
    side = {"observations": [[0.5, 1.0]], "actions": [[1.0]], "score": 2}
    header = {"format": "navi-pairs", "version": 1, "observation": [2], "action_axes": 1, "steps": 3}
    file.write_text("\n".join(map(json.dumps, [header, *[{"winner": side | {field: value}, "loser": side}] * 2])))
    with pytest.raises(DemoError, match=rf"line 2, winner\.{field}"):
        read_pairs(file)


@pytest.mark.parametrize(
    "what",
    ["format", "observation", "steps", "numbers", "pairs", "line 2, winner.actions", "line 2, winner.score",
     "line 2, winner.observations", "line 2, loser", "line 3"],
)  # fmt: skip
def test_pair_format_error_names_line_and_field(file, what):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("\n".join(map(json.dumps, spoilt(lines, what))))
    with pytest.raises(DemoError, match=what):
        read_pairs(file)


def test_impossible_settings_are_refused(tmp_path):
    with pytest.raises(DemoError, match="cannot be read"):
        parts({"pairs": str(tmp_path / "none.jsonl")})
    with pytest.raises(ConfigError, match="rollout 256"):
        parse_config(DPOConfig, {"horizon": 300})
    collector, learner = parts()
    with pytest.raises(ConfigError, match="one process"):
        DPOLearner(learner.policy, collector.shaper, learner.config, CPU, Workers(0, 2))


@pytest.mark.parametrize(
    ("facts", "change", "words"),
    [
        ({"decision_hz": 20.0}, {}, "decisions per second is 10.0, that of the pairs 20.0"),
        ({"max_distance": 50.0}, {}, "max_distance is 100.0, that of the pairs 50.0"),
        ({"limits": [5.0, 2.0, 3.0, 1.0]}, {}, "speed limits"),
        ({}, {"distribution": "discrete"}, "motion primitives"),
        ({}, {"azimuth_bins": 32}, r"\[3, 32, 8\], that of the pairs \[3, 16, 8\]"),
    ],
)
def test_pairs_of_other_flight_settings_are_refused(file, facts, change, words):
    pairs = some_pairs()
    write_pairs(file, replace(pairs, metadata=pairs.metadata | facts))
    bins = {name: value for name, value in change.items() if name.endswith("bins")}
    with pytest.raises(ConfigError, match=words):
        parts({"pairs": str(file)}, change, env=bins)


def test_pairs_with_missing_or_equal_metadata_are_accepted(file):
    same = {"decision_hz": 10.0, "max_distance": 100.0, "limits": [5.0, 2.0, 3.0, 3.0]}
    for facts in ({}, same):
        write_pairs(file, replace(some_pairs(), metadata=facts))
        _, learner = parts({"pairs": str(file)})
        learner.use_vocabulary({"surface": 1, "wall": 2})
        assert torch.equal(learner.pairs.observations[1], some_pairs().observations[1]), "no names, nothing to rename"


@pytest.mark.parametrize("reported", [12.34567891, 12.345679])
def test_pairs_with_a_rounded_range_are_accepted(file, reported):
    speed = {"max_speed": (1 / 3, 2.0, 3.0), "max_yaw_rate": 2.0 / 3.0, "steps_per_decision": 3}
    facts = {"max_distance": reported, "limits": [0.3333333, 2, 3, 0.66666667], "decision_hz": 16.66666667}
    write_pairs(file, replace(some_pairs(), metadata=facts))
    parts({"pairs": str(file)}, env={"max_distance": 12.34567891, "dynamics": speed})
    write_pairs(file, replace(some_pairs(), metadata=facts | {"limits": [0.3333333, 2, 3, 10**400]}))
    with pytest.raises(ConfigError, match="speed limits"):
        parts({"pairs": str(file)}, env={"max_distance": 12.34567891, "dynamics": speed})


def test_semantic_ids_of_pairs_are_remapped_to_the_corpus(file):
    """A policy learns the ids of its scenes, and is evaluated with them."""
    pairs = some_pairs()
    pairs.observations[..., 1, :, :] = torch.randint(0, 5, pairs.observations[..., 1, :, :].shape).half()
    write_pairs(file, replace(pairs, metadata={"vocabulary": {"surface": 1, "wall": 2, "door": 3}}))
    _, learner = parts({"pairs": str(file)})
    learner.use_vocabulary({"surface": 1, "bench": 2, "wall": 7})
    read, ids = read_pairs(file)[0].observations, torch.tensor([0, 1, 7, 1, 1]).half()
    found = learner.pairs.observations
    assert torch.equal(found[..., 1, :, :], ids[read[..., 1, :, :].long()])
    assert torch.equal(found[..., ::2, :, :], read[..., ::2, :, :])


def test_a_run_remaps_pairs_to_the_ids_of_its_scenes(file, tmp_path, apartments):
    from navi_core.learn import train
    from navi_core.record import RunDirectory
    from navi_core.world import Field

    write_pairs(file, replace(some_pairs(), metadata={"vocabulary": {"wall": "two"}}))
    collector, learner = parts({"pairs": str(file)})
    env, config = collector.env, learner.config
    env.field = Field(apartments)
    with (
        RunDirectory.open(tmp_path, asset="toy", partition="p", config=config) as run,
        pytest.raises(ConfigError, match="pairs' vocabulary is no mapping"),
    ):
        train(config, run, env=env, log=run.metric_log(tmp_path / "outbox"))


def test_trained_scenes_include_those_of_the_pairs(file, tmp_path, apartments):
    from navi_core.learn import train
    from navi_core.models import load_checkpoint, trained_on
    from navi_core.record import RunDirectory
    from navi_core.world import Field

    write_pairs(file, replace(some_pairs(), metadata={"scenes": ["there"]}))
    collector, learner = parts({"pairs": str(file)})
    env, config = collector.env, learner.config
    env.field = Field(apartments)
    with RunDirectory.open(tmp_path, asset="toy", partition="p", config=config) as run:
        made = train(config, run, env=env, log=run.metric_log(tmp_path / "outbox"), stop=lambda: True)
    seen = {x for scene in apartments for x in (scene.content_hash(), scene.source_hash)}
    assert trained_on(load_checkpoint(made.checkpoint)) == seen | {"there"}
    write_pairs(file, replace(some_pairs(), metadata={"scenes": [7]}))
    with pytest.raises(ConfigError, match="scenes are no list of hashes"):
        parts({"pairs": str(file)})[1].scenes_of_data()


def test_semantic_ids_beyond_float16_precision_become_unknown():
    """2049 would be rounded to 2048, which may be another surface."""
    obs = torch.tensor([0.0, 1.0, 2047.0, 2048.0, 2049.0, 4097.0]).view(1, 1, 6, 1).expand(1, 3, 6, 1).clone()
    assert _halved(obs)[0, 1, :, 0].tolist() == [0.0, 1.0, 2047.0, 2048.0, 1.0, 1.0]
    assert torch.equal(_halved(obs)[:, 0], obs[:, 0].half())
    pairs = replace(some_pairs(), metadata={"vocabulary": {"surface": 1, "wall": 2, "door": 3}})
    pairs.observations[:, :, :, 1] = 2.0
    pairs.observations[:, 0, :, 1] = 3.0
    renamed = pairs.remapped({"surface": 1, "wall": 5, "door": 3000}).observations[:, :, :, 1]
    assert (renamed[:, 1] == 5.0).all() and (renamed[:, 0] == 1.0).all()


def test_pilots_make_pairs_from_equal_starts(apartments):
    from navi_core.config import EnvConfig
    from navi_core.demos import make_pairs
    from navi_core.world import Field

    env = EnvConfig(azimuth_bins=16, elevation_bins=8)
    made = make_pairs(Field(apartments), env, 6, steps=8, rows=4)
    assert made.observations.shape == (6, 2, 8, 3, 16, 8) and made.actions.shape == (6, 2, 8, 4)
    assert (made.scores[:, 0] > made.scores[:, 1]).all()
    assert torch.equal(made.observations[:, 0, 0], made.observations[:, 1, 0]), "both begin at the same place"
    assert torch.isfinite(made.observations).all() and 0 <= made.metadata["won"] <= 1
    assert (made.lengths == 8).all()
    flown = {x for scene in apartments for x in (scene.content_hash(), scene.source_hash)}
    assert made.scenes == sorted(flown) and len(flown) == 2 * len(apartments)
    assert {"decision_hz": 10.0, "max_distance": 100.0, "limits": [5.0, 2.0, 3.0, 3.0]}.items() <= made.metadata.items()


def test_a_segment_ends_where_the_void_cuts_its_episode(apartments):
    from navi_core.config import EnvConfig
    from navi_core.demos import make_pairs
    from navi_core.pilots import build_pilot
    from navi_core.world import Field, NavigationEnv

    field = Field(apartments)
    config = EnvConfig(azimuth_bins=16, elevation_bins=8, max_distance=1.5, void_starvation=0.6, void_grace=2)
    steps, made = 16, make_pairs(field, config, 6, steps=16, rows=8)
    assert made.lengths.min() == 3 and made.lengths.max() == steps, "else nothing would show"
    env = NavigationEnv(field, 8, config.model_copy(update={"stagger": False}), 0)
    pilot = build_pilot("forward-plus", seed=0, max_distance=1.5, dynamics=config.dynamics)
    pilot.reset(torch.ones(8, dtype=torch.bool), torch.arange(8))
    obs = first = env.reset(episode=0)
    lengths, total = torch.full((8,), steps), torch.zeros(8, dtype=torch.float64)
    for t in range(steps):
        batch = env.step(pilot.act(obs).clamp(-1, 1))
        total += batch.reward.double() * (lengths > t)
        lengths[(lengths == steps) & batch.info["void"]] = t + 1
        obs = batch.obs
    compared = 0
    for i, seen in enumerate(made.observations[:, 0, 0]):
        for row in torch.nonzero((first.half() == seen).flatten(1).all(1)).flatten():
            assert (int(made.lengths[i, 0]), float(made.scores[i, 0])) == (int(lengths[row]), float(total[row]))
            assert not made.observations[i, 0, lengths[row] :].any() and not made.actions[i, 0, lengths[row] :].any()
            compared += 1
    assert compared > 2
