"""Served flight to goals: published by the environment, flown by the actor as in training."""

from __future__ import annotations

import copy
import logging
import math
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from navi_core.cli.serve import _position
from navi_core.config import ActorConfig, ContinuousTrainingConfig, EnvConfig, GateConfig, GoalConfig, SensorConfig
from navi_core.errors import ConfigError
from navi_core.models import export_checkpoint
from navi_core.policy import build_policy
from navi_core.service.actor.server import ActorServer
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.admission import ShadowFlight
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.observations import GOAL_EVENT, GoalTable, distance_matrix, observation_of
from navi_core.service.policies.served_model import load_model
from navi_core.service.policies.sessions import SessionTable
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import Feed
from navi_core.service.wire import DistanceMatrix, StepRequest, TelemetryEvent, encode
from navi_core.service.wire.sockets import Subscriber
from navi_core.world import NavigationEnv
from navi_core.world.goals import relative_goal
from navi_core.world.occupancy_memory import OccupancyMemory, pose_rows
from tests.models.conftest import CONFIG, POLICY, make_checkpoint  # noqa: F401 - a fixture
from tests.service.conftest import ANY, BRISK, SMALL, TINY, requester, tiny_model, until
from tests.service.test_servers import command

SEEKING = TINY.model_copy(update={"goal": True, "place_memory": True})
MAPPING = TINY.model_copy(update={"place_memory": True})
GOALS = EnvConfig(
    **SMALL.model_dump(exclude={"task", "reward", "goal"}),
    task="point_goal",
    reward={"preset": "point_goal"},
    goal={"per_scene": 4, "success_radius": 2.0, "stop_speed": 9.0, "min_distance": 0.0},
)


def goal_message(env_id: int, episode: int, *place: float, kind: str = GOAL_EVENT) -> TelemetryEvent:
    return TelemetryEvent(kind, episode, env_id, 0, np.array(place, np.float32), 0.0)


def looking(env_id: int, episode: int, *, step_id: int = 0):
    blank, here = torch.full((3, 32, 8), 0.5), torch.zeros(3)
    return distance_matrix(blank, env_id=env_id, episode_id=episode, step_id=step_id, position=here, yaw=0.0)


def test_served_goal_policy_matches_the_local_one(stage) -> None:
    """Goals, occupancy memory and episode ends come over the wire; the decisions equal those without it."""
    server = stage.environment(GOALS, sessions=3, seed=2)
    rewards, done, step = {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}, server._step

    def recorded(rows, *commands):
        step(rows, *commands)
        for row in rows:
            rewards[row].append(server._results[row].reward)
            done[row].append(server._results[row].done)

    server._step = recorded
    actor = stage.actor(server, tiny_model(config=SEEKING))
    until(lambda: min(map(len, rewards.values())) >= 40)
    actor.stop()
    actor.thread.join(5)

    env = NavigationEnv(stage.field, 3, GOALS.model_copy(update={"stagger": False}), seed=2)
    policy, places = tiny_model(config=SEEKING).runner.policy, OccupancyMemory.of_env(env.config, 3)
    obs, state, reset = env.reset(), policy.initial_state(3), torch.ones(3, dtype=torch.bool)
    for number in range(40):
        now, goal = env.poses(), env.relative_goals()
        mapped = places.look(obs, pose_rows(now["position"], now["yaw"]), reset, goal=goal)
        with torch.no_grad():
            out = policy.act(obs, torch.cat((torch.zeros(3, 3), mapped, goal), dim=1), state, reset, None)
        batch = env.step(out.action)
        obs, state, reset = batch.obs, out.state, batch.truncated | batch.terminated
        for row in range(3):
            assert abs(rewards[row][number] - float(batch.reward[row])) < 1e-4, (number, row)
            assert done[row][number] == bool(batch.terminated[row])
    assert any(map(any, done.values()))


