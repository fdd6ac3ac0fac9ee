"""Classic control tasks: vectorised cart-pole, acrobot and pendulum with Gymnasium's dynamics.

Cart-pole (Barto, Sutton and Anderson 1983) and acrobot (Sutton 1996) have compiled loops that step many rows at once:
physics in double precision, time limit, autoreset and observation.
"""

import math

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.kernels.draws import draw
from navi_core.tasks.task import ReferenceTask, State
from navi_core.world.counter_random import Purpose, stream_key
from navi_core.world.interface import StepBatch, StepInfo

CART_POLE, ACROBOT = 0, 1
"""Task codes of the compiled loops."""

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Seen = npt.NDArray[np.float32]

_GRAVITY, _POLE, _HALF_LENGTH, _FORCE, _SECONDS = 9.8, 0.1, 0.5, 10.0, 0.02
_MASS, _MOMENT = 1.1, 0.05
_FAR, _STEEP = 2.4, 12 * 2 * math.pi / 360
_ACROBOT_SECONDS = 0.2


@numba.njit(inline="always", error_model="numpy")
def _cart_pole(body: Numbers, action: int) -> tuple[float, bool]:
    """Step the cart-pole dynamics of one row; return its reward and termination flag."""
    x, speed, angle, turn = body[0], body[1], body[2], body[3]
    force = _FORCE if action == 1 else -_FORCE
    cos, sin = math.cos(angle), math.sin(angle)
    pushed = (force + _MOMENT * turn * turn * sin) / _MASS
    turning = (_GRAVITY * sin - cos * pushed) / (_HALF_LENGTH * (4.0 / 3.0 - _POLE * cos * cos / _MASS))
    moving = pushed - _MOMENT * turning * cos / _MASS
    body[0] = x + _SECONDS * speed
    body[1] = speed + _SECONDS * moving
    body[2] = angle + _SECONDS * turn
    body[3] = turn + _SECONDS * turning
    return 1.0, abs(body[0]) > _FAR or abs(body[2]) > _STEEP


@numba.njit(inline="always", error_model="numpy")
def _swing(first: float, second: float, first_speed: float, second_speed: float, torque: float) -> tuple[float, float]:
    """Compute both angular accelerations of the acrobot; links of length 1 and mass 1, moments of inertia 1."""
    d1 = 0.25 + (1.0 + 0.25 + math.cos(second)) + 2.0
    d2 = 0.25 + 0.5 * math.cos(second) + 1.0
    phi2 = 0.5 * 9.8 * math.cos(first + second - math.pi / 2.0)
    phi1 = (
        -0.5 * second_speed * second_speed * math.sin(second)
        - second_speed * first_speed * math.sin(second)
        + 1.5 * 9.8 * math.cos(first - math.pi / 2.0)
        + phi2
    )
    lower = (torque + d2 / d1 * phi1 - 0.5 * first_speed * first_speed * math.sin(second) - phi2) / (
        1.25 - d2 * d2 / d1
    )
    return -(d2 * lower + phi1) / d1, lower


@numba.njit(inline="always", error_model="numpy")
def _wrapped(angle: float) -> float:
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle < -math.pi:
        angle += 2 * math.pi
    return angle


@numba.njit(inline="always", error_model="numpy")
def _acrobot(body: Numbers, action: int) -> tuple[float, bool]:
    """Step the acrobot dynamics of one row by fourth-order Runge-Kutta; return its reward and termination flag."""
    torque, h = action - 1.0, _ACROBOT_SECONDS
    a, b, u, v = body[0], body[1], body[2], body[3]
    p1, q1 = _swing(a, b, u, v, torque)
    u2, v2 = u + 0.5 * h * p1, v + 0.5 * h * q1
    p2, q2 = _swing(a + 0.5 * h * u, b + 0.5 * h * v, u2, v2, torque)
    u3, v3 = u + 0.5 * h * p2, v + 0.5 * h * q2
    p3, q3 = _swing(a + 0.5 * h * u2, b + 0.5 * h * v2, u3, v3, torque)
    u4, v4 = u + h * p3, v + h * q3
    p4, q4 = _swing(a + h * u3, b + h * v3, u4, v4, torque)
    body[0] = _wrapped(a + h / 6.0 * (u + 2 * u2 + 2 * u3 + u4))
    body[1] = _wrapped(b + h / 6.0 * (v + 2 * v2 + 2 * v3 + v4))
    body[2] = min(max(u + h / 6.0 * (p1 + 2 * p2 + 2 * p3 + p4), -4 * math.pi), 4 * math.pi)
    body[3] = min(max(v + h / 6.0 * (q1 + 2 * q2 + 2 * q3 + q4), -9 * math.pi), 9 * math.pi)
    over = -math.cos(body[0]) - math.cos(body[1] + body[0]) > 1.0
    return (0.0 if over else -1.0), over


