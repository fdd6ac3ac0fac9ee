"""Snake by its rules: a slow twin plays the same games, cell by cell."""

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.tasks import Snake, reference_task

ROWS, SIZE = 6, 8
TURNS = [(-1, 0), (0, 1), (1, 0), (0, -1)]


class SlowSnake:
    """A list of cells, head first."""

    def __init__(self, food):
        middle = SIZE // 2
        self.cells = [(middle, middle - i) for i in range(3)]
        self.heading, self.food, self.hunger = 1, food, 0

    def move(self, action):
        """Return reward, whether it is over, and whether it ate."""
        self.heading = (self.heading + {0: 0, 1: 3, 2: 1}[action]) % 4
        y, x = (a + b for a, b in zip(self.cells[0], TURNS[self.heading]))
        self.hunger += 1
        if not (0 <= y < SIZE and 0 <= x < SIZE) or (y, x) in self.cells[:-1]:
            return -1.0, True, False
        self.cells.insert(0, (y, x))
        if (y, x) == self.food:
            self.hunger = 0
            return 1.0, len(self.cells) == SIZE**2, True
        self.cells.pop()
        return (-1.0, True, False) if self.hunger >= SIZE**2 else (0.0, False, False)

    def seen(self):
        """The 27 numbers, from coordinates."""
        (y, x), out = self.cells[0], []
        soon = self.cells[:-1]
        for ray in range(8):
            # Rays lie 45° apart, clockwise from the heading.
            angle = (2 * self.heading + ray) % 8
            dy, dx = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)][angle]
            distance, body, food = 1, 0.0, 0.0
            a, b = y + dy, x + dx
            while 0 <= a < SIZE and 0 <= b < SIZE:
                body = body or (1.0 / distance if (a, b) in soon else 0.0)
                food = 1.0 if (a, b) == self.food else food
                a, b, distance = a + dy, b + dx, distance + 1
            out += [1.0 / distance, body, food]
        ahead, right = TURNS[self.heading], TURNS[(self.heading + 1) % 4]
        off = (self.food[0] - y, self.food[1] - x)
        out += [(off[0] * d[0] + off[1] * d[1]) / SIZE for d in (ahead, right)]
        return [*out, (len(self.cells) / SIZE**2) ** 0.5]


def food_of(task, row):
    return divmod(int(task._state["snake"][row, 4]), SIZE)


def test_moves_equal_the_slow_twin():
    task = Snake(ROWS, seed=3, size=SIZE)
    seen = task.reset()
    twins = [SlowSnake(food_of(task, row)) for row in range(ROWS)]
    g, eaten, crashed = np.random.default_rng(0), 0, 0
    for _ in range(600):
        np.testing.assert_allclose(seen.numpy(), [t.seen() for t in twins], rtol=1e-6, atol=1e-6)
        # Mostly toward the food, so that snakes grow and meet themselves.
        actions = [int(g.integers(3)) if g.uniform() < 0.15 else toward(t) for t in twins]
        batch = task.step(torch.tensor(actions, dtype=torch.float32)[:, None])
        seen = batch.obs
        for row, (twin, action) in enumerate(zip(twins, actions)):
            reward, over, ate = twin.move(action)
            assert (float(batch.reward[row]), bool(batch.terminated[row])) == (reward, over)
            eaten, crashed = eaten + ate, crashed + over
            if over:
                twins[row] = SlowSnake(food_of(task, row))
            elif ate:
                twin.food = food_of(task, row)
                assert twin.food not in twin.cells, "food lies on a free cell"
    assert eaten > 30
    assert crashed > 10


def toward(twin):
    (y, x), ahead, right = twin.cells[0], TURNS[twin.heading], TURNS[(twin.heading + 1) % 4]
    off = (twin.food[0] - y, twin.food[1] - x)
    if off[0] * ahead[0] + off[1] * ahead[1] > 0:
        return 0
    return 2 if off[0] * right[0] + off[1] * right[1] > 0 else 1


def test_snake_starves_without_food():
    task = Snake(1, size=6)
    state = task._state["snake"]
    state[0, 4] = 0  # food in a corner that a circle in the middle never meets
    rewards = []
    for t in range(36):
        batch = task.step(torch.tensor([[2.0 if t % 2 else 0.0]]))
        rewards.append(float(batch.reward[0]))
    assert rewards == [0.0] * 35 + [-1.0]
    assert bool(batch.terminated[0])


def test_snake_rows_are_independent_of_batch_and_resume():
    wide, other = reference_task("snake", 6, 7), reference_task("snake", 6, 7)
    part = Snake(2, 7, first_row=3)
    g = np.random.default_rng(1)
    for t in range(300):
        actions = torch.tensor(g.integers(0, 3, (6, 1)), dtype=torch.float32)
        if t == 150:
            other.load_state_dict(wide.state_dict())
        a, b = wide.step(actions), part.step(actions[3:5])
        assert torch.equal(a.obs[3:5], b.obs)
        assert torch.equal(a.reward[3:5], b.reward)
        if t >= 150:
            c = other.step(actions)
            assert torch.equal(a.obs, c.obs)
            assert torch.equal(a.info["episode_return"], c.info["episode_return"])


def test_unplayable_size_is_refused():
    with pytest.raises(ConfigError, match="size is 3"):
        reference_task("snake", 2, size=3)
