"""Stage timings, non-finite numbers, and files of a killed writer."""

import json

import pytest
import torch

from navi_core.errors import NonFiniteError
from navi_core.learn import train
from navi_core.learn.run.checkpoints import checkpoints_in, sweep_unfinished
from navi_core.learn.run.process import Threads, choose_threads, measure_threads
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from tests.learn.builders import filled, small_config, small_parts
from tests.learn.toy_environments import MixedEndingsEnv

ROLLOUT_STAGES = {
    "forward", "environment_step", "memory_query", "memory_append", "shaping_rnd", "storage", "bootstrap",
    "host_extraction", "telemetry_publication",
}  # fmt: skip
UPDATE_STAGES = {
    "advantages", "minibatch_prep", "minibatch_fetch", "policy_evaluation", "policy_evaluation/encoder",
    "policy_evaluation/core", "policy_evaluation/heads", "loss", "backward", "gradient_clip", "optimizer_step",
    "rnd_step", "statistics", "progress_callback",
}  # fmt: skip


def stage_rows(outbox) -> list[dict]:
    return [
        json.loads(line)
        for file in sorted(outbox.glob("*-stage_timings.ndjson"))
        for line in file.read_text().splitlines()[1:]
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("stages")
    shaper = {"loop_coefficient": 0.5, "memory_exclusion": 2, "memory_capacity": 400}
    config = small_config(shaper=shaper, total_steps=6 * 32 * 3)
    with RunDirectory.open(root / "runs", asset="toy", partition="p", config=config) as run:
        train(
            config,
            run,
            env=MixedEndingsEnv(6),
            log=run.metric_log(root / "outbox"),
            events=EventBus({UpdateMade: lambda p: None}),
        )
    return stage_rows(root / "outbox")


def test_every_stage_of_rollout_and_update_is_recorded(recorded):
    last = {row["stage"] for row in recorded if row["step"] == 6 * 32 * 3}
    assert last == {f"rollout/{s}" for s in ROLLOUT_STAGES} | {f"update/{s}" for s in UPDATE_STAGES}
    assert all(row["milliseconds"] >= 0 and row["total_milliseconds"] >= row["milliseconds"] * 0.99 for row in recorded)


def test_evaluation_part_times_lie_within_the_total(recorded):
    total = {}
    for row in recorded:
        total[row["stage"]] = total.get(row["stage"], 0.0) + row["total_milliseconds"]
    parts = sum(total[f"update/policy_evaluation/{p}"] for p in ("encoder", "core", "heads"))
    assert 0.5 * total["update/policy_evaluation"] < parts <= total["update/policy_evaluation"]


def test_timing_leaves_no_hooks_behind():
    collector, learner = small_parts(small_config())
    learner.update(filled(collector), index=0, steps=0)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in learner.policy.modules())


class Faulty(MixedEndingsEnv):
    """Shows a NaN in one pixel from the 40th decision on."""

    count = 0

    def observe(self) -> torch.Tensor:
        obs = super().observe()
        self.count += 1
        if self.count > 100:
            obs[2, 0, 3, 4] = torch.nan
        return obs


def test_nan_observation_error_names_the_last_good_checkpoint(tmp_path):
    config = small_config(checkpoint_every=6 * 32, total_steps=6 * 32 * 4)
    with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=config) as run:
        with pytest.raises(NonFiniteError, match=r"observation holds .*last good checkpoint is .*step-0+192\.pt") as e:
            train(config, run, env=Faulty(6), log=run.metric_log(tmp_path / "outbox"))
        assert e.value.tensor == "observation"
        assert [p.name for p in checkpoints_in(run.checkpoints)] == ["step-000000000192.pt"]


def test_nan_parameter_error_names_the_parameter_first():
    collector, _ = small_parts(small_config())
    rollout = filled(collector)
    with torch.no_grad():
        collector.policy.heads.critic[0].weight[3, 4] = torch.inf
        collector.policy.heads.critic[0].weight[3, 5] = -torch.inf
    with pytest.raises(NonFiniteError) as caught:
        collector.collect(rollout)
    assert caught.value.tensor == "parameter heads.critic.0.weight"


