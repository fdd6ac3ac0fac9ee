"""The gate predicts what the environment's dynamics do, and keeps a random policy from the walls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import REWARD_TERMS, BodiesConfig, EnvConfig, GateConfig, SensorConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.world import Field, NavigationEnv
from navi_core.world.dynamics import Dynamics
from navi_core.world.lookahead import FlightOutlook, HorizonFlight, Start, depth_ahead
from navi_core.world.sensor.panorama import denormalise_depth

ROWS = 24
CONFIG = EnvConfig(azimuth_bins=64, elevation_bins=16, stagger=False)


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


class Flight:
    """An environment and a gate that knows where its drones are."""

    def __init__(self, field: Field, seed: int = 0, **gate) -> None:
        self.env = NavigationEnv(field, ROWS, CONFIG, seed=seed)
        self.gate = RolloutGate(field, CONFIG, GateConfig(**gate), capacity=ROWS)
        self.rows = torch.arange(ROWS)
        self.generator = torch.Generator().manual_seed(seed)
        self.obs = self.env.reset()
        self.found = self.gate.begin(self.situation())

    def action(self) -> torch.Tensor:
        return torch.rand(ROWS, 4, generator=self.generator) * 2 - 1

    def situation(self) -> DroneState:
        life = {name: self.env._drone_state[name].clone() for name in ("position", "yaw", "velocity")}
        return DroneState(self.rows, life["position"], life["yaw"].squeeze(1), life["velocity"], self.obs)

    def start(self) -> Start:
        s = self.situation()
        return Start(s.position, s.yaw, s.velocity, self.env.poses()["scene_index"], s.obs)

    def judge(self, action: torch.Tensor):
        self.gate.remember(self.situation())
        return self.gate.judge(self.situation(), action)

    def step(self, action: torch.Tensor):
        batch = self.env.step(action)
        self.obs = batch.obs
        return batch


def test_gate_finds_the_scene_of_every_drone(field: Field) -> None:
    flight = Flight(field)
    assert torch.equal(flight.found, flight.env.poses()["scene_index"])
    assert len(flight.found.unique()) == 2


def test_one_decision_prediction_matches_the_environment(field: Field) -> None:
    flight = Flight(field, substeps=5)
    for _ in range(20):
        action = flight.action()
        verdict = flight.judge(action)
        batch = flight.step(action)
        assert torch.equal(verdict.collides, batch.info["collision"])
        free = ~verdict.collides
        after = flight.env._drone_state["velocity"][free]
        assert torch.allclose(verdict.velocity[free], after, atol=1e-5)


def test_horizon_matches_stepwise_dynamics(field: Field) -> None:
    """Away from the limiter both are one function; within it the gate is never slower."""
    config = CONFIG.model_copy(update={"dynamics": CONFIG.dynamics.model_copy(update={"limiter_distance": 1e-6})})
    env = NavigationEnv(field, ROWS, config, seed=1)
    whole = Dynamics(field, config.dynamics.model_copy(update={"steps_per_decision": 12}))
    obs, pose = env.reset(), env.poses()
    velocity, action = torch.zeros(ROWS, 4), torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(3)) * 2 - 1
    far = torch.full((ROWS,), torch.inf)
    expected = whole.step(pose["position"], pose["yaw"], velocity, action, far, pose["scene_index"])
    horizon = HorizonFlight(field, config.dynamics, 12, config.max_distance)
    motion = horizon.fly(Start(pose["position"], pose["yaw"], velocity, pose["scene_index"], obs), action)
    assert torch.equal(motion.collided, expected.collided) and expected.collided.any()
    free = ~expected.collided
    assert torch.allclose(motion.position[free], expected.position[free], atol=1e-5)
    turned = torch.remainder(motion.yaw - expected.yaw + 1.0, 6.283185307)[free]
    assert torch.allclose(turned, torch.ones_like(turned), atol=1e-4)


@pytest.mark.parametrize("substeps", [25, 7])
def test_one_simulation_equals_decisions_one_by_one(field: Field, substeps: int) -> None:
    parts = (CONFIG.dynamics, substeps, CONFIG.max_distance)
    fast, slow = (HorizonFlight(field, *parts, kernels=kernels) for kernels in (True, False))
    flight, hits = Flight(field, seed=7), 0
    for _ in range(12):
        action = flight.action()
        ours, twin = (horizon.fly(flight.start(), action) for horizon in (fast, slow))
        assert torch.equal(ours.collided, twin.collided)
        for name in ("position", "yaw", "velocity", "attempted_speed", "path", "clearance"):
            assert torch.allclose(getattr(ours, name), getattr(twin, name), atol=1e-5), name
        hits += int(ours.collided.sum())
        flight.step(action)
    assert hits > 10


def test_depth_ahead_after_a_turn_is_the_sector_minimum(field: Field) -> None:
    flight = Flight(field)
    front = flight.env._drone_state["front"].squeeze(1)
    seen = depth_ahead(flight.obs, CONFIG.dynamics.limiter_elevation_degrees)
    ahead = torch.where(seen > 1.0, torch.inf, denormalise_depth(seen, CONFIG.max_distance))
    assert torch.allclose(ahead[:, 0], front, rtol=1e-4)
    pose = flight.env.poses()
    turned = torch.remainder(pose["yaw"] + 2 * torch.pi * 7 / 64, 2 * torch.pi)
    hits = flight.env.sensor.cast(pose["position"], turned, pose["scene_index"])
    there = flight.env.dynamics.front_distance(hits.depth, hits.valid, 64)
    assert torch.allclose(ahead[:, (0 - 7) % 64], there, rtol=1e-3)


def test_a_random_policy_behind_the_gate_hardly_collides(field: Field) -> None:
    def collisions(gated: bool) -> int:
        flight, count = Flight(field, seed=5), 0
        for _ in range(60):
            action = flight.action()
            if gated:
                action = torch.where(flight.judge(action).send[:, None], action, 0.0)
            count += int(flight.step(action).info["collision"].sum())
        return count

    without, behind = collisions(False), collisions(True)
    assert without > 100 and behind <= 0.1 * without


def test_motion_into_a_wall_waits_and_free_motion_is_sent(box_scene) -> None:
    field = Field([box_scene])
    gate = RolloutGate(field, CONFIG, capacity=2)
    env = NavigationEnv(field, 2, CONFIG)
    position, yaw = torch.tensor([[0.0, 1.2, -1.5], [0.0, 1.2, 1.0]]), torch.zeros(2)
    scene = torch.zeros(2, dtype=torch.int64)
    obs = env.sensor.observation(env.sensor.cast(position, yaw, scene))
    situation = DroneState(torch.arange(2), position, yaw, torch.zeros(2, 4), obs)
    gate.begin(situation)
    gate.remember(situation)
    forward = torch.tensor([[1.0, 0, 0, 0]]).expand(2, 4)
    verdict = gate.judge(situation, forward)
    assert verdict.collides.tolist() == [True, False] and verdict.send.tolist() == [False, True]
    assert verdict.components["progress"][1] > 0 and verdict.expected_reward[1] > verdict.expected_reward[0]
    # A collision costs −2·(1 + speed share) once in five decisions.
    total = torch.stack(list(verdict.components.values())).sum(0)
    assert -0.81 < float(verdict.expected_reward[0] - total[0]) < -0.4


def test_gate_reaches_only_positions_inside_the_scene(box_scene) -> None:
    gate = RolloutGate(Field([box_scene]), CONFIG, capacity=1)
    assert gate.reaches((0.0, 1.2, 0.0)) and not gate.reaches((0.0, 1.2, 50.0)) and not gate.reaches((1e5, 0.0, 0.0))


def test_judging_changes_no_map_and_visits_lower_novelty(field: Field) -> None:
    flight = Flight(field)
    action, situation = torch.zeros(ROWS, 4), flight.situation()
    flight.gate.remember(situation)
    first, again = (flight.gate.judge(situation, action) for _ in range(2))
    assert torch.equal(first.expected_reward, again.expected_reward)
    flight.gate.remember(situation)
    later = flight.gate.judge(situation, action)
    assert (later.components["novelty"] < first.components["novelty"]).all()


def test_new_episode_resets_the_gate_memory(field: Field) -> None:
    flight = Flight(field)
    action = flight.action()
    first = flight.judge(action)
    again = flight.judge(action)
    assert (again.components["novelty"] < first.components["novelty"]).any()
    flight.gate.begin(flight.situation())
    anew = flight.judge(action)
    assert torch.equal(anew.expected_reward, first.expected_reward)


def test_drones_beyond_the_capacity_are_refused(field: Field) -> None:
    flight = Flight(field)
    beyond = replace(flight.situation(), rows=flight.rows + 1)
    for ask in (flight.gate.begin, flight.gate.remember, lambda there: flight.gate.judge(there, flight.action())):
        with pytest.raises(ConfigError, match=f"rows 1 to {ROWS}; this gate knows {ROWS}"):
            ask(beyond)


@pytest.mark.parametrize("yaw", [0.7 - 2 * torch.pi, 0.7 + 6 * torch.pi])
def test_yaw_is_accepted_with_any_number_of_turns(field: Field, yaw: float) -> None:
    here, turned = Flight(field), Flight(field)
    for flight, given in ((here, 0.7), (turned, yaw)):
        at = replace(flight.situation(), yaw=torch.full((ROWS,), given))
        flight.gate.remember(at)
        flight.verdict = flight.gate.judge(at, torch.ones(ROWS, 4))
    assert torch.equal(here.gate._past.visits, turned.gate._past.visits)
    assert torch.equal(here.verdict.collides, turned.verdict.collides)
    assert torch.allclose(here.verdict.expected_reward, turned.verdict.expected_reward, atol=0.02)


def test_validation_equals_the_first_verdict(field: Field) -> None:
    """For drones without a map that observed the gate's own cast; the yaw may differ by whole turns."""
    flight, action = Flight(field), torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(9)) * 2 - 1
    s, scene = flight.situation(), flight.found
    coarse = flight.gate._outlook.look(s.position, s.yaw, scene).obs
    flight.gate.begin(s)
    flight.gate.remember(replace(s, obs=coarse))
    judged = flight.gate.judge(replace(s, obs=coarse), action)
    for turns in (0.0, 2 * torch.pi):
        validated = flight.gate.validate(s.position, s.yaw - turns, s.velocity, action, scene)
        assert torch.equal(validated.collides, judged.collides)
        tolerance = 1e-6 if turns == 0.0 else 0.02
        assert torch.allclose(validated.expected_reward, judged.expected_reward, atol=tolerance)
    assert (judged.components["novelty"] != 0).any()


