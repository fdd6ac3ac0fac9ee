"""Occupancy inputs of a policy: the same in training, evaluation, cloning and the service."""

import numpy as np
import pytest
import torch

from navi_core.config import DynamicsConfig, EvalConfig, PolicyConfig, TrainConfig, parse_config
from navi_core.config.policy import OCCUPANCY_INPUTS
from navi_core.demos import index_folder, load_dataset, save_demonstration
from navi_core.errors import ConfigError
from navi_core.evaluate.flight.frozen_starts import PolicyFlyer
from navi_core.learn import clone
from navi_core.learn.algorithms.cloning import demo_places
from navi_core.models import load_policy
from navi_core.pilots import Pose
from navi_core.policy import build_policy
from navi_core.record import RunDirectory
from navi_core.service.learning.admission import ShadowFlight
from navi_core.service.learning.experience import Trajectory
from navi_core.service.policies.served_model import EagerRunner
from navi_core.service.policies.sessions import SessionTable
from navi_core.service.wire import DistanceMatrix, RobotPose
from navi_core.world import Field, NavigationEnv
from tests.demos.conftest import make_demo
from tests.learn.builders import filled, small_config, small_parts

ROWS, AUX = 3, 3
PLACES = slice(AUX, AUX + OCCUPANCY_INPUTS)
NET = dict(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=8, place_memory=True)


def parts(apartments, **policy):
    config = small_config(rows=ROWS, env={"max_steps": 12, "episodes_per_scene": 1}, policy=NET | policy)
    return small_parts(config, NavigationEnv(Field(apartments), ROWS, config.env, 0))


