"""Ape-X in one process: counters, killed actors and shards, and the equality of two learners to one."""

import json
import math
import pickle
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import CheckpointError, ConfigError, RunError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.models import load_checkpoint
from navi_core.scale import LocalCluster, ParameterHub, Parameters, check_apex
from navi_core.scale.apex import _Apex
from navi_core.scale.cluster import actor_count, actor_seed
from navi_core.scale.messages import RunCounters
from navi_core.scale.ray_ports import import_ray
from navi_core.tasks import reference_task
from tests.scale.builders import apex_config, fly_apex, report


class Watched(LocalCluster):
    """A local cluster in which something happens before the n-th turn of the actors."""

    turns = 0
    plan: dict = {}

    def drive(self, behind):
        self.turns += not behind
        if self.turns in self.plan:
            self.plan[self.turns](self)
        super().drive(behind)


def watched(plan):
    made = []

    def cluster(config, workers):
        here = Watched(config, workers=workers)
        here.plan = plan
        made.append(here)
        return here

    return cluster, made


def test_every_accepted_decision_is_trained_on_once(tmp_path):
    cluster, made = watched({})
    result = fly_apex(tmp_path, apex_config(), cluster=cluster)
    flown = sum(actor.shipped for actor in made[0].actors.values()) * 32
    held = sum(port.shard.replay.added for port in made[0].ports)
    assert (result.steps, result.reason, flown, held) == (640, "total_steps", 640, 640)
    assert result.metrics["gradient_steps"] == 640 * 4.0 / 32
    assert made[0].actors[0].version > 1, "actors fly with newer weights"
    rows = [json.loads(x) for path in (tmp_path / "outbox").glob("*metrics*") for x in path.read_text().splitlines()]
    found = {row["name"]: row["value"] for row in rows if "name" in row}
    assert found["action_share_00"] + found["action_share_01"] == pytest.approx(1.0)
    least, mean, most = (found[f"strategy_entropy{part}"] for part in ("_min", "", "_max"))
    assert 0 <= least <= mean <= most <= math.log(2) and most > 0
    assert 0 <= found["population_diversity"] <= math.log(2), "two actors, two actions"
    again, _ = watched({})
    other = fly_apex(tmp_path / "again", apex_config(), cluster=again)
    first, second = (load_checkpoint(x.checkpoint).policy_state for x in (result, other))
    assert all(torch.equal(first[name], second[name]) for name in first), "same seed, same bits"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_learners_and_actors_use_the_configured_precision(precision):
    config, spaces = apex_config(precision=precision), reference_task("cart_pole", 1, masked=False).spaces
    apex = _Apex(config, None, LocalCluster(config), spaces, spaces.observed, None, ALONE, {})
    apex.cluster.start(0)
    flying = [actor.policy for actor in apex.cluster.actors.values()]
    assert len(flying) == 2
    for policy in (apex.policy, apex.learner.target, *flying):
        assert policy.half_encoder == (precision == "bf16")


def test_killed_actor_and_shard_are_replaced_without_double_counts(tmp_path):
    lost = []

    def kill_shard(here):
        lost.append(here.ports[1].shard.status("", 0, 0))
        here.ports[1].shard = None

    def repeat(here):
        actor = here.actors[0]
        send = actor.shard.add

        def twice(experience):
            return send(experience) and send(experience)

        actor.shard = type("Port", (), {"add": staticmethod(twice)})()

    cluster, made = watched({3: lambda here: here.actors.pop(1), 5: kill_shard, 7: repeat})
    result = fly_apex(tmp_path, apex_config(), cluster=cluster)
    here = made[0]
    assert (here.replaced.actors, here.replaced.shards) == (1, 1)
    assert result.steps == 672, "one rollout came a turn later, to the newcomer; so the last turn begins at 608"
    assert here.actors[1].life == 2, "a new life, which flies no episode of the old one"
    held = sum(port.shard.replay.added for port in here.ports)
    assert held == 672 - lost[0].added, "what the lost shard held was counted; nothing else was, or came twice"
    assert sum(port.shard._repeated for port in here.ports) > 0
    events = [json.loads(x) for path in (tmp_path / "outbox").glob("*events*") for x in path.read_text().splitlines()]
    assert {"actor 1 died (it was killed) and is replaced"} <= {row.get("detail") for row in events}
    cluster, _ = watched({2: lambda here: here.actors.pop(0), 3: lambda here: here.actors.pop(0)})
    with pytest.raises(RunError, match="max_replacements"):
        fly_apex(tmp_path / "end", apex_config(distributed={"max_replacements": 1}), cluster=cluster)