@pytest.mark.parametrize("far", [1e9, -1e9, 1e30])
def test_distant_drone_is_in_no_scene_and_judged_finitely(field: Field, far: float) -> None:
    flight = Flight(field)
    for place, yaw in ((torch.full((ROWS, 3), far), 0.3), (flight.situation().position, far)):
        away = replace(flight.situation(), position=place, yaw=torch.full((ROWS,), yaw))
        flight.gate.remember(away)
        assert flight.gate.judge(away, torch.ones(ROWS, 4)).expected_reward.isfinite().all()
    outlook, past = flight.gate._outlook, flight.gate._outlook.past(ROWS)
    outlook.remember(past, flight.rows, replace(flight.start(), position=torch.full((ROWS, 3), far)))
    # Nothing of the floor is seen from there, and the visit counts in the grid's corner.
    assert not past.seen.any() and torch.equal(past.visits.count_nonzero(dim=1), torch.ones(ROWS, dtype=torch.int64))
    assert (flight.gate.begin(replace(flight.situation(), position=torch.full((ROWS, 3), far))) == -1).all()


def test_expected_reward_divides_horizon_terms_by_decisions(field: Field) -> None:
    weights = {name: 0.5 + n for n, name in enumerate(REWARD_TERMS)}
    flight = Flight(field, weights=weights)
    action, start = flight.action(), flight.start()
    verdict = flight.judge(action)
    outlook = FlightOutlook(field, CONFIG, CONFIG.dynamics, 25)
    past = outlook.past(ROWS)
    outlook.remember(past, flight.rows, start)
    terms = dict(zip(REWARD_TERMS, outlook.fly(past, flight.rows, start, action)[1].unbind(1), strict=True))
    # Half a second is five decisions: what a horizon brings as a whole is a fifth in each.
    once = ("clearance", "inspection", "collision", "view_gain")
    worth = {name: weights[name] * term / (5 if name in once else 1) for name, term in terms.items()}
    assert torch.allclose(verdict.expected_reward, sum(worth.values()), atol=1e-5)
    wanted = {name: worth[name] for name in ("clearance", "progress", "starvation")}
    wanted["novelty"] = worth["exploration"] + worth["view_gain"]
    assert set(verdict.components) == set(wanted)
    assert all(torch.allclose(part, wanted[name], atol=1e-5) for name, part in verdict.components.items())


