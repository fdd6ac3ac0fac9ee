"""Observation scaling, azimuth geometry and determinism of the encoders."""

import math

import pytest
import torch
from torch.nn import functional as F

from navi_core.policy.encoders import build_encoder, solid_angle_bias, spherical_positions
from navi_core.policy.encoders.cnn import CircularAzimuthConv2d
from navi_core.policy.encoders.rayvit import Layer, attend
from navi_core.policy.observation import ObservationScaling


def test_scaling_is_affine_in_depth_and_clamped_semantic_id():
    obs = torch.zeros(1, 3, 8, 4)
    obs[0, :, 2, 1] = torch.tensor([0.35, 51.0, 1.0])
    obs[0, 1, 3, 3] = 40_000.0
    kept = obs.clone()
    scaled = ObservationScaling(8, 4)(obs)
    assert torch.equal(obs, kept)
    torch.testing.assert_close(scaled[0, :, 2, 1], torch.tensor([1.5, 0.2, 1.0]))
    torch.testing.assert_close(scaled[0, :, 3, 3], torch.tensor([-2.0, 1.0, 0.0]))
    other = ObservationScaling(8, 4, shift=0.0, scale=1.0)(obs)
    torch.testing.assert_close(other[0, 0], obs[0, 0])


def test_ring_layout_wraps_the_same_values():
    scaling = ObservationScaling(8, 4)
    obs = torch.rand(2, 3, 8, 4)
    plain = scaling(obs).permute(0, 2, 1, 3).flatten(2)
    ring = scaling.ring(obs, 2, 1)
    assert torch.equal(ring, torch.cat((plain[:, -2:], plain, plain[:, :1]), dim=1))


@pytest.mark.parametrize("azimuth", [8, 16, 64, 72, 128, 256])
def test_ring_cnn_turns_with_the_drone(azimuth):
    encoder = build_encoder("ring_cnn", azimuth, 8)
    obs = torch.rand(2, 3, azimuth, 8)
    with torch.no_grad():
        features = encoder.features(obs)
        stride = azimuth // features.shape[1]
        turned = encoder.features(obs.roll(stride, dims=2))
        embeddings = encoder(obs), encoder(obs.roll(stride, dims=2))
    torch.testing.assert_close(turned, features.roll(1, dims=1), atol=1e-5, rtol=1e-4)
    # But the embedding knows where things are: it is not invariant.
    assert (embeddings[0] - embeddings[1]).abs().max() > 0.05


def test_ring_convolution_equals_circular_padding():
    encoder = build_encoder("ring_cnn", 64, 16)
    obs = torch.rand(2, 3, 64, 16)
    x = encoder.scaling(obs).permute(0, 1, 3, 2).flatten(1, 2)
    for stage in (encoder.stem, *encoder.stages):
        weight = stage.conv.weight[:, :, 0]
        half = weight.shape[-1] // 2
        padded = F.pad(x, (half, half), mode="circular")
        x = F.relu(F.conv1d(padded, weight, stage.conv.bias, stride=2))
    torch.testing.assert_close(encoder.features(obs).transpose(1, 2), x, atol=1e-5, rtol=1e-4)


def test_position_codes_wrap_around_azimuth():
    azimuth, elevation, patch = 64, 16, 8
    codes = spherical_positions(azimuth, elevation, patch, 128).view(8, 2, 128)
    gaps = (codes - codes.roll(1, dims=0)).norm(dim=-1)
    torch.testing.assert_close(gaps, gaps[:1].expand_as(gaps), atol=1e-4, rtol=0)
    assert gaps.min() > 1
    flat = codes.flatten(0, 1)
    apart = torch.cdist(flat, flat) + 10 * torch.eye(len(flat))
    assert apart.min() > 1


