"""Reference tasks follow the rules and physics of the tasks they are named after."""

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.tasks import CartPole, Pendulum, RepeatFirst, RepeatPrevious, reference_task

ROWS = 5


def test_cart_pole_steps_equal_gymnasium():
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is a peer to compare with (pip install gymnasium)")
    task = CartPole(ROWS, seed=3, masked=False)
    peer = gymnasium.make("CartPole-v1").unwrapped
    g = np.random.default_rng(0)
    fallen = 0
    for row in range(ROWS):
        task.reset()
        peer.reset()
        peer.state = task._state["body"][row].numpy().copy()
        for _ in range(200):
            action = int(g.integers(2))
            batch = task.step(torch.full((ROWS, 1), float(action)))
            seen, reward, terminated, _, _ = peer.step(action)
            np.testing.assert_allclose(batch.final_obs[row].numpy(), seen, rtol=0, atol=1e-6)
            assert float(batch.reward[row]) == reward
            assert bool(batch.terminated[row]) == terminated
            if terminated:
                fallen += 1
                break
    assert fallen == ROWS


def test_pendulum_steps_equal_gymnasium():
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is a peer to compare with (pip install gymnasium)")
    task = Pendulum(ROWS, seed=1, masked=False)
    peer = gymnasium.make("Pendulum-v1").unwrapped
    g = np.random.default_rng(0)
    peer.reset()
    peer.state = task._state["body"][2].numpy().copy()
    for step in range(200):
        push = float(g.uniform(-1.5, 1.5))
        batch = task.step(torch.full((ROWS, 1), push))
        seen, reward, _, _, _ = peer.step(np.array([2.0 * max(-1.0, min(1.0, push))]))
        np.testing.assert_allclose(batch.final_obs[2].numpy(), seen, rtol=0, atol=1e-5)
        assert float(batch.reward[2]) == pytest.approx(float(reward), abs=1e-4)
        assert bool(batch.truncated.all()) == (step == 199)


@pytest.mark.parametrize(("task", "shown"), [(CartPole, 2), (Pendulum, 2)])
def test_velocities_are_hidden_unless_asked_for(task, shown):
    hidden, whole = task(ROWS, seed=0), task(ROWS, seed=0, masked=False)
    seen, every = hidden.reset(), whole.reset()
    assert seen.shape == (ROWS, shown) == (ROWS, hidden.spaces.observation)
    if task is CartPole:
        assert torch.equal(seen, every[:, [0, 2]])
    else:
        assert torch.equal(seen, every[:, :2])
        assert torch.allclose(seen.square().sum(1), torch.ones(ROWS))


@pytest.mark.parametrize(("k", "decks"), [(4, 1), (1, 1), (9, 2)])
def test_repeating_the_card_k_decisions_back_returns_one(k, decks):
    task = RepeatPrevious(ROWS, seed=2, k=k, decks=decks)
    seen = [task.reset().argmax(1)]
    for step in range(52 * decks - 1):
        known = len(seen) >= k
        batch = task.step((seen[-k] if known else torch.zeros(ROWS)).float()[:, None])
        assert torch.allclose(batch.reward, torch.full((ROWS,), 1.0 / (52 * decks - k) if known else 0.0))
        seen.append(batch.final_obs.argmax(1))
        assert bool(batch.truncated.all()) == (step == 52 * decks - 2)
        assert not batch.terminated.any()
    assert torch.allclose(batch.info["episode_return"], torch.ones(ROWS), atol=1e-5)
    counts = torch.stack([torch.bincount(row, minlength=4) for row in torch.stack(seen, 1)])
    assert (counts == 13 * decks).all(), "every card of the decks is shown once"


@pytest.mark.parametrize(("ours", "theirs", "options"), [
    (RepeatPrevious, "repeat_previous.RepeatPrevious", {"k": 4}),
    (RepeatPrevious, "repeat_previous.RepeatPrevious", {"k": 8}),
    (RepeatFirst, "repeat_first.RepeatFirst", {}),
])  # fmt: skip
def test_card_rewards_equal_popgym(ours, theirs, options):
    module, name = theirs.split(".")
    module = pytest.importorskip(f"popgym.envs.{module}", reason="POPGym is a peer to compare with")
    peer, task = getattr(module, name)(**options), ours(1, **options)
    g = np.random.default_rng(0)
    for seed in range(3):
        shown, _ = peer.reset(seed=seed)
        task.reset()
        task._state["deck"] = torch.from_numpy(peer.deck.suits_idx[peer.deck.idx[::-1]].copy())[None]
        assert shown == peer.deck.suits_idx[peer.deck.idx[-1]]
        over, earned = False, 0.0
        while not over:
            action = int(g.integers(4))
            shown, reward, over, _, _ = peer.step(action)
            batch = task.step(torch.tensor([[float(action)]]))
            earned += reward
            assert float(batch.reward) == pytest.approx(reward, abs=1e-7)
            assert int(batch.final_obs.argmax()) == shown
            assert bool(batch.truncated) == over
        assert float(batch.info["episode_return"]) == pytest.approx(earned, abs=1e-5)


def test_guessing_returns_minus_one_half():
    task = RepeatPrevious(512, seed=0)
    g = torch.Generator().manual_seed(0)
    for _ in range(51):
        batch = task.step(torch.randint(0, 4, (512, 1), generator=g).float())
    assert float(batch.info["episode_return"].mean()) == pytest.approx(-0.5, abs=0.02)


def test_repeating_the_first_card_returns_one():
    task = RepeatFirst(ROWS, seed=5)
    first = task.reset().argmax(1).float()[:, None]
    for _ in range(51):
        batch = task.step(first)
    assert torch.allclose(batch.info["episode_return"], torch.ones(ROWS), atol=1e-5)
    assert batch.truncated.all()


@pytest.mark.parametrize("name", ["repeat_previous", "cart_pole", "pendulum"])
def test_rows_are_independent_of_batch_and_resume(name):
    wide, other = reference_task(name, 6, 7), reference_task(name, 6, 7)
    part = type(wide)(2, 7, first_row=3)
    for t in range(230):
        actions = torch.full((6, 1), float(t % 2))
        if t == 100:
            other.load_state_dict(wide.state_dict())
        a, b = wide.step(actions), part.step(actions[:2])
        assert torch.equal(a.obs[3:5], b.obs)
        assert torch.equal(a.reward[3:5], b.reward)
        if t >= 100:
            c = other.step(actions)
            assert torch.equal(a.obs, c.obs)
            assert torch.equal(a.truncated, c.truncated)


def test_unknown_task_or_option_is_refused():
    with pytest.raises(ConfigError, match="repeat_previous, repeat_first, cart_pole, acrobot, pendulum"):
        reference_task("lunar_lander", 2)
    with pytest.raises(ConfigError, match="masked"):
        reference_task("repeat_first", 2, masked=True)
    with pytest.raises(ConfigError, match="k is 52"):
        RepeatPrevious(2, k=52)
    with pytest.raises(ConfigError, match="expected"):
        CartPole(2).step(torch.zeros(2, 4))