@numba.njit(inline="always", error_model="numpy")
def _show(task: int, body: Numbers, seen: Seen) -> None:
    if task == CART_POLE:
        for i in range(4):
            seen[i] = body[i]
    else:
        seen[0], seen[1] = math.cos(body[0]), math.sin(body[0])
        seen[2], seen[3] = math.cos(body[1]), math.sin(body[1])
        seen[4], seen[5] = body[2], body[3]


@numba.njit(cache=True, error_model="numpy")
def step_episodes(
    task: int,
    key: int,
    first_row: int,
    limit: int,
    actions: Seen,
    body: Numbers,
    episode: Counts,
    length: Counts,
    earned: Seen,
    obs: Seen,
    final_obs: Seen,
    reward: Seen,
    terminated: Flags,
    truncated: Flags,
    episode_return: Seen,
    episode_length: Counts,
) -> None:
    """Step the vectorised environment (all rows) once, compiled, with time limit and same-step autoreset.

    Args:
        task: `CART_POLE` or `ACROBOT`.
        key: `counter_random.stream_key` of the seed.
        first_row: Number of the first row among those of the run.
        limit: Decisions after which an episode is truncated.
        actions: (B,) action indices.
        body: (B, 4) physical state, changed.
        episode: (B,) episode numbers, changed.
        length: (B,) decisions of the current episodes, changed.
        earned: (B,) returns of the current episodes, changed.
        obs: (B, n) observations after any reset, written.
        final_obs: (B, n) observations before any reset, written.
        reward: (B,) rewards, written.
        terminated: (B,) termination flags, written.
        truncated: (B,) flags of the time limit without termination, written.
        episode_return: (B,) return of the episode so far, before any reset; written.
        episode_length: (B,) decisions of the episode so far, before any reset; written.
    """
    # Cart-pole starts within ±0.05, acrobot within ±0.1.
    spread = 0.05 if task == CART_POLE else 0.1
    for row in range(len(actions)):
        if task == CART_POLE:
            gained, over = _cart_pole(body[row], actions[row])
        else:
            gained, over = _acrobot(body[row], actions[row])
        length[row] += 1
        earned[row] += gained
        cut = length[row] >= limit and not over
        reward[row], terminated[row], truncated[row] = gained, over, cut
        episode_return[row], episode_length[row] = earned[row], length[row]
        _show(task, body[row], final_obs[row])
        if over or cut:
            episode[row] += 1
            length[row], earned[row] = 0, 0.0
            for i in range(4):
                body[row, i] = draw(key, first_row + row, episode[row], i) * 2.0 * spread - spread
        _show(task, body[row], obs[row])


@numba.njit(cache=True, error_model="numpy")
def advance_rows(task: int, actions: Counts, body: Numbers, reward: Numbers, over: Flags) -> None:
    """Step the dynamics of every row by one decision, compiled, without time limit or reset.

    Args:
        task: `CART_POLE` or `ACROBOT`.
        actions: (B,) action indices.
        body: (B, 4) physical state, changed.
        reward: (B,) rewards, written.
        over: (B,) termination flags, written.
    """
    for row in range(len(actions)):
        if task == CART_POLE:
            reward[row], over[row] = _cart_pole(body[row], actions[row])
        else:
            reward[row], over[row] = _acrobot(body[row], actions[row])


class CartPole(ReferenceTask):
    """Cart-pole task: reward 1 a decision until the pole falls or the cart leaves the track; 500 decisions at most.

    Args:
        num_envs: Rows B.
        seed: Seed of the initial states.
        masked: Observe position and angle alone (partially observable: velocities must be inferred).
        first_row: Number of the first row among those of the run.
    """

    limit = 500

    def __init__(self, num_envs: int, seed: int = 0, *, masked: bool = True, first_row: int = 0) -> None:
        self.masked = masked
        scale = (_FAR, _STEEP) if masked else (_FAR, 1.0, _STEEP, 1.0)
        self.spaces = Spaces(len(scale), 1, ((0.0,), (1.0,)), scale)
        super().__init__(num_envs, seed, first_row=first_row)

    def _begin(self, episode: Tensor) -> State:
        return {"body": self._draws(episode, 4) * 0.1 - 0.05}

    def _observe(self, state: State) -> Tensor:
        return state["body"][:, ::2] if self.masked else state["body"]

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        x, speed, angle, turn = state["body"].unbind(1)
        force = torch.where(action[:, 0] > 0.5, _FORCE, -_FORCE).double()
        cos, sin = angle.cos(), angle.sin()
        pushed = (force + _MOMENT * turn.square() * sin) / _MASS
        turning = (_GRAVITY * sin - cos * pushed) / (_HALF_LENGTH * (4.0 / 3.0 - _POLE * cos.square() / _MASS))
        moving = pushed - _MOMENT * turning * cos / _MASS
        body = torch.stack(
            (x + _SECONDS * speed, speed + _SECONDS * moving, angle + _SECONDS * turn, turn + _SECONDS * turning), dim=1
        )
        fallen = (body[:, 0].abs() > _FAR) | (body[:, 2].abs() > _STEEP)
        return {"body": body}, torch.ones_like(x), fallen


