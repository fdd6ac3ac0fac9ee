"""PPO's critic keeps its units through runs of learners that have none."""

import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.models import load_checkpoint
from tests.learn.run.test_train_loop import fly, make_config, stopper
from tests.learn.toy_environments import MixedEndingsEnv

ROWS = 4
SEGMENTS = {"rollout": 16, "bptt": 8, "horizon": 4, "learning_rate": 1e-6}


class CostlyEnv(MixedEndingsEnv):
    """Every decision costs, so that returns lie far from zero and have a spread of their own."""

    def pay(self, actions):
        return super().pay(actions) - 3.0


def without_critic(algorithm: str, steps: int) -> TrainConfig:
    plain = make_config(total_steps=steps).model_dump(exclude_unset=True)
    section = SEGMENTS | ({"group_size": 2} if algorithm == "grpo" else {})
    return parse_config(TrainConfig, plain | {"algorithm": algorithm, algorithm: section})


@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_critic_units_survive_a_learner_without_critic(algorithm, tmp_path):
    ppo = make_config(ppo={"normalise_rewards": True})
    first = fly(tmp_path / "a", ppo, env=CostlyEnv(ROWS))[0]
    before = load_checkpoint(first.checkpoint).normalisers
    assert before["value_scale"]["mean"] < -1
    # Stopped and resumed: critic units must survive the checkpoints of the run.
    config, start = without_critic(algorithm, 128), {"env": CostlyEnv(ROWS), "initial": first.checkpoint}
    fly(tmp_path / "b", config, **start, **stopper(1))
    second = fly(tmp_path / "b", config, **start)[0]
    assert second.resumed_from == 64
    carried = load_checkpoint(second.checkpoint).normalisers
    assert carried["value_scale"] == before["value_scale"]
    assert carried["reward_scale"] == {"moments": before["reward_scale"]["moments"]}
    going_on = make_config(seed=9, total_steps=64, ppo={"normalise_rewards": True})
    reported = [
        fly(tmp_path / f"c{n}", going_on, env=CostlyEnv(ROWS), initial=made.checkpoint)[1][64, "value_loss"]
        for n, made in enumerate((first, second))
    ]
    assert reported[1] == pytest.approx(reported[0], rel=0.05), "in raw units the loss would be several times as large"


def test_learner_without_critic_or_parent_has_no_units(tmp_path):
    made = fly(tmp_path, without_critic("grpo", 64), env=CostlyEnv(ROWS))[0]
    assert load_checkpoint(made.checkpoint).normalisers.keys() == {"group_updates", "reference"}


def test_checkpoint_without_critic_units_resumes(tmp_path):
    config = without_critic("grpo", 128)
    half = fly(tmp_path, config, env=CostlyEnv(ROWS), **stopper(1))[0]
    assert not torch.load(half.checkpoint, weights_only=True)["normalisers"].keys() & {"value_scale", "reward_scale"}
    assert fly(tmp_path, config, env=CostlyEnv(ROWS))[0].resumed_from == 64