def test_served_map_draws_a_late_scan_from_its_pose(stage) -> None:
    server = stage.environment(SMALL.model_copy(update={"sensor": SensorConfig(delay=(2, 2))}))
    env, table = server.env, SessionTable(tiny_model(config=MAPPING).runner, 1, None)
    places, begins, session = OccupancyMemory.of_env(env.config, 1), torch.ones(1, dtype=torch.bool), None
    counts = False
    for _ in range(12):
        now, matrix = env.poses(), server._observation(0)
        session = session or table.open(matrix, 0.0)
        session.matrix = matrix
        served = table.gather([session], observation_of(matrix))[1][:, 3:]
        here = pose_rows(now["position"], now["yaw"])
        ignored = copy.deepcopy(places).look(observation_of(matrix), here, begins)
        expected = places.look(observation_of(matrix), here, begins, age=env.scan_age)
        assert torch.equal(served, expected)
        counts = counts or not torch.equal(ignored, expected)
        begins = torch.zeros(1, dtype=torch.bool)
        server._step([0], np.array([[1.0, 0.0, 0.0, 1.0]], np.float32), [0])
    assert counts


def test_streaming_drones_receive_a_goal_each_episode(stage) -> None:
    fast = GOALS.model_copy(update={"dynamics": SMALL.dynamics.model_copy(update={"substep": 0.004})})  # 50 Hz
    actor = stage.actor(model=tiny_model(config=SEEKING), mode="stream", subscribe=("tcp://127.0.0.1:1",))
    server = stage.environment(fast, mode="stream", sessions=2, actions=(actor.publisher.endpoint,))
    actor._subscriber.socket.connect(server.publisher.endpoint)
    until(lambda: actor.decisions >= 60)
    assert server.metrics.counter("episodes_total") >= 2


def test_a_service_learns_on_flights_to_goals(stage, tmp_path) -> None:
    settings = ContinuousTrainingConfig(training_interval=0.02, batch_size=16, min_batch_size=4)
    model = tiny_model(config=SEEKING)
    learning = FlightLearning(model, settings, None, outbox=tmp_path)
    stage.actor(stage.environment(GOALS, sessions=3, seed=2), model, learning=learning, sample=True)
    until(lambda: learning.trainer.serving.version >= 3)
    until(lambda: any(trajectory.terminated for trajectory in learning.buffer.sample(1000).trajectories))
    assert learning.status()["training"]["errors"] == 0


@pytest.mark.parametrize("mode", ["step", pytest.param("stream", marks=pytest.mark.slow)])
def test_drone_without_goal_waits_with_one_warning(stage, caplog, mode: str) -> None:
    with caplog.at_level(logging.WARNING, logger="navi.service"):
        server = stage.environment(sessions=2, mode=mode, actions=("tcp://127.0.0.1:1",))
        actor = stage.actor(server, tiny_model(config=SEEKING), mode=mode)
        until(lambda: any("waits for a goal" in record.message for record in caplog.records))
        time.sleep(5 * BRISK.heartbeat_seconds)
    warnings = [record.message for record in caplog.records if "waits for a goal" in record.message]
    assert len(warnings) == 1 and "--task point_goal" in warnings[0] and "--goal X,Y,Z" in warnings[0]
    assert actor.decisions == 0 and actor.metrics.as_dict()["without_goal"] == 2


def test_goal_is_published_before_the_first_observation(stage) -> None:
    """With a heartbeat of a minute no missed message is repeated."""
    rare = BRISK.model_copy(update={"heartbeat_seconds": 60.0})
    server = stage.environment(GOALS.model_copy(update={"max_steps": 4}), sessions=2, wire=rare)
    reader = Subscriber([server.publisher.endpoint], ["telemetry_event_v2", "distance_matrix_v2"], rare)
    known, seen = set(), set()

    def listen() -> None:
        message = reader.receive(1.0)
        if isinstance(message, TelemetryEvent) and message.event_type == GOAL_EVENT:
            known.add((message.env_id, message.episode_id))
        elif isinstance(message, DistanceMatrix):
            place = (int(message.env_ids[0]), message.episode_id)
            # A newcomer may be shown the present episodes before it has asked for telemetry.
            assert place in known or len(seen) < 2
            seen.add(place)

    until(lambda: (listen(), len(seen) >= 2)[1])
    with requester(server.answer_endpoint) as socket:
        for step in range(1, 14):
            socket.send_multipart(encode(StepRequest(command(1, step), step, time.time())))
            socket.recv_multipart()
    until(lambda: (listen(), len(seen) >= 5)[1])
    reader.close()
    assert seen <= known


