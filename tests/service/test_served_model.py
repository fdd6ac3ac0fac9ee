"""Served models act as in training in every runtime, and a moved alias is followed."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import ActorConfig, ContinuousTrainingConfig, ShaperConfig
from navi_core.errors import CheckpointError, ConfigError
from navi_core.models import Registry, export_checkpoint
from navi_core.policy import RewardShaper
from navi_core.record import navi_home
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.observations import distance_matrix
from navi_core.service.policies.served_model import AliasFollower, ServedModel, load_model
from navi_core.service.policies.sessions import SessionTable
from navi_core.service.wire import DistanceMatrix, RobotPose
from tests.models.conftest import CONFIG, make_checkpoint  # noqa: F401 - a fixture
from tests.service.conftest import tiny_model, until
from tests.world.emulated_cuda import emulated_cuda

SHAPER = ShaperConfig(memory_exclusion=2, memory_capacity=20 * CONFIG.actors)
QUIET = ShaperConfig(rnd_start=0.0, rnd_end=0.0, loop_coefficient=0.0)


needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="ONNX is not installed (pip install -e '.[export]')",
)


@pytest.fixture
def trained(make_checkpoint):  # noqa: F811
    """A checkpoint with curiosity that has seen something, and with loop memory."""
    shaper = RewardShaper(SHAPER, 2, CONFIG.policy.width)
    for _ in range(5):
        shaper.shape(torch.randn(2, CONFIG.policy.width), torch.zeros(2), torch.zeros(2), torch.zeros(2).bool(), 0)
    config = CONFIG.model_copy(update={"shaper": SHAPER})
    return make_checkpoint("t.pt", config=config, extra={"collector": {"shaper": shaper.state_dict()}})


def matrix(drone: int) -> DistanceMatrix:
    blank = np.zeros((1, 16, 4), np.float32)
    pose = RobotPose(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    overhead = np.zeros((0, 0, 3), np.uint8)
    ids, valid = blank.astype(np.int32), blank > 0
    return DistanceMatrix(1, np.array([drone], np.int32), (16, 4), blank, blank, ids, valid, overhead, pose, 0, 0.0)


def flown(model: ServedModel, decisions: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions (N, 1, 4) and auxiliary inputs (N, 1, 3) of a drone that sees the same in every flight."""
    table = SessionTable(model.runner, 4, model.shaper, model.curiosity)
    group = [table.open(matrix(3), 0.0)]
    generator = torch.Generator().manual_seed(1)
    actions, inputs = [], []
    for _ in range(decisions):
        obs = torch.rand(1, 3, 16, 4, generator=generator)
        state, aux, reset = table.gather(group, obs)
        decision = model.runner.decide(obs, aux, state, reset, None)
        table.scatter(group, reset, decision.state, decision.latent)
        actions.append(decision.action)
        inputs.append(aux)
    return torch.stack(actions), torch.stack(inputs)


