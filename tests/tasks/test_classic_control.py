"""Cart-pole and acrobot against Gymnasium's own, step for step from any state."""

import numpy as np
import pytest

from navi_core.tasks.classic_control import ACROBOT, CART_POLE, advance_rows

gymnasium = pytest.importorskip("gymnasium")


@pytest.mark.parametrize(
    ("kind", "name", "spread", "actions"),
    [(CART_POLE, "CartPole-v1", (2.4, 3.0, 0.2095, 3.0), 2), (ACROBOT, "Acrobot-v1", (3.1, 3.1, 12.0, 28.0), 3)],
)
def test_steps_from_any_state_equal_gymnasium(kind, name, spread, actions):
    env = gymnasium.make(name).unwrapped
    rng = np.random.default_rng(0)
    bodies = rng.uniform(-1, 1, (400, 4)) * np.array(spread)
    chosen = rng.integers(0, actions, 400)
    ours, reward, over = bodies.copy(), np.zeros(400), np.zeros(400, dtype=bool)
    advance_rows(kind, chosen, ours, reward, over)
    env.reset(seed=0)
    for i in range(400):
        env.state = bodies[i].copy()
        if kind == CART_POLE:
            env.steps_beyond_terminated = None
        _, paid, ended, _, _ = env.step(int(chosen[i]))
        assert np.abs(np.asarray(env.state) - ours[i]).max() < 1e-9
        assert (paid, ended) == (reward[i], over[i])
    assert 0 < over.sum() < 400