def test_streaming_environment_repeats_goals(stage) -> None:
    far = GOALS.model_copy(update={"max_steps": 400, "goal": GoalConfig(success_radius=0.01, stop_speed=0.001)})
    server = stage.environment(far, mode="stream", sessions=2, actions=("tcp://127.0.0.1:1",))
    topics = ["telemetry_event_v2", "distance_matrix_v2"]
    reader, count = Subscriber([server.publisher.endpoint], topics, BRISK), {}

    def again() -> bool:
        message = reader.receive(0.5)
        if isinstance(message, TelemetryEvent) and message.event_type == GOAL_EVENT:
            place = (message.env_id, message.episode_id)
            count[place] = count.get(place, 0) + 1
        return sum(times >= 6 for times in count.values()) == 2

    until(again)
    reader.close()
    assert sorted(drone for drone, _ in count) == [0, 1]


def test_late_subscriber_receives_all_goals(stage) -> None:
    rare = BRISK.model_copy(update={"heartbeat_seconds": 60.0})
    server = stage.environment(GOALS, sessions=3, wire=rare)
    for _ in range(2):
        reader, received_of = Subscriber([server.publisher.endpoint], ["telemetry_event_v2"], rare), set()

        def all_received(reader=reader, received_of=received_of) -> bool:
            message = reader.receive(0.5)
            if message is not None and message.event_type == GOAL_EVENT:
                received_of.add(message.env_id)
            return len(received_of) == 3

        until(all_received)
        reader.close()
        assert received_of == {0, 1, 2}


@pytest.fixture
def alone():
    """An actor for goals without a server that answers; the test drives it."""
    actor = ActorServer(
        tiny_model(config=SEEKING),
        ActorConfig(subscribe=("tcp://127.0.0.1:1",), step_endpoint="tcp://127.0.0.1:1", publish=ANY, wire=BRISK),
    )
    yield actor
    actor.close()


def test_overtaken_observation_does_not_reset_a_waiting_drone(alone) -> None:
    old, new = looking(3, 7, step_id=4), looking(3, 8, step_id=5)
    alone._goals.update(goal_message(3, 7, 1.0, 1.0, 1.0))
    alone._handle_observation(new)
    alone._handle_observation(old)
    session = alone.sessions.get(3)
    assert session.matrix is new and session.waits_since is not None and not alone._ready
    # The goal of another episode is not the one it waits for.
    alone._handle_goal(goal_message(3, 9, 1.0, 1.0, 1.0))
    assert not alone._ready
    alone._handle_goal(goal_message(3, 8, 1.0, 1.0, 1.0))
    assert list(alone._ready) == [3] and session.waits_since is None


def test_model_swap_reconsiders_waiting_and_ready_drones(alone) -> None:
    alone._handle_observation(looking(3, 7))
    ready = [tiny_model(config=TINY), tiny_model(config=SEEKING)]
    alone._successor = lambda: ready.pop(0)
    alone._swap_model()
    assert list(alone._ready) == [3]
    alone._swap_model()
    assert not alone._ready and alone.sessions.get(3).waits_since is not None