def assert_flies_the_same(trained: Path, runtime: str) -> None:
    config = {"max_sessions": 1, "follow": None}
    eager = load_model(str(trained), ActorConfig(**config))
    program = load_model(str(trained), ActorConfig(runtime=runtime, **config))
    (action, aux), (other, other_aux) = flown(eager), flown(program)
    assert (aux[4:, :, 1:] != 0).all() and (aux[..., 0] == 0).all()
    torch.testing.assert_close(other_aux, aux, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(other, action, atol=1e-4, rtol=1e-3)


@needs_onnx
def test_onnx_program_of_a_checkpoint_gets_its_auxiliary_input(trained) -> None:
    assert_flies_the_same(trained, "onnx")
    # The same file alone would fly with another input than it learned with.
    (file,) = (navi_home() / "programs").glob("*.onnx")
    with pytest.raises(ConfigError, match=r"curiosity and loop memory .* navi serve CHECKPOINT.pt --runtime onnx"):
        load_model(str(file), ActorConfig(follow=None))


@pytest.mark.slow
def test_aoti_package_of_a_checkpoint_gets_its_auxiliary_input(trained) -> None:
    assert_flies_the_same(trained, "aoti")


def test_trained_curiosity_is_used_in_serving(trained) -> None:
    model = load_model(str(trained), ActorConfig(follow=None))
    assert model.shaper is not None and model.shaper.memory_capacity == 20
    untrained = ServedModel(model.name, model.runner, model.checkpoint, model.path)
    table = SessionTable(untrained.runner, 4, untrained.shaper, {})
    session = table.open(matrix(1), 0.0)
    assert session is not None and session.shaper is not None and session.shaper.rnd is not None
    drawn = [parameter.clone() for parameter in session.shaper.rnd.state_dict().values()]
    table.renew(model.runner, model.shaper, model.curiosity)
    taken = session.shaper.rnd.state_dict().values()
    assert any(not torch.equal(a, b) for a, b in zip(drawn, taken))


@needs_onnx
def test_program_without_auxiliary_input_is_served_alone(make_checkpoint, tmp_path) -> None:  # noqa: F811
    plain = make_checkpoint("q.pt", config=CONFIG.model_copy(update={"shaper": QUIET}))
    export_checkpoint(plain, tmp_path / "q.onnx", kind="onnx")
    model = load_model(str(tmp_path / "q.onnx"), ActorConfig(follow=None))
    assert model.name == "q" and model.shaper is None and flown(model)[0].isfinite().all()
    with pytest.raises(ConfigError, match="--runtime eager"):
        load_model(str(tmp_path / "q.onnx"), ActorConfig(follow=None, sample=True))


def test_a_policy_without_a_map_is_not_served_where_flights_end(make_checkpoint) -> None:  # noqa: F811
    """An alias follower loads by the same function, so such a champion does not take over."""
    with pytest.raises(ConfigError, match="has no occupancy map"):
        load_model(str(make_checkpoint()), ActorConfig(done_after=3))


def test_programs_of_former_champions_are_removed(make_checkpoint, monkeypatch) -> None:  # noqa: F811
    module = "navi_core.service.policies.served_model"
    monkeypatch.setattr(f"{module}._MAX_PROGRAMS", 4)
    monkeypatch.setattr(f"{module}.ProgramRunner", lambda programs, name: programs)
    exported, loaded = [], []

    def export(source, file, **_):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        os.utime(file)
        exported.append(file)

    def load(path, threads):
        loaded.append(path.stat().st_mtime)
        return path

    monkeypatch.setattr(f"{module}.load_exported", load)

    monkeypatch.setattr(f"{module}.export_checkpoint", export)
    models = [make_checkpoint(f"{seed}.pt", seed=seed) for seed in range(3)]
    moments = iter(range(1, 100))
    utime = os.utime
    monkeypatch.setattr(os, "utime", lambda file: utime(file, (next(moments),) * 2))
    for served in (0, 1, 0, 2, 0):
        if served == 2:
            # One that cannot be removed keeps no other.
            (exported[0].parent / "another-users-latent.onnx").mkdir()
            utime(exported[0].parent / "another-users-latent.onnx", (8.5, 8.5))
        programs = load_model(str(models[served]), ActorConfig(runtime="onnx", max_sessions=8)).runner
        assert all(file.exists() for file in programs.values())
    # The second one was served longest ago, and made way for the third.
    assert len(exported) == 6 and [file.exists() for file in exported] == [True, True, False, False, True, True]
    # What is loaded counts as used before: another service that sweeps meanwhile leaves it.
    assert len(loaded) == 10 and loaded == sorted(set(loaded))
    # Another torch, or a home on another machine: an older compiled program may crash the process.
    monkeypatch.setattr(f"{module}.cpu_flags", lambda: "flags: sse2")
    load_model(str(models[0]), ActorConfig(runtime="onnx", max_sessions=8))
    assert len(exported) == 8
    monkeypatch.setattr(f"{module}.torch.__version__", "99.0")
    load_model(str(models[0]), ActorConfig(runtime="onnx", max_sessions=8))
    assert len(exported) == 10


def test_model_runs_on_the_requested_device(make_checkpoint) -> None:  # noqa: F811
    plain = make_checkpoint("d.pt", config=CONFIG.model_copy(update={"shaper": QUIET}))
    there = ActorConfig(follow=None, device="cuda")
    here = load_model(str(plain), ActorConfig(follow=None)).runner
    policy = here.config
    rng = torch.Generator().manual_seed(0)
    obs = torch.rand(3, 3, policy.azimuth_bins, policy.elevation_bins, generator=rng)
    aux, begins = torch.zeros(3, policy.aux_inputs), torch.zeros(3).bool()
    noise = torch.randn(3, 4, generator=rng)
    wanted = here.decide(obs, aux, here.initial_state(3), begins, noise)
    with emulated_cuda():
        away = load_model(str(plain), there)
        assert next(away.runner.policy.parameters()).is_cuda
        decision = away.runner.decide(obs, aux, away.runner.initial_state(3), begins, noise)
        assert not any(part.is_cuda for part in (decision.action, decision.value, decision.latent, decision.log_prob))
        table, seen = SessionTable(away.runner, 4, None), []
        for i in range(3):
            matrix = distance_matrix(obs[i], env_id=i, episode_id=1, step_id=0, position=torch.zeros(3), yaw=0.0)
            seen.append(table.open(matrix, 0.0))
        state, _, reset = table.gather(seen, obs)
        assert all(part.is_cuda and not part.any() for part in state)
        table.scatter(seen[::2], reset[::2], tuple(part[::2] for part in decision.state), decision.latent[::2])
        kept, _, _ = table.gather(seen, obs)
        assert all(torch.equal(part[::2], new[::2]) and not part[1].any() for part, new in zip(kept, decision.state))
        decision = replace(decision, state=tuple(part.cpu() for part in decision.state))
        with pytest.raises(ConfigError, match="--device cpu"):
            FlightLearning(away, ContinuousTrainingConfig(), None)
        with pytest.raises(ConfigError, match="--runtime eager"):
            load_model(str(plain), there.model_copy(update={"runtime": "onnx"}))
    parts = [(d.action, d.value, d.latent, d.log_prob, *d.state) for d in (decision, wanted)]
    for a, b in zip(*parts):
        assert not a.is_cuda
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
def test_missing_gpu_is_reported(make_checkpoint) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="take device 'cpu'"):
        load_model(str(make_checkpoint("g.pt")), ActorConfig(follow=None, device="cuda"))