class Acrobot(ReferenceTask):
    """Acrobot task: reward −1 a decision until the tip is above the line; 500 decisions at most.

    Args:
        num_envs: Rows B.
        seed: Seed of the initial states.
        first_row: Number of the first row among those of the run.
    """

    limit = 500
    spaces = Spaces(6, 1, ((0.0,), (1.0,), (2.0,)), (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi))

    def _begin(self, episode: Tensor) -> State:
        return {"body": self._draws(episode, 4) * 0.2 - 0.1}

    def _observe(self, state: State) -> Tensor:
        first, second, *speeds = state["body"].unbind(1)
        return torch.stack((first.cos(), first.sin(), second.cos(), second.sin(), *speeds), dim=1)

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        body = state["body"].clone()
        reward, over = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=bool)
        advance_rows(ACROBOT, action[:, 0].round().long().numpy(), body.numpy(), reward, over)
        return {"body": body}, torch.from_numpy(reward), torch.from_numpy(over)


_TORQUE, _SPEED, _PENDULUM_GRAVITY, _PENDULUM_SECONDS = 2.0, 8.0, 10.0, 0.05


class Pendulum(ReferenceTask):
    """Pendulum swing-up task: reward −(angle² + 0.1·speed² + 0.001·torque²) a decision, 200 decisions.

    Args:
        num_envs: Rows B.
        seed: Seed of the initial states.
        masked: Observe the angle's cosine and sine alone (partially observable: the speed must be inferred).
        first_row: Number of the first row among those of the run.
    """

    limit = 200

    def __init__(self, num_envs: int, seed: int = 0, *, masked: bool = True, first_row: int = 0) -> None:
        self.masked = masked
        self.spaces = Spaces(2 if masked else 3)
        super().__init__(num_envs, seed, first_row=first_row)

    def _begin(self, episode: Tensor) -> State:
        return {"body": (2 * self._draws(episode, 2) - 1) * torch.tensor([math.pi, 1.0], dtype=torch.float64)}

    def _observe(self, state: State) -> Tensor:
        angle, speed = state["body"].unbind(1)
        seen = (angle.cos(), angle.sin())
        return torch.stack(seen if self.masked else (*seen, speed), dim=1)

    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        angle, speed = state["body"].unbind(1)
        torque = (action[:, 0].double().clamp(-1, 1)) * _TORQUE
        upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = upright.square() + 0.1 * speed.square() + 0.001 * torque.square()
        pull = 3 * _PENDULUM_GRAVITY / 2 * angle.sin() + 3.0 * torque
        speed = (speed + pull * _PENDULUM_SECONDS).clamp(-_SPEED, _SPEED)
        body = torch.stack((angle + speed * _PENDULUM_SECONDS, speed), dim=1)
        return {"body": body}, -cost, torch.zeros_like(cost, dtype=torch.bool)


_KINDS: dict[type[ReferenceTask], int] = {CartPole: CART_POLE, Acrobot: ACROBOT}


class NativeStep:
    """Compiled replacement of a reference task's `step`; it changes the task's state in place.

    Trajectories equal those of `step` up to rounding of sine and cosine. The tensors of a batch are overwritten by the
    next step.

    Args:
        task: A task for which `supports` holds.
    """

    def __init__(self, task: ReferenceTask) -> None:
        self.task, self._kind = task, _KINDS[type(task)]
        self._key, self._first = stream_key(task.seed, Purpose.TASK), int(task.rows[0])
        rows, numbers = task.num_envs, 4 if isinstance(task, CartPole) else task.spaces.observation
        self._obs, self._final = torch.zeros((2, rows, numbers))
        self._reward, self._returns, self._speed = torch.zeros((3, rows))
        self._terminated, self._truncated = torch.zeros((2, rows), dtype=torch.bool)
        self._lengths = torch.zeros(rows, dtype=torch.int64)
        self._shown = slice(None, None, 2) if getattr(task, "masked", False) else slice(None)

    @staticmethod
    def supports(env: object) -> bool:
        """Return whether an environment is a task with a compiled step."""
        return type(env) in _KINDS

    def __call__(self, actions: Tensor) -> StepBatch:
        """Step the vectorised environment (all rows) once, actions (B, 1) float32; returns the batch of the step."""
        written = (
            self._obs, self._final, self._reward, self._terminated, self._truncated, self._returns, self._lengths
        )  # fmt: skip
        step_episodes(
            self._kind, self._key, self._first, self.task.limit, actions[:, 0].numpy(),
            *(x.numpy() for x in (*self.task.rows_state(), *written)),
        )  # fmt: skip
        info: StepInfo = {
            "reward_terms": {"reward": self._reward},
            "speed": self._speed,
            "episode_return": self._returns,
            "episode_length": self._lengths,
        }
        obs, final = self._obs[:, self._shown], self._final[:, self._shown]
        return StepBatch(obs, self._reward, self._terminated, self._truncated, final, info)