def column(pose: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat((pose["position"], pose["yaw"][:, None]), dim=1)


@pytest.fixture(scope="module")
def flown(apartments):
    """A collector, its learner, a rollout through resets, and the poses that its decisions were made at."""
    collector, learner = parts(apartments)
    poses, fly = [column(collector.env.poses())], collector._fly

    def listening(actions):
        batch = fly(actions)
        poses.append(column(collector.env.poses()))
        return batch

    collector._fly = listening
    return collector, learner, filled(collector), poses


def test_acting_and_updating_have_the_same_occupancy_inputs(flown):
    _, learner, rollout, _ = flown
    assert rollout.aux.shape[-1] == AUX + OCCUPANCY_INPUTS and rollout.truncated.sum() >= ROWS
    metrics = learner.update(rollout, index=0, steps=0).metrics
    assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4


def test_ended_episode_map_includes_its_last_view(apartments):
    """The critic reads these features with that view; the first view of the new episode is elsewhere."""
    collector, _ = parts(apartments)
    seen, batches = [], []
    fly, follow = collector._fly, collector.auxiliary.memory.follow
    collector._fly = lambda actions: batches.append(fly(actions)) or batches[-1]
    collector.auxiliary.memory.follow = lambda obs, *rest: seen.append(obs.clone()) or follow(obs, *rest)
    filled(collector)
    ended = [(view, batch, batch.truncated) for view, batch in zip(seen, batches, strict=True)]
    assert sum(int(done.sum()) for *_, done in ended) >= ROWS
    for view, batch, done in ended:
        assert torch.equal(view[done], batch.final_obs[done]) and torch.equal(view[~done], batch.obs[~done])
        assert not done.any() or not torch.equal(view[done], batch.obs[done])


def test_evaluation_has_the_occupancy_inputs_of_training(flown):
    collector, _, rollout, poses = flown
    policy = build_policy(collector.config.policy)
    reported, act = [], policy.act

    def listening(obs, aux, *rest):
        reported.append(aux)
        return act(obs, aux, *rest)

    policy.act = listening
    flyer = PolicyFlyer(policy, EvalConfig(block=ROWS), name="p", max_distance=collector.config.env.max_distance)
    flyer.begin(torch.arange(ROWS), None)
    length = int(rollout.reset[1:].any(dim=1).nonzero()[0]) + 1
    obs = rollout.observations.by_step()
    for t in range(length):
        flyer.act(obs[t], Pose(poses[t][:, :3], poses[t][:, 3], torch.zeros(ROWS, dtype=torch.int64)))
    torch.testing.assert_close(torch.stack(reported)[..., PLACES], rollout.aux[:length, :, PLACES], rtol=0, atol=0)


def test_evaluation_has_the_goal_features_of_training(apartments):
    config = small_config(rows=ROWS, env={"max_steps": 12, "task": "point_goal"}, policy=NET)
    env = NavigationEnv(Field(apartments), ROWS, config.env, 0)
    collector, learner = small_parts(config, env)
    poses, goals, fly = [column(env.poses())], [env.goals.of(env.counters["scene"]).clone()], collector._fly

    def listening(actions):
        batch = fly(actions)
        poses.append(column(env.poses()))
        goals.append(env.goals.of(env.counters["scene"]).clone())
        return batch

    collector._fly = listening
    rollout = filled(collector)
    assert learner.update(rollout, index=0, steps=0).metrics["parity_ratio"] < 1e-4
    policy, reported = build_policy(config.policy), []
    act = policy.act
    policy.act = lambda obs, aux, *rest: (reported.append(aux), act(obs, aux, *rest))[1]
    asked = EvalConfig(block=ROWS, task="point_goal")
    obs, begins = rollout.observations.by_step(), rollout.reset
    for row in range(ROWS):
        # Every episode of the rollout that begins in it, as one flight of its own.
        starts = begins[:, row].nonzero().flatten().tolist()
        assert len(starts) > 1
        for first, last in zip(starts, [*starts[1:], len(begins)]):
            flyer = PolicyFlyer(policy, asked, name="p", max_distance=config.env.max_distance)
            flyer.begin(torch.arange(1), None)
            reported.clear()
            for t in range(first, last):
                here = slice(row, row + 1)
                pose = Pose(poses[t][here, :3], poses[t][here, 3], torch.zeros(1, dtype=torch.int64), goals[t][here])
                flyer.act(obs[t, here], pose)
            ours, theirs = torch.cat(reported)[:, AUX:], rollout.aux[first:last, row, AUX:]
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
            assert theirs.shape[1] == OCCUPANCY_INPUTS + 4 and theirs[:, :OCCUPANCY_INPUTS].any(dim=1).all()


def test_the_service_has_the_occupancy_inputs_of_training(flown):
    collector, _, rollout, poses = flown
    runner = EagerRunner(build_policy(collector.config.policy), "p")
    table = SessionTable(runner, 4, None, max_distance=collector.config.env.max_distance)
    obs, blank = rollout.observations.by_step(), np.zeros((1, 16, 8), np.float32)
    length = int(rollout.reset[1:].any(dim=1).nonzero()[0]) + 1

    def matrix(t, row):
        x, y, z, yaw = poses[t][row].tolist()
        pose, none = RobotPose(x, y, z, 0.0, 0.0, yaw, 0.0), np.zeros((0, 0, 3), np.uint8)
        ids = blank.astype(np.int32)
        return DistanceMatrix(1, np.array([row], np.int32), (16, 8), blank, blank, ids, blank > 0, none, pose, t, 0.0)

    group = [table.open(matrix(0, row), 0.0) for row in range(ROWS)]
    for t in range(length):
        for row, session in enumerate(group):
            session.matrix = matrix(t, row)
        if t == 4:
            # A successor of the same kind goes on with the drones' maps.
            assert table.renew(runner, None, max_distance=collector.config.env.max_distance)
        state, aux, reset = table.gather(group, obs[t])
        torch.testing.assert_close(aux[:, PLACES], rollout.aux[t, :, PLACES], rtol=0, atol=1e-5)
        decision = runner.decide(obs[t], aux, state, reset, None)
        table.scatter(group, reset, decision.state, decision.latent)
    # Who begins to map in the middle of a flight begins there.
    table.renew(runner, None, max_distance=50.0)
    assert table.gather(group, obs[length - 1])[1].isfinite().all()


def test_a_shadow_flight_gives_both_policies_occupancy_inputs(flown, apartments):
    collector, *_ = flown
    policy, reported = build_policy(collector.config.policy), []
    act = policy.act

    def listening(obs, aux, *rest):
        reported.append(aux)
        return act(obs, aux, *rest)

    policy.act = listening
    result = ShadowFlight(Field(apartments), collector.config.env, rows=2, decisions=5)(policy, policy)
    assert result.passed and result.difference == 0.0 and len(reported) == 10
    assert all(aux[:, PLACES].any(dim=1).all() for aux in reported)


def test_a_trajectory_keeps_occupancy_features():
    trajectory = Trajectory(4, 8, AUX + OCCUPANCY_INPUTS, None)
    reported = torch.rand(2, AUX + OCCUPANCY_INPUTS)
    for aux in reported:
        trajectory.append(torch.rand(8), aux, 0.0)
    torch.testing.assert_close(trajectory.inputs(0, 2)[1], reported)
    silent = Trajectory(4, 8, AUX + OCCUPANCY_INPUTS, None)
    silent.append(torch.rand(8), torch.zeros_like(reported[0]), 0.0)
    assert silent.inputs(0, 1)[1].shape == (1, AUX + OCCUPANCY_INPUTS)


def test_resumed_run_keeps_its_occupancy_maps(apartments):
    collector, _ = parts(apartments)
    filled(collector)
    kept = {name: part.clone() for name, part in collector.auxiliary.memory.state_dict().items()}
    state = collector.state_dict()
    state = state | {"aux": state["aux"].clone(), "obs": state["obs"].clone(), "places": kept}
    other, _ = parts(apartments)
    other.load_state_dict(state)
    again, once = filled(other), filled(collector)
    torch.testing.assert_close(again.aux, once.aux, rtol=0, atol=0)
    torch.testing.assert_close(again.actions, once.actions, rtol=0, atol=0)


def test_disturbed_demonstration_keeps_flown_actions(tmp_path):
    demos = [make_demo(24, seed=n, scene=f"room{n}", starts=(0, 10)) for n in range(4)]
    flown = np.random.default_rng(7).uniform(-1, 1, (24, 4)).astype(np.float32)
    demos[1] = make_demo(24, seed=1, scene="room1", starts=(0, 10), flown=flown)
    plain = make_demo(24, seed=1, scene="room1", starts=(0, 10))
    assert demos[1].content_hash() != plain.content_hash()
    for number, demo in enumerate(demos):
        save_demonstration(tmp_path / f"{number}.npz", demo)
    index_folder(tmp_path, [f"{n}.npz" for n in range(len(demos))])
    data = load_dataset([tmp_path])
    np.testing.assert_array_equal(data.flown[24:48], flown)
    np.testing.assert_array_equal(data.flown[:24], demos[0].actions)
    reported = demo_places(data, DynamicsConfig())
    assert reported.shape == (96, OCCUPANCY_INPUTS) and np.isfinite(reported).all() and reported.any()
    config = parse_config(
        TrainConfig,
        {
            "algorithm": "bc", "device": "cpu", "threads": 1, "policy": NET,
            "env": {"azimuth_bins": 16, "elevation_bins": 8},
            "bc": {"data": data.content_hash, "epochs": 2, "bptt": 6, "sequences": 4},
        },
    )  # fmt: skip
    with RunDirectory.open(tmp_path / "runs", asset="bc", partition="toy", config=config) as run:
        result = clone(config, run, data, log=run.metric_log(tmp_path / "outbox"))
    policy, _ = load_policy(result.checkpoint)
    untouched = build_policy(config.policy, seed=config.seed)
    assert not torch.equal(policy.places[0].weight, untouched.places[0].weight)


def test_a_policy_without_occupancy_inputs_is_refused():
    with pytest.raises(ConfigError, match=r"place_memory needs the auxiliary input"):
        parse_config(PolicyConfig, NET | {"aux": "off"})
    sensor = {"azimuth_bins": 16, "elevation_bins": 8}
    with pytest.raises(ConfigError, match="dpo"):
        parse_config(TrainConfig, {"algorithm": "dpo", "policy": NET, "env": sensor})
    with pytest.raises(ConfigError, match="maps flights"):
        parse_config(TrainConfig, {"task": "cart_pole", "policy": {"place_memory": True}})