def test_moved_alias_delivers_its_version_once(make_checkpoint, tmp_path) -> None:  # noqa: F811
    registry = Registry(tmp_path / "models")
    for seed in range(2):
        registry.register(make_checkpoint(f"{seed}.pt", seed=seed, run_id=f"run-{seed}"))
    registry.promote("v001")

    def load(version: str) -> ServedModel:
        return load_model(version, ActorConfig(follow=None), tmp_path / "models")

    follower = AliasFollower("champion", "v001", load, registry, ActorConfig(poll_seconds=0.01).poll_seconds)
    try:
        assert follower.take() is None
        registry.promote("v002")
        taken: list[ServedModel] = []
        until(lambda: bool(taken) or bool(taken.extend(filter(None, [follower.take()]))))
        assert [model.name for model in taken] == ["v002"] and follower.take() is None
    finally:
        follower.close()
    assert not follower._thread.is_alive()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (CheckpointError("the disk is away"), "the disk is away"),
        (OSError(errno.EMFILE, "Too many open files"), "OSError: [Errno 24] Too many open files"),
    ],
)
def test_unloadable_version_is_reported_once_and_retried(
    make_checkpoint,  # noqa: F811
    tmp_path,
    caplog,
    fault,
    message,
) -> None:
    registry = Registry(tmp_path / "models")
    registry.register(make_checkpoint("a.pt"))
    registry.promote("v001")
    tries: list[str] = []

    def load(version: str) -> ServedModel:
        tries.append(version)
        if len(tries) < 3:
            raise fault
        return tiny_model(name=version)

    with caplog.at_level(logging.WARNING, "navi.service"):
        follower = AliasFollower("champion", "v000", load, registry, 0.01)
        try:
            until(lambda: follower._known == "v001")
            served = follower.take()
        finally:
            follower.close()
    assert served is not None and served.name == "v001" and len(tries) == 3
    assert caplog.text.count(f"champion cannot be followed: {message}") == 1
