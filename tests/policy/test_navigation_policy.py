"""Parameter counts, Gaussian heads, auxiliary input, seeding and bad input of the policy."""

import math
import threading

import pytest
import torch

import navi_core.policy
from navi_core.config import PolicyConfig, parse_config
from navi_core.config.policy import OCCUPANCY_INPUTS
from navi_core.errors import ConfigError
from navi_core.policy import build_core, build_encoder, build_policy, parameter_counts, policy_macs

SMALL = dict(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=4)


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_public_names_are_locked():
    assert navi_core.policy.__all__ == [
        "RND",
        "ActOutput",
        "EpisodicMemory",
        "EvaluateOutput",
        "NavigationPolicy",
        "ObservationScaling",
        "RewardShaper",
        "ShapedReward",
        "TemporalCore",
        "build_core",
        "build_encoder",
        "build_policy",
        "count_macs",
        "custom_networks",
        "parameter_counts",
        "policy_macs",
        "register_core",
        "register_encoder",
        "ssd_scan",
    ]
    assert all(hasattr(navi_core.policy, name) for name in navi_core.policy.__all__)


@pytest.mark.parametrize("bins", [(64, 16), (128, 24), (256, 48)])
def test_rayvit_has_the_specified_parameters_at_every_resolution(bins):
    assert count(build_encoder("rayvit", *bins)) == 306_560


def test_parameter_counts_are_exact():
    assert count(build_core("mamba2")) == 117_388
    assert count(build_core("gru")) == 99_072
    assert count(build_core("mambapy")) == 153_344
    assert count(build_encoder("spherical_cnn", 256, 48)) == 226_752
    assert count(build_encoder("spherical_cnn", 256, 48, separable_refinement=True)) == 96_960
    policy = build_policy(PolicyConfig())
    assert parameter_counts(policy) == {
        "encoder": 306_560,
        "aux": 512,
        "core": 117_388,
        "heads": 16_841,
        "total": 441_301,
    }
    quick = build_policy(PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=64, elevation_bins=16))
    assert parameter_counts(quick)["encoder"] == 257_568
    assert parameter_counts(build_policy(PolicyConfig(aux="off")))["aux"] == 0


def test_counted_operations_equal_the_layers_by_hand():
    quick = policy_macs(build_policy(PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=64, elevation_bins=16)))
    ring = 32 * 48 * (3 * 16 * 5) + 16 * 112 * (48 * 3) + 16 * 112 * 128
    assert quick["encoder"] == ring
    assert quick["core"] == 2 * 128 * 384
    assert quick["heads"] == 2 * 128 * 64 + 64 * 5
    assert quick["aux"] == 3 * 128
    assert quick["total"] == sum(value for name, value in quick.items() if name != "total")
    full = policy_macs(build_policy(PolicyConfig(encoder="spherical_cnn", aux="off")))
    assert full["encoder"] == 68_952_064 and full["aux"] == 0


def test_occupancy_memory_is_counted_separately():
    config = PolicyConfig(**SMALL, place_memory=True)
    policy = build_policy(config)
    sizes, macs = parameter_counts(policy), policy_macs(policy)
    reported, width = OCCUPANCY_INPUTS, config.width
    assert sizes["places"] == (reported + 1) * 96 + (96 + 1) * width and macs["places"] == reported * 96 + 96 * width
    assert sizes["aux"] == 4 * width and macs["aux"] == 3 * width
    assert sizes["total"] == count(policy)
    for counts in (sizes, macs):
        assert counts["total"] == sum(value for name, value in counts.items() if name != "total")
    both = build_policy(PolicyConfig(**SMALL, place_memory=True, separate_value=True))
    assert parameter_counts(both)["total"] == count(both)
    assert policy_macs(both)["critic_trunk"] == sum(macs[part] for part in ("encoder", "aux", "places", "core"))


def test_automatic_patches_grow_with_the_resolution():
    for bins, edge in (((64, 16), 8), ((256, 48), 8), ((384, 72), 12), ((512, 96), 16), ((768, 144), 24)):
        config = PolicyConfig(patch="auto", azimuth_bins=bins[0], elevation_bins=bins[1])
        assert config.patch_edge == edge
        assert count(build_policy(config).encoder) == 306_560 + 3 * 128 * (edge**2 - 64)
    with pytest.raises(ConfigError, match="patch auto finds no edge for 1000x30"):
        parse_config(PolicyConfig, {"patch": "auto", "azimuth_bins": 1000, "elevation_bins": 30})


@pytest.mark.parametrize("name", ["mamba-ssm", "mamba_ssm"])
def test_fused_core_error_names_it(name):
    with pytest.raises(ConfigError, match=f"temporal core {name} is for benchmarks only .navi bench core.; .*mamba2"):
        parse_config(PolicyConfig, {"core": name})


def test_neither_dropout_nor_batch_norm_is_used():
    for encoder in ("rayvit", "spherical_cnn", "ring_cnn"):
        for module in build_policy(PolicyConfig(encoder=encoder)).modules():
            assert not isinstance(module, (torch.nn.Dropout, torch.nn.modules.batchnorm._BatchNorm))


