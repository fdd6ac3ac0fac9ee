"""`success_rate` is a share of episodes, in one process and in several."""

from dataclasses import dataclass

import pytest
import torch

from navi_core.learn.parallel import Workers
from tests.learn.builders import small_config, small_parts
from tests.learn.toy_environments import MixedEndingsEnv

ROWS = 6


class GoalEnv(MixedEndingsEnv):
    """Tells of success in every decision, as point-goal flight does: where an episode terminates."""

    def step(self, actions):
        batch = super().step(actions)
        batch.info["success"] = batch.terminated.clone()
        return batch


class EndlessEnv(GoalEnv):
    def endings(self):
        return torch.zeros(2, self.num_envs, dtype=torch.bool).unbind()


@dataclass(frozen=True)
class EqualWorkers(Workers):
    """Two processes whose rows live the same lives."""

    def _reduce(self, tensors, operation):
        for x in tensors:
            x.mul_(2)


@pytest.mark.parametrize("workers", [Workers(), EqualWorkers(0, 2)])
def test_success_rate_counts_ended_episodes(workers):
    collector, _ = small_parts(small_config(rows=ROWS, shaper={"rnd_start": 0.0, "rnd_end": 0.0}), GoalEnv(ROWS))
    collector.workers = workers
    rollout = collector.new_rollout(32, 8)
    stats = collector.collect(rollout)
    ended, reached = (int(x.sum()) * workers.size for x in (rollout.terminated | rollout.truncated, rollout.terminated))
    assert 0 < reached < ended == stats.episodes
    assert stats.means["success_rate"] == pytest.approx(reached / ended)
    assert stats.means["pay"] == pytest.approx(float(rollout.rewards.mean()) - collector.config.shaper.existential_tax)


def test_success_rate_is_absent_without_ended_episodes():
    collector, _ = small_parts(small_config(rows=ROWS), EndlessEnv(ROWS))
    rollout = collector.new_rollout(32, 8)
    stats = collector.collect(rollout)
    assert stats.episodes == 0 and "success_rate" not in stats.means and "pay" in stats.means


def test_success_rate_is_absent_without_success_in_the_task():
    collector, _ = small_parts(small_config(rows=ROWS))
    assert "success_rate" not in collector.collect(collector.new_rollout(32, 8)).means