def test_invalid_goal_and_nan_observation_do_not_end_the_service(alone, caplog) -> None:
    assert not alone._goals.update(goal_message(3, 7, 3e38, 0.0, 0.0))
    alone._goals.update(goal_message(3, 7, 1.0, 1.0, 1.0))
    spoiled, sound = looking(3, 7), looking(3, 7, step_id=1)
    spoiled.depth[:] = np.nan  # past the wire, which refuses it
    for number in range(3):
        alone._handle_observation(replace_step(spoiled, number))
        with caplog.at_level(logging.WARNING, logger="navi.service"):
            alone.turn(0)
        session = alone.sessions.get(3)
        assert session.begins and not session.request.linear_velocity.any()
        session.request = None
    # Warned of once; the next valid observation clears the NaN, also for the next drone in the slot.
    assert sum("answers with NaN or Inf" in record.message for record in caplog.records) == 1
    alone._queue_observation(sound)
    alone.turn(0)
    assert alone.sessions.get(3).request.linear_velocity.any()
    alone._queue_observation(replace_step(spoiled, 9))
    alone.sessions.get(3).request = None
    with caplog.at_level(logging.WARNING, logger="navi.service"):
        alone.turn(0)
    assert sum("answers with NaN or Inf" in record.message for record in caplog.records) == 2
    alone.sessions.forget(-1.0, 1e18)
    assert alone.sessions.get(3) is None
    alone._goals.update(goal_message(4, 7, 1.0, 1.0, 1.0))
    alone._handle_observation(looking(4, 7))
    alone.turn(0)
    assert alone.sessions.get(4).slot == session.slot and alone.sessions.get(4).request.linear_velocity.any()


def replace_step(matrix: DistanceMatrix, step_id: int) -> DistanceMatrix:
    """Return a message with another step id that is not looked at again."""
    changed = copy.copy(matrix)
    object.__setattr__(changed, "step_id", step_id)
    return changed


def test_clock_set_back_blocks_no_waiting_drone(alone) -> None:
    alone._handle_observation(replace(looking(3, 7, step_id=5), timestamp=1e9))
    later = replace(looking(3, 7, step_id=6), timestamp=1.0)
    alone._handle_observation(later)
    assert alone.sessions.get(3).matrix is later
    # A restarted environment counts from the start; overtaken observations arrive at once.
    alone.sessions.get(3).waits_since -= 60.0
    again = looking(3, 8, step_id=0)
    alone._handle_observation(again)
    assert alone.sessions.get(3).matrix is again


def test_observation_of_another_size_is_warned_of_once(alone, caplog) -> None:
    here = torch.zeros(3)
    matrices = [
        distance_matrix(torch.zeros(3, 16, 4), env_id=drone, episode_id=1, step_id=0, position=here, yaw=0.0)
        for drone in (5, 6)
    ]
    with caplog.at_level(logging.WARNING, logger="navi.service"):
        for matrix in matrices:
            alone._handle_observation(matrix)
    assert len(alone.sessions) == 0 and len(caplog.records) == 1
    assert "drone 5 sees 16x4, v001 wants 32x8" in caplog.text and "--like v001" in caplog.text


def test_shadow_evaluations_without_goals_refuse_a_policy_for_goals(stage, tmp_path) -> None:
    settings = ContinuousTrainingConfig(shadow_evaluation=5, shadow_rows=2, shadow_decisions=2)
    gate = RolloutGate(stage.field, SMALL, GateConfig(), capacity=64)
    learning = FlightLearning(tiny_model(), settings, gate, outbox=tmp_path)
    with pytest.raises(ConfigError, match="shadow evaluations here have none"):
        learning.adopt(tiny_model(config=SEEKING))
    learning.close()


def test_all_drones_fly_to_the_common_goal(stage) -> None:
    place, inputs, actors = (1.5, 1.0, -2.0), [], []
    model = tiny_model(config=SEEKING)
    decide = model.runner.decide

    def listening(obs, aux, *rest):
        for session in actors[0].sessions if actors else ():
            inputs.append((aux, torch.tensor([session.pose])))
        return decide(obs, aux, *rest)

    model.runner.decide = listening
    actors.append(stage.actor(stage.environment(), model, goal=place))
    until(lambda: len(inputs) > 5)
    for aux, here in inputs[:5]:
        torch.testing.assert_close(aux[:, -4:], relative_goal(here[:, :3], here[:, 3], torch.tensor([place])))


def test_goal_and_exploration_policies_replace_each_other(stage) -> None:
    ready = []
    actor = stage.actor(stage.environment(GOALS, sessions=4), successor=lambda: ready.pop() if ready else None)
    until(lambda: actor.decisions > 20)
    for name, config in (("v002", SEEKING), ("v003", TINY)):
        after = actor.decisions
        ready.append(tiny_model(name=name, config=config))
        until(lambda: actor.model.name == name and actor.decisions > after + 40)  # noqa: B023
    assert len(actor.sessions) == 4