def test_entropy_and_log_prob_of_a_new_policy():
    policy = build_policy(PolicyConfig(**SMALL))
    obs, aux, reset = torch.rand(2, 3, 16, 4), torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)
    noise = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, -2.0, 0.5, 0.0]])
    out = policy.act(obs, aux, policy.initial_state(2), reset, noise)
    seen = policy.evaluate(obs[:, None], aux[:, None], policy.initial_state(2), reset[:, None], out.action[:, None])
    assert seen.entropy[0, 0].item() == pytest.approx(3.675754, abs=1e-6)
    # log N at the mean: −Σ(log σ + ½ log 2π) with log σ = −.5; a draw of norm² 5.25 costs half of it.
    top = 4 * (0.5 - 0.5 * math.log(2 * math.pi))
    torch.testing.assert_close(out.log_prob.detach(), torch.tensor([top, top - 5.25 / 2]), atol=1e-5, rtol=0)


def test_no_noise_flies_the_mean_inside_the_action_range():
    policy = build_policy(PolicyConfig(**SMALL))
    obs, aux, reset = torch.rand(3, 3, 16, 4), torch.zeros(3, 3), torch.ones(3, dtype=torch.bool)
    state = policy.initial_state(3)
    mean = policy.act(obs, aux, state, reset, None).action
    noisy = policy.act(obs, aux, state, reset, torch.ones(3, 4)).action
    assert mean.abs().max() < 1
    torch.testing.assert_close(noisy - mean, torch.full((3, 4), math.exp(-0.5)))


def test_the_privileged_reward_entry_is_zero_unless_asked_for():
    obs, keep = torch.rand(1, 3, 16, 4), torch.zeros(1, dtype=torch.bool)
    reward, similarity = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])

    def value(mode, aux, reset=keep):
        policy = build_policy(PolicyConfig(**SMALL, aux=mode))
        return policy.act(obs, aux, policy.initial_state(1), reset, None).value.item()

    zero = torch.zeros(1, 3)
    assert value("no_reward", reward) == value("no_reward", zero)
    assert value("no_reward", similarity) != value("no_reward", zero)
    assert value("full", reward) != value("full", zero)
    assert value("off", reward + similarity) == value("off", zero)
    assert value("full", reward, reset=~keep) == value("full", zero, reset=~keep)


def test_stop_value_gradient_keeps_the_critic_out_of_the_trunk():
    for stop in (False, True):
        policy = build_policy(PolicyConfig(**SMALL, stop_value_gradient=stop))
        policy.value(torch.rand(2, 3, 16, 4), torch.zeros(2, 3), policy.initial_state(2)).sum().backward()
        trunk = [p.grad for p in policy.core.parameters()]
        assert all(g is None for g in trunk) if stop else all(g is not None for g in trunk)


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = build_policy(PolicyConfig(**SMALL), seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    second = build_policy(PolicyConfig(**SMALL), seed=5).state_dict()
    other = build_policy(PolicyConfig(**SMALL), seed=6).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


def test_concurrent_builds_get_the_weights_of_their_seeds():
    config = PolicyConfig(**SMALL)
    alone = [build_policy(config, seed=seed).state_dict() for seed in range(4)]
    start, built = threading.Barrier(4), {}

    def build(seed):
        start.wait()
        built[seed] = [build_policy(config, seed=seed).state_dict() for _ in range(20)]

    threads = [threading.Thread(target=build, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, expected in enumerate(alone):
        assert all(torch.equal(state[name], expected[name]) for state in built[seed] for name in expected)


def test_heads_start_orthogonal():
    heads = build_policy(PolicyConfig(**SMALL)).heads
    hidden = math.sqrt(2)
    layers = ((heads.actor[0], hidden), (heads.critic[0], hidden), (heads.actor[2], 0.01), (heads.critic[2], 1.0))
    for layer, gain in layers:
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), atol=1e-5 * gain**2, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_encoder("resnet", 64, 16), "rayvit, spherical_cnn, ring_cnn"),
        (lambda: build_encoder("rayvit", 60, 16), "azimuth_bins 60 is not a multiple of the patch 8"),
        (lambda: build_encoder("spherical_cnn", 60, 16), "azimuth_bins 60 is not a multiple of 8"),
        (lambda: build_encoder("ring_cnn", 60, 16), "azimuth_bins 60 is not a multiple of 8"),
        (lambda: build_encoder("ring_cnn", 64, 16, patch=8), "patch"),
        (lambda: build_encoder("ring_cnn", 64, 16, depth_scale=0.0), "depth_scale 0.0 must be above 0"),
        (lambda: build_core("lstm"), "mamba2, gru, mingru, mambapy"),
        (lambda: build_core("gru", layers=0), "core layers 0"),
        (lambda: build_core("mamba2", width=24), "inner width 48"),
        (lambda: build_encoder("rayvit", 64, 16)(torch.zeros(2, 3, 16, 64)), r"is not \(B, 3, 64, 16\)"),
        (
            lambda: (p := build_policy(PolicyConfig(**SMALL))).value(
                torch.zeros(2, 3, 16, 4), torch.zeros(2, 4), p.initial_state(2)
            ),
            r"aux shape \(2, 4\) must be \(2, 3\)",
        ),
    ],
)
def test_bad_input_error_names_it(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
