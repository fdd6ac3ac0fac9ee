"""Diagnostics of a rollout: drawn from all rows and times, the same for one process as for several."""

import threading
from dataclasses import dataclass, field

import pytest
import torch

from navi_core.learn.estimators.noise import spread
from navi_core.learn.parallel import Workers
from navi_core.learn.rollout.diagnostics import rollout_diagnostics
from navi_core.learn.rollout.storage import ObservationStore, Rollout
from tests.learn.builders import filled, small_config, small_parts
from tests.learn.run.test_train_loop import fly, stopper, untimed
from tests.learn.toy_environments import MixedEndingsEnv

ROWS, STEPS = 8, 128


@dataclass(frozen=True)
class ThreadWorkers(Workers):
    """Processes of a run as threads of one."""

    board: list = field(default_factory=list)
    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))

    def _reduce(self, tensors, operation):
        assert operation == "SUM"
        self.barrier.wait()
        self.board[self.rank] = [x.clone() for x in tensors]
        self.barrier.wait()
        for x, *parts in zip(tensors, *self.board, strict=True):
            x.copy_(sum(parts))


@pytest.fixture(scope="module")
def learned():
    collector, learner = small_parts(small_config(rows=ROWS, ppo={"rollout": STEPS}), MixedEndingsEnv(ROWS))
    rollout = filled(collector)
    learner.update(rollout, index=0, steps=0)
    return learner.policy, rollout


def part_of(rollout: Rollout, rows: slice) -> Rollout:
    """The rollout of some rows, as another process would have it."""
    obs = rollout.observations.by_step()[:, rows]
    state = tuple(x[0, rows] for x in rollout.chunk_state)
    part = Rollout(rollout.steps, rollout.bptt, obs[0], rollout.aux[0, rows], state)
    for t in range(rollout.steps):
        part.observations.write(t, obs[t])
    for name in ("rewards", "values", "returns", "terminated", "truncated"):
        getattr(part, name).copy_(getattr(rollout, name)[:, rows])
    return part


@pytest.mark.parametrize(("count", "total"), [(256, 16384), (256, 256), (256, 300), (7, 23)])
def test_spread_draws_one_index_per_stretch(count, total):
    drawn = spread(3, count, total, 5)
    stretches = torch.arange(count + 1) * total // count
    assert ((drawn >= stretches[:-1]) & (drawn < stretches[1:])).all()
    assert torch.equal(drawn, spread(3, count, total, 5))
    if total > count:
        assert not torch.equal(drawn, spread(3, count, total, 6))
        assert not torch.equal(drawn, spread(4, count, total, 5))


def test_diagnostics_sample_every_row_and_time(learned, monkeypatch):
    """Whole sequences in equal strides were all of one row wherever the stride was a multiple of the rows."""
    looked = []
    seen = ObservationStore.decisions
    monkeypatch.setattr(
        ObservationStore, "decisions", lambda self, *at: looked.append(torch.stack(at)) or seen(self, *at)
    )
    policy, rollout = learned
    reported = [rollout_diagnostics(policy, rollout, critic=True, seed=1, update=n) for n in (0, 0, 1)]
    step, row = looked[0]
    assert row.bincount(minlength=ROWS).min() > 256 // ROWS // 2, "some 32 of each row"
    assert step.bincount(minlength=STEPS).tolist() == [2] * STEPS
    assert torch.equal(looked[0], looked[1]) and not torch.equal(looked[0], looked[2])
    assert reported[0] == reported[1] and reported[0]["td_var"] == reported[2]["td_var"]
    obs = rollout.observations.by_step()
    assert torch.equal(seen(rollout.observations, step, row), obs[step, row])


def test_signs_by_hand(learned):
    policy, rollout = learned
    error = (rollout.returns - rollout.values).double()
    reported = rollout_diagnostics(policy, rollout, critic=True, seed=1, update=0)
    assert reported["td_mean"] == pytest.approx(float(error.mean()))
    assert reported["td_var"] == pytest.approx(float((error - error.mean()).square().mean()))
    # Without a critic: the return of each decision to the end of its episode.
    earned = rollout.rewards.double().clone()
    for t in reversed(range(STEPS - 1)):
        earned[t] += earned[t + 1] * ~(rollout.terminated | rollout.truncated)[t]
    without = rollout_diagnostics(policy, rollout, critic=False, seed=1, update=0)
    assert without["td_mean"] == pytest.approx(0.0, abs=1e-5)
    assert without["td_var"] == pytest.approx(float(earned.var(correction=0)), rel=1e-5)


@pytest.mark.parametrize("critic", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_diagnostics_are_equal_in_one_and_several_processes(learned, size, critic):
    """A mean of variances would leave out the differences between the means of the processes."""
    policy, rollout = learned
    far = part_of(rollout, slice(None))
    # Rows that earn more than others: the processes' means lie far apart, and far from zero.
    for x in (far.returns, far.rewards):
        x += 1000.0 + torch.arange(ROWS).float()
    alone = rollout_diagnostics(policy, far, critic=critic, seed=1, update=2)
    board, barrier = [None] * size, threading.Barrier(size, timeout=60)
    reported = [{} for _ in range(size)]

    def speak(rank):
        workers = ThreadWorkers(rank, size, board, barrier)
        first, count = workers.rows(ROWS)
        mine = part_of(far, slice(first, first + count))
        reported[rank] = rollout_diagnostics(policy, mine, critic=critic, seed=1, update=2, workers=workers)

    threads = [threading.Thread(target=speak, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == reported[0] for each in reported)
    assert reported[0]["td_mean"] == pytest.approx(alone["td_mean"], rel=1e-9, abs=1e-2 if not critic else 0)
    assert reported[0]["td_var"] == pytest.approx(alone["td_var"], rel=1e-9 if critic else 1e-4)
    # A latent is rounded otherwise in another batch, and a neighbour may be another one for it.
    assert reported[0]["local_structure"] == pytest.approx(alone["local_structure"], abs=2e-3)


def test_a_process_without_drawn_decisions_takes_part(learned, monkeypatch):
    monkeypatch.setattr("navi_core.learn.rollout.diagnostics._SAMPLE", 2)
    policy, rollout = learned
    reported = [
        rollout_diagnostics(
            policy, part_of(rollout, slice(n, n + 1)), critic=True, seed=1, update=0, workers=Workers(n, 1)
        )
        for n in range(2)
    ]
    assert all(0.0 <= each["local_structure"] <= 1.0 for each in reported)
    one = Rollout(1, 1, torch.rand(1, 3, 16, 8), torch.zeros(1, 3), ())
    assert rollout_diagnostics(policy, one, critic=True, seed=1, update=0)["local_structure"] == 1.0


def test_resumed_run_repeats_diagnostic_draws(tmp_path):
    stopping = {"enabled": True, "eval_interval": 64, "patience": 10_000}
    config = small_config(rows=4, total_steps=320, ppo={"rollout": 16}, early_stopping=stopping)
    straight = fly(tmp_path / "whole", config)[1]
    for _ in range(2):
        resumed = fly(tmp_path / "parts", config, **stopper(3))[1]
    assert untimed(resumed) == untimed(straight) and (320, "local_structure") in straight
