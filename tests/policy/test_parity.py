"""Acting step by step and scoring whole sequences are one function, resets inside chunks included."""

import numpy as np
import pytest
import torch

from navi_core.config import PolicyConfig
from navi_core.policy import build_policy

ROWS, STEPS, CHUNK = 6, 40, 8


def rollout(policy, generator):
    """Fly random observations with episode ends inside chunks; keep what a learner would store."""
    config = policy.config
    shape = (ROWS, STEPS, 3, config.azimuth_bins, config.elevation_bins)
    obs = torch.rand(shape, generator=generator)
    obs[:, :, 1] = torch.randint(0, 300, shape[:2] + shape[3:], generator=generator)
    aux = torch.randn(ROWS, STEPS, 3, generator=generator)
    reset = torch.rand(ROWS, STEPS, generator=generator) < 0.12
    reset[:, 0] = True
    reset[1, CHUNK] = True  # at the start of a chunk
    reset[2, 2 * CHUNK - 1] = True  # at its end
    reset[3, 3 * CHUNK + 1 : 3 * CHUNK + 4] = True  # several in a row
    noise = torch.randn(ROWS, STEPS, 4, generator=generator)
    state = policy.initial_state(ROWS)
    stored, steps = [], []
    with torch.no_grad():
        for t in range(STEPS):
            if t % CHUNK == 0:
                stored.append(tuple(part.clone() for part in state))
            out = policy.act(obs[:, t], aux[:, t], state, reset[:, t], noise[:, t])
            steps.append(out)
            state = out.state
    return obs, aux, reset, stored, steps


@pytest.mark.parametrize("encoder", ["rayvit", "spherical_cnn", "ring_cnn"])
@pytest.mark.parametrize("core", ["mamba2", "gru", "mingru", "mambapy"])
@pytest.mark.parametrize("layers", [1, 2])
def test_ratio_is_one_before_the_first_update(encoder, core, layers):
    config = PolicyConfig(encoder=encoder, core=core, core_layers=layers, azimuth_bins=32, elevation_bins=16)
    ratio, value, embedding = parity_gaps(config)
    assert ratio < 1e-4 and value < 1e-4 and embedding < 1e-4


def parity_gaps(config):
    """Return the largest |ratio − 1|, |ΔV| and relative difference of embeddings between acting and updating."""
    gaps = np.zeros(3)
    policy = build_policy(config, seed=3)
    # Larger heads than at the start, so that a wrong state would show in mean and value.
    with torch.no_grad():
        for parameter in policy.heads.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    obs, aux, reset, stored, steps = rollout(policy, torch.Generator().manual_seed(0))
    for c, state0 in enumerate(stored):
        part = slice(c * CHUNK, (c + 1) * CHUNK)
        actions = torch.stack([out.action for out in steps[part]], dim=1)
        seen = policy.evaluate(obs[:, part], aux[:, part], state0, reset[:, part], actions)
        log_prob = torch.stack([out.log_prob for out in steps[part]], dim=1)
        value = torch.stack([out.value for out in steps[part]], dim=1)
        embedding = torch.stack([out.embedding for out in steps[part]], dim=1)
        ratio = (torch.exp(seen.log_prob - log_prob) - 1).abs().max()
        apart = ((seen.embedding - embedding).abs() / (0.1 + embedding.abs())).max()
        worst = [x.detach().item() for x in (ratio, (seen.value - value).abs().max(), apart)]
        gaps = np.maximum(gaps, worst)
    return gaps


@pytest.mark.parametrize("distribution", ["gaussian", "beta", "discrete"])
@pytest.mark.parametrize("separate", [False, True])
def test_every_head_and_critic_has_ratio_one_before_the_first_update(distribution, separate):
    config = PolicyConfig(
        encoder="ring_cnn",
        core="mamba2",
        distribution=distribution,
        separate_value=separate,
        azimuth_bins=16,
        elevation_bins=4,
    )
    ratio, value, embedding = parity_gaps(config)
    assert ratio < 1e-4 and value < 1e-4 and embedding < 1e-4


@pytest.mark.parametrize("core", ["mamba2", "gru", "mingru", "mambapy"])
def test_reset_hides_earlier_observations(core):
    policy = build_policy(PolicyConfig(encoder="ring_cnn", core=core, azimuth_bins=16, elevation_bins=4))
    generator = torch.Generator().manual_seed(5)
    obs = torch.rand(2, 12, 3, 16, 4, generator=generator)
    aux = torch.randn(2, 12, 3, generator=generator)
    obs[1, 5:], aux[1, 5:] = obs[0, 5:], aux[0, 5:]
    aux[1, 5] = 9.0  # the previous episode's last auxiliary input must not leak either
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[:, 5] = True
    state = tuple(torch.randn(part.shape, generator=generator) for part in policy.initial_state(2))
    with torch.no_grad():
        seen = policy.evaluate(obs, aux, state, reset, torch.zeros(2, 12, 4))
    assert torch.equal(seen.value[0, 5:], seen.value[1, 5:])
    assert not torch.equal(seen.value[0, :5], seen.value[1, :5])


@pytest.mark.parametrize("core", ["mamba2", "gru", "mingru", "mambapy"])
def test_value_neither_resets_nor_advances_the_state(core):
    policy = build_policy(PolicyConfig(encoder="ring_cnn", core=core, azimuth_bins=16, elevation_bins=4))
    obs, aux = torch.rand(3, 3, 16, 4), torch.rand(3, 3)
    state = tuple(torch.randn(part.shape) for part in policy.initial_state(3))
    before = tuple(part.clone() for part in state)
    keep = torch.zeros(3, dtype=torch.bool)
    with torch.no_grad():
        value = policy.value(obs, aux, state)
        acted = policy.act(obs, aux, state, keep, None)
    assert all(torch.equal(a, b) for a, b in zip(state, before))
    torch.testing.assert_close(value, acted.value)