def test_motion_at_the_threshold_waits(field: Field) -> None:
    verdict = Flight(field, weights={}).judge(torch.zeros(ROWS, 4))
    assert not verdict.collides.any() and (verdict.expected_reward == 0.0).all() and not verdict.send.any()


def test_a_margin_is_added_to_the_radius_of_the_drone(field: Field) -> None:
    flight = Flight(field, margin=0.35)
    clearance = field.distance(flight.situation().position, flight.found)
    close = clearance < 0.15 + 0.35
    assert close.any() and not close.all()
    assert torch.equal(flight.judge(torch.zeros(ROWS, 4)).collides, close)


def test_motion_below_the_threshold_is_not_sent(field: Field) -> None:
    action = Flight(field).action()
    low, high = Flight(field, threshold=-10.0).judge(action), Flight(field, threshold=10.0).judge(action)
    assert torch.equal(low.send, ~low.collides) and not high.send.any()


def test_slower_fractions_must_decrease() -> None:
    assert GateConfig(slower=()).slower == ()
    for wrong in ((0.25, 0.75), (0.5, 0.5)):
        with pytest.raises(ConfigError, match="write the fastest first"):
            parse_config(GateConfig, {"slower": wrong})


def test_a_drone_in_no_known_scene_waits(field: Field, box_scene) -> None:
    flight = Flight(field)
    elsewhere = torch.zeros_like(flight.obs)
    elsewhere[:, 0] = 0.9
    assert (flight.gate.begin(replace(flight.situation(), obs=elsewhere)) == -1).all()
    verdict = flight.judge(flight.action())
    assert not verdict.send.any() and not verdict.expected_reward.any()
    assert not any(part.any() for part in verdict.components.values())


