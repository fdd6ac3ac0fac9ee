"""The engine on a CUDA device: here an emulated one, which finds what a real one would refuse."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.world import CapturedStep, Field, NavigationEnv, spherical_directions
from tests.world.emulated_cuda import DeviceTensor, emulated_cuda
from tests.world.host_sync import HostSyncs

FAULTS = {"depth_relative": 0.02, "dropout": 0.1, "delayed": True}


def actions(step: int, rows: int) -> torch.Tensor:
    return torch.rand(rows, 4, generator=torch.Generator().manual_seed(step)) * 2 - 1


def test_emulated_cuda_refuses_mixed_devices() -> None:
    with emulated_cuda():
        here, there = torch.arange(3.0), torch.zeros(3, device="cuda")
        assert there.device == torch.device("cuda:0")
        assert there.new_ones(2).is_cuda
        assert there.to("cuda") is there
        for wrong in (lambda: here + there, lambda: there[here.long()], lambda: torch.stack([here, there])):
            with pytest.raises(RuntimeError, match="tensors on cuda:0 and cpu"):
                wrong()
        with pytest.raises(TypeError, match=r"use Tensor\.cpu"):
            there.numpy()
        there[1] = 4
        there.view(3, 1)[2] = 5
        there += here.to("cuda")
        assert there.cpu().tolist() == there.tolist() == [0, 5, 7]
        assert not isinstance(there.cpu(), DeviceTensor)
        assert isinstance(torch.tensor([1.0], device="cuda:0"), DeviceTensor)


def test_field_results_stay_on_its_device(apartments) -> None:
    origins, rows = torch.tensor([[1.0, 1.2, 1.0], [2.0, 1.2, 2.0]]), torch.tensor([0, 1])
    directions = spherical_directions(16, 8)
    on_cpu = Field(apartments, tracer="cuda")
    hits, distance = on_cpu.cast_rays(origins, directions, rows), on_cpu.distance(origins, rows)
    with emulated_cuda():
        field = Field(apartments, device="cuda")
        assert field.device == torch.device("cuda:0")
        assert field.tracer == "cuda"
        there = field.cast_rays(origins.to("cuda"), directions.to("cuda"), rows.to("cuda"))
        again = field.cast_rays(origins.to("cuda"), directions.to("cuda"), rows.to("cuda"), out=there)
        assert again is there
        assert isinstance(there.depth, DeviceTensor)
        assert torch.equal(there.depth.cpu(), hits.depth)
        assert torch.equal(there.semantic.cpu(), hits.semantic)
        assert torch.equal(field.distance(origins.to("cuda"), rows.to("cuda")).cpu(), distance)
        near = field.within(origins.to("cuda"), rows.to("cuda"), 1.0)
        assert near.tolist() == on_cpu.within(origins, rows, 1.0).tolist()


@pytest.mark.parametrize("sensor", [pytest.param({}, marks=pytest.mark.slow), FAULTS])
def test_environment_on_the_device_matches_the_cpu(apartments, sensor: dict) -> None:
    config = EnvConfig(azimuth_bins=16, elevation_bins=6, max_steps=5, episodes_per_scene=2, sensor=sensor)
    here = NavigationEnv(Field(apartments, tracer="cuda"), 4, config, seed=1, tensor_only=True)
    expected = [here.step(actions(step, 4)) for step in range(8)]
    assert any(bool(batch.truncated.any()) for batch in expected)
    with emulated_cuda():
        env = NavigationEnv(Field(apartments, device="cuda"), 4, config, seed=1)
        flown = [actions(step, 4).to("cuda") for step in range(8)]
        with HostSyncs() as syncs:
            batches = [env.step(action) for action in flown]
        assert syncs.found == []
        for batch, wanted in zip(batches, expected, strict=True):
            for name in ("obs", "reward", "truncated", "final_obs"):
                found = getattr(batch, name)
                assert isinstance(found, DeviceTensor)
                assert torch.equal(found.cpu(), getattr(wanted, name)), name
            for name in ("position", "yaw", "speed", "collision", "void", "scene_index", "episode_return"):
                assert torch.equal(batch.info[name].cpu(), wanted.info[name]), name
        state = env.state_dict()
        assert all(isinstance(value, DeviceTensor) for value in state.values())
        env.reset()
        env.load_state_dict(state)
        assert torch.equal(env.step(flown[0]).obs.cpu(), here.step(actions(0, 4)).obs)


@pytest.mark.parametrize("sensor", [pytest.param({}, marks=pytest.mark.slow), FAULTS])
def test_captured_step_equals_plain_step(apartments, sensor: dict) -> None:
    config = EnvConfig(azimuth_bins=16, elevation_bins=6, max_steps=4, episodes_per_scene=2, sensor=sensor)
    with emulated_cuda():
        field = Field(apartments, device="cuda")
        env, plain = (NavigationEnv(field, 4, config, seed=3) for _ in range(2))
        step = CapturedStep(env)
        for name, value in plain.state_dict().items():
            assert torch.equal(env.state_dict()[name], value), f"recording changed {name}"
        ends = 0
        for number in range(12):
            action = actions(number, 4).to("cuda")
            # Now and then a step that is not replayed: both kinds share one state.
            found = env.step(action) if number % 5 == 3 else step(action)
            wanted = plain.step(action)
            ends += int(wanted.truncated.sum())
            for name in ("obs", "reward", "truncated", "final_obs"):
                assert torch.equal(getattr(found, name), getattr(wanted, name)), (number, name)
            for name in ("position", "scene_index", "episode_return", "action_fault"):
                assert torch.equal(found.info[name], wanted.info[name]), (number, name)
        assert ends >= 6
        with pytest.raises(ConfigError, match=r"actions of shape \(3, 4\), expected \(4, 4\)"):
            step(torch.zeros(3, 4, device="cuda"))


def test_the_emulated_graph_replays_the_device_alone() -> None:
    with emulated_cuda():
        x, graph, count = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph(), 0
        with torch.cuda.graph(graph):
            count += 1
            y = (x + 1) * count
            x += y.view(2, 1)[0]
        for _ in range(2):
            graph.replay()
        assert count == 1
        assert x.tolist() == [7, 7]
        assert y.tolist() == [4, 4]
        for wrong in (lambda: x.sum().item(), lambda: x.cpu(), lambda: x.copy_(torch.ones(2)), lambda: x[x > 0]):
            with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                wrong()


def test_a_step_is_captured_on_cuda_alone(apartments) -> None:
    config = EnvConfig(azimuth_bins=16, elevation_bins=4)
    with pytest.raises(ConfigError, match=r"captured on CUDA alone, the environment is on cpu; call env\.step"):
        CapturedStep(NavigationEnv(Field(apartments), 2, config))