def test_report_from_two_shards_counts_once():
    totals = RunCounters()
    assert totals.enter(report(0)) and totals.enter(report(1)) and not totals.enter(report(1))
    assert totals.enter(report(0, life=2)) and totals.enter(report(0, actor=1))
    assert (totals.decisions, totals.episodes, totals.repeated) == (128, 4, 1)
    assert totals.population() == [(0.5, 2.0, 0.75, 5.0)] * 3 and totals.population() == []
    totals.enter(report(2, returns=()))
    assert totals.population() == [], "an actor in which no episode ended has nothing to say"


def test_population_metrics_follow_their_definitions():
    totals = RunCounters()
    totals.enter(replace(report(0, returns=(1.0, 3.0)), actions=(6, 2)))
    totals.enter(replace(report(0, actor=1, returns=(6.0,)), actions=(0, 1)))
    totals.enter(replace(report(1, actor=1, returns=()), actions=(0, 3)))
    found = totals.figures()
    first = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    mixed = -(0.375 * math.log(0.375) + 0.625 * math.log(0.625))
    assert found["strategy_entropy"] == pytest.approx(first / 2) and found["strategy_entropy_min"] == 0.0
    assert found["strategy_entropy_max"] == pytest.approx(first)
    assert found["population_diversity"] == pytest.approx(mixed - first / 2)
    assert (found["action_share_00"], found["action_share_01"]) == (0.5, 0.5)
    assert found["population_return_spread"] == 2.0
    assert "strategy_entropy" not in totals.figures(), "they are those since the last call"


def flights(count, actors=3):
    """Reports of actors in turn; in some rollouts no episode ends, in some several do."""
    draws = np.random.default_rng(0)
    for number in range(count):
        item = report(number // actors, actor=number % actors, returns=tuple(draws.normal(size=number % 4)))
        yield replace(item, td_mean=draws.normal(), td_var=draws.random(), local_structure=draws.random())


def test_counters_stay_bounded_without_population_calls():
    totals, kept = RunCounters(), {}
    for number, item in enumerate(flights(12_000), start=1):
        totals.enter(item)
        if number % 1000 == 0:
            # What is asked for in every run.
            assert totals.rewards() and totals.figures()
            kept[number] = len(pickle.dumps(totals))
    assert kept[12_000] - kept[1000] < 1000, kept


def test_population_is_the_mean_of_its_reports():
    totals, seen = RunCounters(), {}
    for item in flights(999):
        totals.enter(item)
        values = seen.setdefault(item.actor, ([], [], [], []))
        for kept, more in zip(
            values, ([item.td_mean], [item.td_var], [item.local_structure], item.returns), strict=True
        ):
            kept.extend(more)
    expected = [tuple(np.mean(kept) for kept in values) for values in seen.values()]
    np.testing.assert_allclose(totals.population(), expected, rtol=1e-12)


def test_stopped_run_resumes_at_the_trained_step(tmp_path):
    config, asked = apex_config(), []

    def stop():
        asked.append(1)
        return len(asked) > 7

    first = fly_apex(tmp_path, config, cluster=watched({})[0], stop=stop)
    assert first.reason == "stopped" and 0 < first.steps < 640
    cluster, made = watched({})
    result = fly_apex(tmp_path, config, cluster=cluster)
    assert result.steps == 640 and result.resumed_from == first.steps
    assert sum(port.shard.replay.added for port in made[0].ports) == 640, "the shards remember too"
    assert made[0].actors[0].life > 1_000_000, "no life is lived twice"
    assert load_checkpoint(result.checkpoint).episode_count >= first.episodes > 0


def test_early_stopping_uses_the_median_of_the_actors(tmp_path):
    config = apex_config(
        total_steps=100_000,
        checkpoint_every=100_000,
        dqn={"replay_ratio": 0.5, "learning_rate": 1e-6},
        early_stopping={"enabled": True, "eval_interval": 600, "patience": 2, "plateau_threshold": 0.9},
    )
    result = fly_apex(tmp_path, config)
    assert result.reason == "early_stopping: plateau" and result.steps < 10_000


def test_recurrent_policy_sends_sequences(tmp_path):
    config = apex_config(
        policy={"core": "gru", "width": 16},
        task_options={"masked": True},
        dqn={"burn_in": 8},
        shaper={"rnd_start": 0.5, "rnd_end": 0.1},
        total_steps=256,
    )
    result = fly_apex(tmp_path, config)
    assert result.steps == 256 and np.isfinite(result.metrics["q_loss"])


class Meeting:
    """Two learners in two threads."""

    def __init__(self):
        self.barrier, self.values = threading.Barrier(2, timeout=60), [None, None]

    def exchange(self, rank, value):
        self.values[rank] = value
        self.barrier.wait()
        every = list(self.values)
        self.barrier.wait()
        return every


class ThreadWorkers(Workers):
    """Threads as the processes of a run; sums are taken in rank order."""

    def __init__(self, rank, meeting):
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "size", 2)
        object.__setattr__(self, "meeting", meeting)

    def _reduce(self, tensors, operation):
        every = self.meeting.exchange(self.rank, [x.clone() for x in tensors])
        for x, a, b in zip(tensors, *every):
            x.copy_(a + b if operation == "SUM" else torch.maximum(a, b))

    def gather(self, value):
        every = self.meeting.exchange(self.rank, value)
        return every if self.first else []

    def share(self, value):
        return self.meeting.exchange(self.rank, value)[0]


