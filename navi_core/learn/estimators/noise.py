"""Seeded random draws (action noise, shuffles, samples), exploration rates ε, and scheduled settings.

A row's noise depends only on its own number and decision count, so its trajectory is the same in a batch of one and in
a batch of thousands. No function keeps generator state: a resumed run draws the same numbers as an uninterrupted one.
"""

import hashlib
import math

import torch
from torch import Tensor

from navi_core.config import DQNConfig, TrainConfig
from navi_core.world.counter_random import Purpose, uniform


def action_noise(
    seed: int,
    rows: int,
    first_decision: int,
    decisions: int,
    *,
    axes: int = 4,
    first_row: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw the standard normal action noise of a whole rollout, counter-based.

    Args:
        seed: Seed of the run.
        rows: B.
        first_decision: Decisions each row had made before the rollout.
        decisions: T.
        axes: Number of action axes.
        first_row: Number of the first row among those of the run.
        device: Where the noise is needed.

    Returns:
        (T,B,axes) float32; entry (t, b) depends on (seed, b, first_decision + t) alone.
    """
    pairs = (axes + 1) // 2
    lane = torch.arange(2 * pairs, device=device)
    decision = torch.arange(first_decision, first_decision + decisions, device=device)[:, None, None]
    counter = (decision * (2 * pairs) + lane).expand(decisions, rows, 2 * pairs)
    row = torch.arange(first_row, first_row + rows, device=device)[None, :, None].expand_as(counter)
    # Box–Muller: two uniforms give two independent normals; 1 − u keeps the logarithm off zero.
    unit = uniform(seed, Purpose.ACTION, row, 0, counter).unflatten(-1, (pairs, 2))
    radius = torch.sqrt(-2.0 * torch.log1p(-unit[..., 0]))
    angle = (2.0 * math.pi) * unit[..., 1]
    normal = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return normal.flatten(-2)[..., :axes].float().contiguous()


def shuffled(seed: int, count: int, *keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw a seeded random permutation of `count` items on `device`.

    Args:
        seed: Seed of the run.
        count: Number of items.
        *keys: Further seeds, for example (update, epoch).
        device: Device of the permutation.

    Returns:
        (count,) int64 permutation; a pure function of the arguments.
    """
    return torch.randperm(count, generator=_generator("shuffle", seed, keys, device), device=device)


def uniforms(seed: int, count: int, *keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw seeded uniform numbers in [0, 1) on `device`.

    Args:
        seed: Seed of the run.
        count: Number of draws.
        *keys: Further seeds, for example (update, epoch).
        device: Device of the numbers.

    Returns:
        (count,) float64; a pure function of the arguments.
    """
    generator = _generator("uniform", seed, keys, device)
    return torch.rand(count, generator=generator, device=device, dtype=torch.float64)


def spread(seed: int, count: int, total: int, *keys: int) -> Tensor:
    """Draw a stratified sample of `count` of `total` indices: one from each of `count` equal intervals.

    Args:
        seed: Seed of the run.
        count: Sample size, at most `total`.
        total: Number of items.
        *keys: Further seeds, for example the update.

    Returns:
        (count,) int64 on the host, ascending, each at most once; a pure function of the arguments.
    """
    edges = torch.arange(count + 1) * total // count
    unit = torch.rand(count, generator=_generator("spread", seed, keys, "cpu"), dtype=torch.float64)
    return edges[:-1] + (unit * edges.diff()).long()


def normals(seed: int, shape: tuple[int, ...], *keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw seeded standard normal numbers on `device`.

    Args:
        seed: Seed of the run.
        shape: Shape of the result.
        *keys: Further seeds, for example (step, iteration).
        device: Device of the numbers.

    Returns:
        `shape` float32; a pure function of the arguments.
    """
    return torch.randn(shape, generator=_generator("normal", seed, keys, device), device=device)


def _generator(kind: str, seed: int, keys: tuple[int, ...], device: torch.device | str) -> torch.Generator:
    digest = hashlib.sha256("/".join(map(str, (kind, seed, *keys))).encode()).digest()
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator


def scheduled(config: TrainConfig, name: str, steps: int) -> float:
    """Return the value of a scheduled setting of the learner after `steps` decisions.

    Args:
        config: The run's configuration.
        name: One of the settings that its `schedules` may name.
        steps: Decisions so far, summed over rows.

    Raises:
        ConfigError: The schedule ends at the run's total_steps, which is not set.
    """
    start = float(getattr(config.rule, name))
    schedule = config.rule.schedules.get(name)
    return start if schedule is None else schedule.value(start, steps, config.total_steps)


def epsilons(config: DQNConfig, rows: int, steps: int) -> Tensor:
    """Return the exploration rate ε of every row (ε-greedy).

    Args:
        config: `per_actor` gives row i base^(1 + exponent·i/(B−1)) (Horgan et al. 2018), `shared` gives all the same.
        rows: B; a single row gets the ladder's middle.
        steps: Decisions so far, summed over rows; before epsilon_decay_steps ε is on the line from 1.

    Returns:
        (B,) float64.
    """
    if config.exploration == "shared":
        final = torch.full((rows,), config.epsilon_end, dtype=torch.float64)
    else:
        place = torch.arange(rows, dtype=torch.float64) / (rows - 1) if rows > 1 else torch.tensor([0.5]).double()
        final = config.epsilon_base ** (1.0 + config.epsilon_exponent * place)
    share = 1.0 if not config.epsilon_decay_steps else min(1.0, max(steps, 0) / config.epsilon_decay_steps)
    return 1.0 + share * (final - 1.0)