@pytest.mark.parametrize("name", ["heads.log_std", "core.weight_hh"])
def test_nan_gradient_error_names_it(name):
    collector, learner = small_parts(small_config())
    rollout = filled(collector)
    found = [n for n, _ in learner.policy.named_parameters() if n.endswith(name.split(".")[-1])]
    parameter = dict(learner.policy.named_parameters())[found[0]]
    parameter.register_hook(lambda g: torch.full_like(g, torch.nan))
    with pytest.raises(NonFiniteError, match="gradient of") as caught:
        learner.update(rollout, index=0, steps=0)
    assert caught.value.tensor == f"gradient of {found[0]}"


def test_overflowing_weight_error_names_it():
    collector, learner = small_parts(small_config(ppo={"epochs": 1, "minibatch": 1000}))
    rollout = filled(collector)
    learner.settings = lambda steps: type(learner).settings(learner, 0) | {"learning_rate": float("inf")}
    with pytest.raises(NonFiniteError, match=r"weight .* is not finite"):
        learner.update(rollout, index=0, steps=0)


@pytest.mark.parametrize(("tensor", "word"), [("advantages", "policy_loss"), ("log_probs", "policy_loss")])
def test_nan_loss_error_names_it(tensor, word):
    collector, learner = small_parts(small_config())
    rollout = filled(collector)
    rollout.estimate_advantages = lambda **_: None
    getattr(rollout, tensor)[3, 2] = torch.nan
    with pytest.raises(NonFiniteError) as caught:
        learner.update(rollout, index=0, steps=0)
    assert caught.value.tensor == word


def test_unfinished_files_are_swept_and_checkpoints_stay(tmp_path):
    for name in (".step-000000000064.pt.123.tmp", "step-000000000064.pt", "step-000000000128.pt.broken", ".other.tmp"):
        (tmp_path / name).write_bytes(b"x")
    for folder in (tmp_path, tmp_path / "shard-0"):
        folder.mkdir(exist_ok=True)
        (folder / ".step-000000000064.replay.123.tmp").write_bytes(b"x")
    sweep_unfinished(tmp_path)
    assert not any((tmp_path / "shard-0").iterdir())
    kept = {p.name for p in tmp_path.iterdir() if p.is_file()}
    assert kept == {"step-000000000064.pt", "step-000000000128.pt.broken", ".other.tmp"}


def test_a_run_sweeps_before_it_starts(tmp_path):
    config = small_config(total_steps=6 * 32)
    with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=config) as run:
        (run.checkpoints / ".step-000000000064.pt.99.tmp").write_bytes(b"torn")
        train(config, run, env=MixedEndingsEnv(6), log=run.metric_log(tmp_path / "outbox"))
        assert [p.name for p in run.checkpoints.iterdir()] == ["step-000000000192.pt"]


def test_threads_are_measured_once_and_kept_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("navi_core.learn.run.process.os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    calls = []

    def measure(policy, obs, bptt, most):
        calls.append(most)
        return Threads(1, most)

    monkeypatch.setattr("navi_core.learn.run.process.measure_threads", measure)
    config = small_config(threads=0)
    collector, learner = small_parts(config)
    run = tmp_path / "run"
    run.mkdir()
    assert choose_threads(config, learner.policy, collector.obs, run) == Threads(1, 3)
    assert choose_threads(config, learner.policy, collector.obs, run) == Threads(1, 3)
    assert choose_threads(config, learner.policy, collector.obs, None) == Threads(1, 3), "the home remembers"
    (tmp_path / "home" / "threads.json").unlink()
    assert choose_threads(config, learner.policy, collector.obs, run) == Threads(1, 3), "the run remembers"
    assert calls == [3]
    (run / "threads.json").write_text("{torn")
    assert choose_threads(config, learner.policy, collector.obs, run) == Threads(1, 3) and calls == [3, 3]
    assert choose_threads(config, learner.policy, collector.obs, None, processes=3) == Threads(1, 1)
    assert choose_threads(small_config(threads=7), learner.policy, collector.obs, None) == Threads(7, 7)


def test_thread_measurement_changes_no_state():
    collector, learner = small_parts(small_config("mamba2"))
    before, state, threads = [p.clone() for p in learner.policy.parameters()], torch.get_rng_state(), 1
    torch.set_num_threads(threads)
    chosen = measure_threads(learner.policy, collector.obs, 8, 2)
    assert chosen.rollout in (1, 2) and chosen.update in (1, 2) and torch.get_num_threads() == threads
    assert all(torch.equal(a, b) for a, b in zip(before, learner.policy.parameters()))
    assert torch.equal(state, torch.get_rng_state()) and all(p.grad is None for p in learner.policy.parameters())