def test_goal_table_keeps_goals_by_episode_and_refuses_invalid_ones() -> None:
    goals = GoalTable()
    assert goals.goal_of(looking(3, 7)) is None
    assert goals.update(goal_message(3, 7, 1.0, 2.0, -3.0))
    assert goals.goal_of(looking(3, 7)).tolist() == [1.0, 2.0, -3.0]
    assert goals.goal_of(looking(3, 8)) is None and goals.goal_of(looking(4, 7)) is None
    assert not goals.update(goal_message(3, 8, 1.0, 2.0)) and not goals.update(goal_message(3, 8, 1.0, math.nan, 0.0))
    assert not goals.update(goal_message(3, 8, 1.0, 2.0, 3.0, kind="environment.heartbeat"))
    for drone in range(10_000):
        goals.update(goal_message(drone, 1, 0.0, 0.0, 0.0))
    assert len(goals._goals) == 4096 and goals.goal_of(looking(9_999, 1)) is not None
    assert GoalTable((1.0, 0.5, 2.0)).goal_of(looking(3, 7)).tolist() == [1.0, 0.5, 2.0]


def test_common_goal_is_refused_by_a_policy_without_goals(make_checkpoint) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="reads no goal"):
        load_model(str(make_checkpoint("e.pt")), ActorConfig(follow=None, goal=(1.0, 1.0, 1.0)))
    assert _position("3.5,1.2,-4") == (3.5, 1.2, -4.0)
    for text in ("3.5,1.2", "1,2,x", ""):
        with pytest.raises(ConfigError, match="write X,Y,Z in metres"):
            _position(text)


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnxscript", "onnxruntime")),
    reason="ONNX is not installed (pip install -e '.[export]')",
)
def test_exported_program_serves_a_goal_policy(make_checkpoint, tmp_path) -> None:  # noqa: F811
    seeking = POLICY.model_copy(update={"goal": True})
    config = CONFIG.model_copy(update={
        "policy": seeking, "env": CONFIG.env.model_copy(update={"task": "point_goal"}),
        "shaper": CONFIG.shaper.model_copy(update={"rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0}),
    })  # fmt: skip
    checkpoint = make_checkpoint("g.pt", steps=0, policy=build_policy(seeking, 0), config=config)
    export_checkpoint(checkpoint, tmp_path / "g.onnx", kind="onnx")
    model = load_model(str(tmp_path / "g.onnx"), ActorConfig(follow=None))
    assert model.runner.config.goal and model.runner.metadata["aux_made_of"] == ["a goal"]


def test_shadow_flight_gives_both_policies_their_goals(flown_field) -> None:
    policy, inputs = build_policy(SEEKING, 0), []
    act = policy.act
    policy.act = lambda obs, aux, *rest: (inputs.append(aux), act(obs, aux, *rest))[1]
    result = ShadowFlight(flown_field, GOALS, rows=2, decisions=5)(policy, policy)
    assert result.passed and result.difference == 0.0 and len(inputs) == 10
    assert all(aux.shape[1] == SEEKING.aux_inputs and aux[:, -4].gt(0).all() for aux in inputs)


def test_viewers_receive_the_goal_of_the_selected_drone(stage) -> None:
    server = stage.environment(GOALS, sessions=2, seed=1)
    digest = Digest(row=1)
    feed = Feed([server.publisher.endpoint], lambda batch: [digest.update(m) for m in batch], watching=True)
    try:
        until(lambda: digest.matrix is not None and digest.frame()[0]["goal"] is not None)
    finally:
        feed.close()
    goal = server.env.goals.of(server.env.counters["scene"])[1]
    assert digest.frame()[0]["goal"] == goal.tolist() and "environment.goal" not in digest.others
    digest.update(goal_message(1, digest.matrix.episode_id, math.nan, 0.0, 0.0))
    assert digest.frame()[0]["goal"] == goal.tolist()