def test_position_codes_use_patch_centres():
    codes = spherical_positions(64, 16, 8, 128).view(8, 2, 128)
    azimuth, polar = (8 + 3.5) * 2 * math.pi / 64, (8 + 3.5) * math.pi / 15
    assert codes[1, 1, 0].item() == pytest.approx(math.cos(azimuth) * math.sin(polar), abs=1e-6)
    assert codes[1, 1, 32].item() == pytest.approx(math.sin(azimuth) * math.sin(polar), abs=1e-6)
    assert codes[1, 1, 64].item() == pytest.approx(math.cos(polar), abs=1e-6)


@pytest.mark.parametrize("biased", [False, True])
def test_first_token_shortcut_equals_the_full_layer(biased):
    layer, tokens = Layer(128, 4, 256), torch.randn(3, 9, 128)
    bias = torch.randn(9) if biased else None
    torch.testing.assert_close(layer.first_token(tokens, bias), layer(tokens, bias)[:, 0], atol=1e-5, rtol=1e-5)


def test_attention_equals_the_softmax_written_out():
    layer, tokens, bias = Layer(16, 2, 32), torch.randn(2, 5, 16), torch.randn(5)
    q, k, v = layer.qkv(layer.norm1(tokens)).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(-1, -2) / math.sqrt(8) + bias).softmax(-1)
    x = tokens + layer.out((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(tokens, bias), x + layer.mlp(layer.norm2(x)), atol=1e-5, rtol=1e-5)


def test_patches_equal_convolution_inputs():
    encoder, obs = build_encoder("rayvit", 32, 16), torch.rand(2, 3, 32, 16)
    scaled = encoder.scaling(obs)
    patches = encoder.scaling.patches(obs, 8)
    assert torch.equal(patches[:, 0], torch.zeros(2, 192))
    assert torch.equal(patches[:, 1:], F.unfold(scaled, 8, stride=8).transpose(1, 2))


@pytest.mark.parametrize("area", [False, True])
@pytest.mark.parametrize("turn", [1, 5])
def test_rotation_by_patches_changes_only_position_codes(area, turn):
    encoder, obs = build_encoder("rayvit", 64, 16, area_attention=area), torch.rand(2, 3, 64, 16)
    with torch.no_grad():
        embedding = encoder(obs)
        turned = encoder(obs.roll(8 * turn, dims=2))
        codes = encoder.position.view(8, 2, 128)
        encoder.position.copy_(codes.roll(turn, dims=0).flatten(0, 1))
        with_turned_codes = encoder(obs.roll(8 * turn, dims=2))
    torch.testing.assert_close(with_turned_codes, embedding, atol=1e-5, rtol=1e-5)
    assert (turned - embedding).abs().max() > 1e-2


def test_patch_areas_are_those_of_the_sphere():
    bias = solid_angle_bias(64, 16, 8)
    assert bias[0] == 0 and len(bias) == 1 + 8 * 2
    # Patch 0 reaches from the zenith half a bin beyond its last centre; its area is 1 − cos of that angle.
    upper = 1 - math.cos(7.5 * math.pi / 15)
    assert bias[1].item() == pytest.approx(math.log(upper / 1.0), abs=1e-6)
    finer = solid_angle_bias(256, 48, 8)[1:].view(32, 6).exp()
    torch.testing.assert_close(finer.mean(), torch.tensor(1.0))
    torch.testing.assert_close(finer[0], finer[0].flip(0))
    assert finer[0, 0] < finer[0, 1] < finer[0, 2]


def test_area_attention_is_an_average_over_the_sphere():
    layer, tokens = Layer(16, 2, 32), torch.randn(1, 7, 16)
    with torch.no_grad():
        layer.qkv.weight[:32] = 0  # equal scores: what is left is the bias
        layer.qkv.bias[:32] = 0
        bias = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.5, 0.0, 0.1]).log()[None].clamp_min(-30)[0]
        share = bias.softmax(0)
        values = F.linear(layer.norm1(tokens), layer.qkv.weight[32:], layer.qkv.bias[32:])
        x = tokens[:, 0] + layer.out((share[:, None] * values[0]).sum(0))
        wanted = x + layer.mlp(layer.norm2(x))
    torch.testing.assert_close(layer.first_token(tokens, bias), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bins", [(64, 16), (72, 17)])
@pytest.mark.parametrize("separable", [False, True])
def test_spherical_cnn_is_equivariant_and_its_mean_invariant(bins, separable):
    encoder, obs = build_encoder("spherical_cnn", *bins, separable_refinement=separable), torch.rand(2, 3, *bins)
    with torch.no_grad():
        features, turned = encoder.features(obs), encoder.features(obs.roll(8, dims=2))
        embeddings = encoder(obs), encoder(obs.roll(8, dims=2))
    assert features.shape == (2, 128, bins[0] // 8, -(-bins[1] // 4))
    torch.testing.assert_close(turned, features.roll(1, dims=2), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(*embeddings, atol=1e-5, rtol=1e-4)


def test_spherical_convolution_wraps_azimuth_and_pads_elevation_with_zeros():
    for stride in ((1, 1), (2, 1), (2, 2)):
        convolution, x = CircularAzimuthConv2d(4, 6, stride=stride), torch.randn(2, 4, 16, 7)
        padded = F.pad(torch.cat((x[:, :, -1:], x, x[:, :, :1]), dim=2), (1, 1))
        wanted = F.conv2d(padded, convolution.weight, convolution.bias, stride=stride)
        torch.testing.assert_close(convolution(x), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["rayvit", "spherical_cnn", "ring_cnn"])
def test_encoders_are_deterministic_and_keep_rows_apart(name):
    encoder = build_encoder(name, 64, 16)
    obs = torch.rand(5, 3, 64, 16)
    with torch.no_grad():
        embedding = encoder(obs)
        assert embedding.shape == (5, 128)
        assert torch.equal(embedding, encoder(obs))
        changed = obs.clone()
        changed[3] = torch.rand(3, 64, 16)
        again = encoder(changed)
    rows = [0, 1, 2, 4]
    assert torch.equal(embedding[rows], again[rows])
    assert not torch.equal(embedding[3], again[3])


@pytest.mark.parametrize("name", ["rayvit", "spherical_cnn", "ring_cnn"])
def test_every_encoder_parameter_learns(name):
    encoder = build_encoder(name, 32, 8)
    encoder(torch.rand(4, 3, 32, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_known_channel_marks_measured_rays_in_every_layout():
    obs = torch.rand(2, 3, 16, 8)
    obs[:, 2] = 1.0
    obs[0, :, 3, 2] = 0.0  # unknown: depth 0 and not valid
    obs[0, :, 5, 1] = torch.tensor([0.4, 0.0, 0.0])  # measured, nothing met
    obs[0, :, 6, 1] = torch.tensor([0.0, 1.0, 1.0])  # a surface at depth 0
    scaling = ObservationScaling(16, 8, known=True)
    plain = scaling(obs)
    assert plain.shape == (2, 4, 16, 8) and torch.equal(plain[:, :3], ObservationScaling(16, 8)(obs))
    assert (plain[0, 3] == 0).nonzero().tolist() == [[3, 2]] and bool(plain[1, 3].all())
    ring = scaling.ring(obs, 1, 1).view(2, 18, 4, 8).transpose(1, 2)
    assert torch.equal(ring, torch.cat((plain[:, :, -1:], plain, plain[:, :, :1]), dim=2))
    tiles = plain.view(2, 4, 4, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    assert torch.equal(scaling.patches(obs, 4)[:, 1:], tiles)


@pytest.mark.parametrize("biased", [False, True])
def test_half_attention_and_its_gradients_are_those_of_float32(biased):
    bias = torch.linspace(-1, 1, 6) if biased else None
    whole = torch.randn(3, 2, 4, 6, 8)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = whole.to(dtype, copy=True).requires_grad_()
        out = attend(*inputs, bias)
        assert out.dtype == dtype and out.shape == whole.shape[1:]
        out.float().square().sum().backward()
        found.append((out.float(), inputs.grad.float()))
    for exact, half in zip(*found, strict=True):
        assert float((half - exact).abs().max()) < 0.03 * float(exact.abs().max())
