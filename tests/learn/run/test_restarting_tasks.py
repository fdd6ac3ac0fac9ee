"""Tasks that cannot be restored: a resumed run begins new episodes, independent of the old."""

import copy

import torch

from navi_core.learn import train
from navi_core.learn.estimators.normalisation import RewardScale
from navi_core.models import load_checkpoint
from navi_core.record import RunDirectory
from tests.learn.builders import filled, small_config, small_parts
from tests.learn.run.test_train_loop import stopper
from tests.learn.toy_environments import MixedEndingsEnv

ROWS, EXCLUSION = 6, 3


class RestartingEnv(MixedEndingsEnv):
    """As the tasks of gymnasium: of its state it keeps the episodes' numbers alone. No episode of it ends."""

    restarts = True

    def endings(self):
        return torch.zeros(2, self.num_envs, dtype=torch.bool).unbind()

    def load_state_dict(self, state):
        self.episode = state["episode"].clone() + 1
        self.age.zero_()
        self.total.zero_()


def config(**top):
    shaping = {"loop_coefficient": 2.0, "memory_exclusion": EXCLUSION, "memory_capacity": 600}
    return small_config(rows=ROWS, shaper=shaping, ppo={"normalise_rewards": True}, **top)


def test_abandoned_episode_memory_is_cleared_on_resume():
    collector, _ = small_parts(config(), RestartingEnv(ROWS))
    filled(collector)
    assert collector.shaper.memory.query(collector.shaper.memory.unit(torch.randn(ROWS, 128)))[1].any()
    state = copy.deepcopy(collector.state_dict())
    taken_up, _ = small_parts(config(), RestartingEnv(ROWS))
    taken_up.load_state_dict(state)
    reported = filled(taken_up).aux[:, :, 1]
    # The result of decision t is an input of decision t + 1.
    assert not reported[: EXCLUSION + 1].any() and reported[EXCLUSION + 1].all()


def test_resumed_reward_scale_excludes_abandoned_episodes(tmp_path, monkeypatch):
    earned, normalise = [], RewardScale.normalise_
    monkeypatch.setattr(
        RewardScale, "normalise_", lambda self, *a: earned.append(self.discounted.clone()) or normalise(self, *a)
    )
    settings = config(total_steps=None)
    for start in range(2):
        with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=settings) as run:
            log, env = run.metric_log(tmp_path / "outbox"), RestartingEnv(ROWS)
            ended = train(settings, run, env=env, log=log, **stopper(2))
        assert ended.steps == (start + 1) * 2 * ROWS * 32
    assert [bool(before.any()) for before in earned] == [False, True, False, True]
    assert load_checkpoint(ended.checkpoint).normalisers["reward_scale"]["moments"]["count"] == ended.steps
