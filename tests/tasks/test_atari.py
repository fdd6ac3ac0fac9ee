"""Atari preprocessing against a frame-by-frame twin; games independent of the batch; image policies."""

import numpy as np
import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.policy import build_policy
from navi_core.tasks import reference_task
from navi_core.tasks.external import _wanted
from tests.scale.builders import SMALL, fly_apex

BREAKOUT = "gymnasium:ALE/Breakout-v5"
ale_py = pytest.importorskip("ale_py", reason="Atari is in the extra atari")


def shrunk(picture: np.ndarray) -> np.ndarray:
    """210x160 to 84x84 by the area that each old pixel covers of a new one."""

    def weights(old: int, new: int) -> np.ndarray:
        edges = np.linspace(0, old, new + 1)
        low = np.maximum(edges[:-1, None], np.arange(old)[None])
        high = np.minimum(edges[1:, None], np.arange(1, old + 1)[None])
        return np.maximum(high - low, 0.0) * new / old

    return weights(210, 84) @ picture.astype(float) @ weights(160, 84).T


def test_observation_stacks_four_frames_by_hand():
    """The emulator alone, without sticky actions: brighter of the last two frames, grey, small, four in a stack."""
    from ale_py import ALEInterface, LoggerMode, roms
    from ale_py.vector_env import AtariVectorEnv

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 7)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("breakout"))
    games = AtariVectorEnv("breakout", 1, num_threads=1, noop_max=0, use_fire_reset=False, reward_clipping=False)
    games.reset(seed=np.array([7]))
    actions, rng, stack = ale.getMinimalActionSet(), np.random.default_rng(0), []
    for _ in range(40):
        action, score, frames = int(rng.integers(len(actions))), 0.0, []
        for _ in range(4):
            score += ale.act(actions[action])
            frames.append(ale.getScreenGrayscale())
        stack = [*stack, shrunk(np.maximum(frames[-2], frames[-1]))][-4:]
        seen, paid, *_ = games.step(np.array([action]))
        assert paid[0] == score
    assert np.abs(seen[0].astype(float) - np.stack(stack)).max() <= 1.0, "to the rounding of a grey level"


def test_atari_rows_are_independent_and_return_the_score():
    task, alone = reference_task(BREAKOUT, 2, 5), reference_task(BREAKOUT, 1, 5, first_row=1)
    assert task.spaces.shape == (4, 84, 84)
    assert task.spaces.choices == ((0.0,), (1.0,), (2.0,), (3.0,))
    assert torch.equal(task.reset()[1:2], alone.reset())
    rng, ended, total = np.random.default_rng(1), 0, 0.0
    for _ in range(400):
        action = torch.from_numpy(rng.integers(0, 4, (2, 1))).float()
        batch, one = task.step(action), alone.step(action[1:2])
        assert torch.equal(batch.obs[1:2], one.obs)
        assert torch.equal(batch.final_obs[1:2], one.final_obs)
        assert set(batch.reward.tolist()) <= {-1.0, 0.0, 1.0}
        total += float(one.reward)
        assert abs(float(one.info["episode_return"])) >= abs(total), "the score, of which signs are shown"
        if bool(one.terminated):
            ended, total = ended + 1, 0.0
            assert not torch.equal(one.obs, one.final_obs)
    assert ended >= 1
    assert batch.obs.dtype == torch.uint8
    again = reference_task(BREAKOUT, 2, 5)
    again.load_state_dict(task.state_dict())
    assert int(again._episode[1]) == ended + 1
    assert not torch.equal(again.observe(), task.observe())


def test_ppo_and_ape_x_learn_from_images(tmp_path):
    from navi_core.learn import train
    from navi_core.record import RunDirectory

    common = {
        "task": BREAKOUT,
        "actors": 4,
        "threads": 1,
        "device": "cpu",
        "policy": {"core": "none", "aux": "off", "width": 32, "picture_channels": [4, 4, 4]},
        "shaper": SMALL["shaper"],
    }
    ppo = parse_config(TrainConfig, common | {"total_steps": 32, "ppo": {"rollout": 8, "bptt": 8, "minibatch": 2}})
    with RunDirectory.open(tmp_path / "runs", asset="atari", partition="p", config=ppo) as run:
        env = reference_task(BREAKOUT, 4, 0)
        assert train(ppo, run, env=env, log=run.metric_log(tmp_path / "outbox")).steps == 32
    changed = {"policy": common["policy"] | {"q_hidden": 16}, "total_steps": 64, "task_options": {}}
    dqn = parse_config(TrainConfig, SMALL | common | changed)
    assert fly_apex(tmp_path / "apex", dqn).steps == 64
    policy = build_policy(ppo.policy, 0, env.spaces)
    assert policy.encoder(env.observe()).shape == (4, 32)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gymnasium:ALE/Braekout-v5", {}, "ids look like ALE/Breakout-v5"),
        (BREAKOUT, {"frames": 3}, "frames"),
        (BREAKOUT, {"threads": 0}, "threads is 0"),
        (BREAKOUT, {"normalise_observations": True}, "divided by 255"),
    ],
)
def test_unknown_game_is_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        reference_task(name, 1, 0, **options)


def test_missing_rom_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("ale_py.roms.get_rom_path", lambda game: None)
    with pytest.raises(ConfigError, match=r"the ROM of breakout is not there.*\[atari\]"):
        reference_task(BREAKOUT, 1, 0)


def test_no_frameskip_id_is_the_game_without_sticky_actions():
    """The ids of the published curves: frame skip by the preprocessing, every action is carried out."""
    task = reference_task("gymnasium:PongNoFrameskip-v4", 1, 5, fire_reset=True)
    assert task.spaces.shape == (4, 84, 84)
    assert _wanted("PongNoFrameskip-v4")["repeat_action_probability"] == 0.0
    assert _wanted("ALE/Pong-v5")["repeat_action_probability"] == 0.25


def test_a_lost_life_ends_an_episode_only_with_life_ends():
    """Breakout has five lives; without FIRE after each a game would wait for ever."""
    ends = {}
    for life_ends in (False, True):
        task = reference_task(BREAKOUT, 1, 3, life_ends=life_ends, fire_reset=True)
        task.reset()
        rng = np.random.default_rng(0)
        ends[life_ends] = sum(
            int(task.step(torch.from_numpy(rng.integers(0, 4, (1, 1))).float()).terminated[0]) for _ in range(300)
        )
    assert ends[True] > ends[False]


def test_clipped_reward_is_the_sign_of_the_score():
    clipped, raw = (reference_task("gymnasium:ALE/MsPacman-v5", 1, 3, clip_rewards=clip) for clip in (True, False))
    seen = set()
    for task in (clipped, raw):
        task.reset()
    for _ in range(150):
        a, b = (task.step(torch.zeros(1, 1)).reward for task in (clipped, raw))
        assert torch.equal(a, b.sign())
        seen.add(float(b[0]))
    assert max(seen) > 1.0