def test_two_learners_take_the_steps_of_one_learner(tmp_path):
    changes = {"total_steps": 320, "shaper": {"rnd_start": 1.0, "rnd_end": 1.0}}
    alone = fly_apex(tmp_path / "one", apex_config(distributed={"actors_per_gpu": 2}, **changes))
    both = apex_config(distributed={"actors_per_gpu": 1, "learners": 2}, **changes)
    assert actor_count(both) == 2
    meeting, found, failed = Meeting(), {}, []

    def learn(rank):
        try:
            found[rank] = fly_apex(tmp_path / "two", both, workers=ThreadWorkers(rank, meeting))
        except BaseException as error:
            failed.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed
    one, two = (load_checkpoint(x.checkpoint) for x in (alone, found[0]))
    assert found[0].steps == found[1].steps == alone.steps == 320
    assert two.normalisers["gradient_steps"] == one.normalisers["gradient_steps"] == 40
    for name, weight in one.policy_state.items():
        torch.testing.assert_close(two.policy_state[name], weight, rtol=0, atol=2e-5, msg=name)
    for name, weight in one.rnd_state["rnd"].items():
        torch.testing.assert_close(two.rnd_state["rnd"][name], weight, rtol=1e-4, atol=2e-5, msg=name)
    assert two.episode_count == one.episode_count


def test_weights_are_verified_before_loading():
    sent = Parameters.of({"a": torch.arange(3.0)}, version=4, step=9, decisions=99)
    assert torch.equal(sent.weights()["a"], torch.arange(3.0))
    sent.arrays["a"][1] = 7.0
    with pytest.raises(CheckpointError, match="version 4 have the checksum"):
        sent.weights()
    hub = ParameterHub()
    assert hub.command(0).parameters is None
    newer = Parameters.of({"a": torch.zeros(1)}, version=5, step=9, decisions=99)
    hub.publish(newer)
    hub.publish(sent)
    assert hub.command(4).parameters is newer and hub.command(5).parameters is None, "late is not new"
    hub.stop("total_steps")
    assert hub.command(5).stop == "total_steps"


def test_each_restart_has_its_own_seed():
    seeds = {actor_seed(0, actor, life) for actor in range(8) for life in range(50)}
    assert len(seeds) == 400


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "ppo"}, "runs algorithm dqn, not ppo"),
        ({"distributed": {"learners": 2}}, "learners is 2 and 1 processes run"),
        ({"task_options": {"normalise_observations": True}}, "every actor .* another scale"),
        ({"distributed": {"actors_per_gpu": 3}}, "cannot be shared by 3 actor processes"),
        ({"replay": {"capacity": 65}, "dqn": {"learning_starts": 65}}, "65 holds 64 decisions in 2 shards, .* for 65"),
    ],
)
def test_unsupported_settings_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        check_apex(apex_config(**changes))


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[ray\]'; or add --in-process"):
        import_ray()


def test_fresh_run_ignores_old_shards(tmp_path):
    config, asked = apex_config(), []
    whole = fly_apex(tmp_path, config, cluster=watched({})[0])
    folder = whole.checkpoint.parent

    def stop():
        asked.append(1)
        return len(asked) > 4

    again = fly_apex(tmp_path, config, cluster=watched({})[0], stop=stop, fresh=True)
    assert again.resumed_from is None and again.steps < 320
    for shard in range(2):
        names = [path.name for path in (folder / f"shard-{shard}").glob("*.replay")]
        assert names == [again.checkpoint.with_suffix(".replay").name]


def test_learner_command_trains_in_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    config = tmp_path / "small.json"
    config.write_text(apex_config(total_steps=256).model_dump_json())
    done = CliRunner().invoke(build_app(), ["learner", "--config", str(config), "--in-process", "--json"])
    assert done.exit_code == 0, done.output
    item = json.loads(done.stdout)
    assert item["steps"] == 256 and item["run_id"].startswith("apex-default") and item["version"] is None
    assert item["metrics"]["learner_updates_per_s"] >= 0
    with pytest.raises(ConfigError, match="neither --address nor --processes"):
        CliRunner().invoke(build_app(), ["learner", "--in-process", "--processes", "2"], catch_exceptions=False)