def test_non_finite_action_moves_no_drone(field: Field) -> None:
    flight = Flight(field, threshold=-10.0)
    action = torch.zeros(ROWS, 4)
    action[3, 1], action[5, 3] = torch.nan, torch.inf
    for slower in ((), (0.5, 0.0)):
        choice = choose_action(flight.gate, flight.situation(), action, slower)
        assert (~choice.flown.send).nonzero().flatten().tolist() == [3, 5]
        assert not choice.command.any() and not choice.velocity[[3, 5]].any()


def test_validation_predicts_the_same_collisions(field: Field) -> None:
    flight = Flight(field)
    action, life = flight.action(), flight.env._drone_state
    now = flight.judge(action)
    past = flight.gate.validate(
        life["position"], life["yaw"].squeeze(1), life["velocity"], action, flight.gate.scenes(flight.rows)
    )
    assert (now.collides == past.collides).float().mean() > 0.9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--gate"], "add --scene FILE"),
        (["--set", "gate.threshold=0"], "add --gate --scene FILE"),
        (["--set", "training.batch_size=64"], "add --learn"),
        (["--scene", "apartment:3", "--learn", "--set", "training.shadow_evaluation=5"], "add --gate"),
        (
            ["--set", "training.batch_size=64", "--set", "gat.threshold=0"],
            "--set gat; only gate.… and training.… can be set here",
        ),
    ],
)
def test_settings_without_effect_are_refused(given, message):
    done = CliRunner().invoke(build_app(groups=("serve",), plugins=False), ["serve", *given])
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)


@pytest.mark.parametrize("profile", ["lidar", "camera"])
def test_drones_with_a_limited_sensor_are_localised(field: Field, profile: str) -> None:
    config = CONFIG.model_copy(update={"sensor": SensorConfig(profiles=(profile,))})
    env = NavigationEnv(field, ROWS, config)
    gate = RolloutGate(field, config, GateConfig(), capacity=ROWS)
    obs, state = env.reset(), env.drone_state()
    drones = DroneState(torch.arange(ROWS), state["position"], state["yaw"], state["velocity"], obs)
    assert torch.equal(gate.begin(drones), env.poses()["scene_index"])
    gate.remember(drones)
    assert gate.judge(drones, torch.zeros(ROWS, 4)).send.any()
    blind = obs.clone()
    blind[:, 0], blind[:, 2] = 0.0, 0.0
    assert (gate.begin(replace(drones, obs=blind)) == -1).all()


def test_gate_flies_the_largest_and_fastest_of_the_bodies(field: Field) -> None:
    plain = RolloutGate(field, CONFIG, capacity=1)
    bodies = BodiesConfig(speed=(0.5, 2.0), radius=(0.1, 0.3))
    drawn = RolloutGate(field, CONFIG.model_copy(update={"bodies": bodies}), capacity=1)
    one, other = (gate._outlook._horizon.config for gate in (plain, drawn))
    assert other.radius == pytest.approx(one.radius + 0.15)
    assert other.max_speed == tuple(2.0 * limit for limit in one.max_speed)
    assert other.max_yaw_rate == 2.0 * one.max_yaw_rate
