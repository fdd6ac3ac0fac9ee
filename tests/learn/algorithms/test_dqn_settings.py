"""Double DQN: exploration, refusals and settings."""

import math

import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.learn.estimators.noise import epsilons
from navi_core.tasks import reference_task
from tests.learn.algorithms.test_dqn import ROWS, fly, make_config, parts
from tests.learn.toy_environments import FortuneEnv, PoisonEnv


def test_exploration_epsilons_follow_the_ladder():
    config = make_config().dqn
    ladder = epsilons(config, 8, 0).tolist()
    assert ladder == pytest.approx([0.4 ** (1 + 7 * i / 7) for i in range(8)])
    assert epsilons(config, 1, 0).tolist() == pytest.approx([0.4**4.5])
    falling = config.model_copy(update={"exploration": "shared", "epsilon_end": 0.1, "epsilon_decay_steps": 100})
    assert [float(epsilons(falling, 2, s)[1]) for s in (0, 50, 100, 900)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_exploring_actions_are_uniform_at_rate_epsilon():
    from navi_core.policy.heads import EpsilonGreedy

    count = 40_000
    noise = torch.randn(count, 1, generator=torch.Generator().manual_seed(0))
    values, table = torch.tensor([0.0, 2.0, 1.0, -1.0]).expand(count, 4), torch.arange(4.0)[:, None]
    distribution = EpsilonGreedy(values, table, torch.tensor(0.3, dtype=torch.float64).expand(count))
    share = torch.bincount(distribution.sample(noise)[:, 0].long(), minlength=4) / count
    assert torch.allclose(share, torch.tensor([0.075, 0.775, 0.075, 0.075]), atol=0.006)
    one = EpsilonGreedy(values[:1], table, torch.tensor(0.3))
    assert torch.allclose(one.probabilities(), torch.tensor([[0.075, 0.775, 0.075, 0.075]]))
    assert float(one.log_prob(torch.tensor([[1.0]]))) == pytest.approx(math.log(0.775))
    entropy = -(0.775 * math.log(0.775) + 3 * 0.075 * math.log(0.075))
    assert float(one.entropy()) == pytest.approx(entropy)
    greedy = EpsilonGreedy(values[:9], table, torch.tensor(0.0))
    assert (greedy.sample(torch.full((9, 1), -40.0)) == 1).all()


def test_nan_reward_stops_the_run(tmp_path):
    with pytest.raises(NonFiniteError, match="reward term pay"):
        fly(tmp_path, make_config(), env=PoisonEnv(ROWS))


def test_diverging_priorities_error_names_loss_and_checkpoint(tmp_path):
    """Priorities reach the host before the metrics of the update; the replay alone would raise another error."""
    config = make_config(dqn={"replay_ratio": 8.0}, checkpoint_every=ROWS * 16)
    with pytest.raises(
        NonFiniteError, match=r"q_loss is inf in gradient step.*learning_rate.*step-0+192\.pt"
    ) as caught:
        fly(tmp_path, config, env=FortuneEnv(ROWS))
    assert caught.value.tensor == "q_loss"


def test_contradictory_settings_are_refused():
    with pytest.raises(ConfigError, match="distribution q"):
        make_config(policy={"distribution": "gaussian"})
    with pytest.raises(ConfigError, match="algorithm dqn"):
        parse_config(TrainConfig, {"policy": {"distribution": "q"}})
    with pytest.raises(ConfigError, match="burn_in 3"):
        make_config(dqn={"burn_in": 3})
    with pytest.raises(ConfigError, match="q_hidden"):
        parse_config(TrainConfig, {"algorithm": "dqn", "kernel_smoothing": {"enabled": True, "latent_dim": 32}})
    with pytest.raises(ConfigError, match="continuous"):
        parts(make_config(), reference_task("pendulum", ROWS))


@pytest.mark.parametrize("name", ["seed", "first_row", "num_envs"])
def test_run_setting_in_task_options_is_refused(name):
    with pytest.raises(ConfigError, match=f"task_options.{name} is no option of a task; set"):
        parse_config(TrainConfig, {"task": "cart_pole", "task_options": {name: 3}})


def test_replay_smaller_than_learning_starts_is_refused():
    with pytest.raises(ConfigError, match=r"capacity 63 holds 63 decisions, and dqn.learning_starts waits for 64"):
        make_config(replay={"capacity": 63})
    with pytest.raises(ConfigError, match=r"capacity 70 holds 64 decisions in whole sequences of 8, .* 65"):
        make_config("gru", replay={"capacity": 70}, dqn={"learning_starts": 65})
    make_config("gru", replay={"capacity": 64})
    # Presets set sections of all learners; those of others do nothing.
    parse_config(TrainConfig, {"replay": {"capacity": 10}})


@pytest.mark.slow
def test_dqn_learns_to_balance_a_pole(tmp_path):
    config = make_config(
        actors=8,
        total_steps=30_000,
        policy={"width": 64, "aux": "off"},
        dqn={"rollout": 32, "replay_ratio": 16.0, "learning_rate": 1e-3, "epsilon_decay_steps": 10_000,
             "exploration": "shared", "epsilon_end": 0.02, "learning_starts": 1000},
        replay={"capacity": 50_000, "batch_size": 64},
    )  # fmt: skip
    made = fly(tmp_path, config, env=reference_task("cart_pole", 8, 5, masked=False))
    assert made.metrics["episode_return"] > 100
