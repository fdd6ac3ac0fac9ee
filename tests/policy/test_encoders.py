"""Observation scaling, azimuth geometry and determinism of the encoders."""

import math

import pytest
import torch
from torch.nn import functional as F

from navi_core.policy.encoders import build_encoder, spherical_positions
from navi_core.policy.encoders.rayvit import Layer
from navi_core.policy.observation import ObservationScaling


def test_scaling_is_the_affine_of_depth_and_the_clamped_semantic_id():
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


def test_ring_layout_holds_the_same_numbers_wrapped():
    scaling = ObservationScaling(8, 4)
    obs = torch.rand(2, 3, 8, 4)
    plain = scaling(obs).permute(0, 2, 1, 3).flatten(2)
    ring = scaling.ring(obs, 2, 1)
    assert torch.equal(ring, torch.cat((plain[:, -2:], plain, plain[:, :1]), dim=1))


@pytest.mark.parametrize("azimuth", [8, 16, 64, 72, 128, 256])
def test_ring_cnn_turns_with_the_drone(azimuth):
    encoder = build_encoder("ring_cnn", azimuth, 8)
    obs = torch.rand(2, 3, azimuth, 8)
    stride = azimuth // encoder.ring_bins
    with torch.no_grad():
        features = encoder.features(obs)
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


def test_position_codes_have_no_seam():
    azimuth, elevation, patch = 64, 16, 8
    codes = spherical_positions(azimuth, elevation, patch, 128).view(8, 2, 128)
    gaps = (codes - codes.roll(1, dims=0)).norm(dim=-1)
    torch.testing.assert_close(gaps, gaps[:1].expand_as(gaps), atol=1e-4, rtol=0)
    assert gaps.min() > 1
    flat = codes.flatten(0, 1)
    apart = torch.cdist(flat, flat) + 10 * torch.eye(len(flat))
    assert apart.min() > 1


def test_position_codes_are_those_of_the_patch_centres():
    codes = spherical_positions(64, 16, 8, 128).view(8, 2, 128)
    azimuth, polar = (8 + 3.5) * 2 * math.pi / 64, (8 + 3.5) * math.pi / 15
    assert codes[1, 1, 0].item() == pytest.approx(math.cos(azimuth) * math.sin(polar), abs=1e-6)
    assert codes[1, 1, 32].item() == pytest.approx(math.sin(azimuth) * math.sin(polar), abs=1e-6)
    assert codes[1, 1, 64].item() == pytest.approx(math.cos(polar), abs=1e-6)


def test_one_query_in_the_last_layer_equals_all_queries():
    layer = Layer(128, 4, 256)
    tokens = torch.randn(3, 9, 128)
    torch.testing.assert_close(layer(tokens, queries=1), layer(tokens)[:, :1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["rayvit", "ring_cnn"])
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


@pytest.mark.parametrize("name", ["rayvit", "ring_cnn"])
def test_every_encoder_parameter_learns(name):
    encoder = build_encoder(name, 32, 8)
    encoder(torch.rand(4, 3, 32, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
