"""Colliding motions are proposed again slower; only those without a free speed hover."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from navi_core.bench.service.gate import GatedFlyer, run_gated_flight
from navi_core.config import EnvConfig, EvalConfig, GateConfig
from navi_core.evaluate import build_course, evaluate
from navi_core.evaluate.flight.subjects import resolve_subject
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.service.wire.sockets import Subscriber
from navi_core.world import Field, NavigationEnv
from tests.conftest import fly_ahead
from tests.models.conftest import make_checkpoint  # noqa: F401 - a fixture
from tests.service.conftest import SMALL, tiny_model, until
from tests.service.test_gate import CONFIG, ROWS, Flight

SHARES = (0.75, 0.5, 0.25, 0.1, 0.0)


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


def asked(flight: Flight, action: torch.Tensor, slower=SHARES):
    return choose_action(flight.gate, flight.situation(), action, slower)


def judged(flight: Flight, action: torch.Tensor):
    """Judge motions of a situation that is remembered already."""
    return flight.gate.judge(flight.situation(), action)


def test_fastest_collision_free_fraction_is_flown(field: Field) -> None:
    seen = {share: 0 for share in SHARES}
    for seed in range(6):
        flight = Flight(field, seed=seed, threshold=-10.0)
        for _ in range(5):
            flight.step(flight.action())
        action = 1.5 * flight.action()  # beyond the limits, as a policy's may be
        choice = asked(flight, action)
        verdict, command, first = choice.flown, choice.command, judged(flight, action)
        tried = {share: judged(flight, scaled(action, share)) for share in SHARES}
        for row in range(ROWS):
            wanted, share = first, None
            if first.collides[row]:
                share = next((share for share in SHARES if not tried[share].collides[row]), None)
                wanted = first if share is None else tried[share]
            flown = action[row] if share is None else scaled(action, share)[row]
            seen.update({share: seen.get(share, 0) + 1})
            assert verdict.send[row] == wanted.send[row] == (~wanted.collides[row])
            assert torch.equal(command[row], flown if wanted.send[row] else torch.zeros(4))
            for name in ("expected_reward", "velocity", "collides"):
                torch.testing.assert_close(getattr(verdict, name)[row], getattr(wanted, name)[row], rtol=0, atol=1e-5)
            torch.testing.assert_close(verdict.components["novelty"][row], wanted.components["novelty"][row])
            # The proposal counts as sent only if it is flown unscaled; its other fields are the gate's verdict.
            assert choice.proposed.send[row] == (share is None and verdict.send[row])
        assert torch.equal(choice.proposed.collides, first.collides)
        assert torch.equal(choice.proposed.expected_reward, first.expected_reward)
        assert torch.equal(choice.velocity, torch.where(verdict.send[:, None], verdict.velocity, 0.0))
    assert min(seen.values()) > 0 and seen[None] > 50


def scaled(action: torch.Tensor, share: float) -> torch.Tensor:
    return action.clamp(-1.0, 1.0) * torch.tensor([share, share, share, 1.0])


def test_low_reward_motion_is_sent_unless_hovering_earns_more(field: Field) -> None:
    """In a house without a ceiling every pose costs starvation, and a threshold of zero would hold all motions."""
    flight = Flight(field, seed=4, threshold=100.0)
    action = flight.action()
    verdict = asked(flight, action).flown
    hover = judged(flight, torch.zeros(ROWS, 4))
    wanted = ~verdict.collides & (verdict.expected_reward >= hover.expected_reward)
    assert torch.equal(verdict.send, wanted) and wanted.any()
    assert bool((hover.expected_reward > verdict.expected_reward).any()) is not bool(wanted.all())
    assert not asked(flight, action, ()).flown.send.any()


def test_drone_state_is_remembered_once_per_decision(field: Field) -> None:
    asking, twin = (Flight(field, seed=4, threshold=100.0) for _ in range(2))
    choice = asked(asking, asking.action())
    assert (choice.flown.send & ~choice.proposed.send).any() and choice.proposed.send.any()
    twin.gate.remember(twin.situation())
    assert torch.equal(asking.gate._past.visits, twin.gate._past.visits)
    assert torch.equal(asking.gate._past.seen, twin.gate._past.seen)


def test_colliding_motion_hovers_without_slower_shares(field: Field) -> None:
    flight = Flight(field, seed=3)
    action = flight.action()
    choice = asked(flight, action, ())
    first = judged(flight, action)
    assert first.collides.any() and torch.equal(choice.flown.send, first.send) and choice.proposed is choice.flown
    assert not choice.command[~first.send].any() and torch.equal(choice.command[first.send], action[first.send])


def test_drone_in_unknown_scene_waits_for_any_action(field: Field) -> None:
    flight = Flight(field, seed=3)
    flight.gate._scene[:] = -1
    choice = asked(flight, flight.action())
    assert not choice.flown.send.any() and not choice.proposed.send.any() and not choice.command.any()


def travelled(result) -> float:
    """Return the mean length of the flights [m]."""
    return sum(float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum()) for path in result.trajectories) / 3


def test_deterministic_policy_makes_progress_behind_the_gate(apartments) -> None:
    config = EvalConfig(starts=3, max_steps=60, azimuth_bins=64, elevation_bins=16, block=4)
    course = build_course(apartments[:1], config)
    env = EnvConfig(azimuth_bins=64, elevation_bins=16)
    free = travelled(evaluate("forward-plus", course))
    paths = {}
    for slower in ((), SHARES):
        subject = resolve_subject("forward-plus", config)
        gated = GatedFlyer(subject.flyer, env, GateConfig(slower=slower))
        result = evaluate(replace(subject, flyer=gated), course)
        paths[slower] = travelled(result)
        assert result.summary["collisions_per_minute"] == 0.0
        # Three starts in a block of four: the fourth row is unused.
        assert [len(column) for column in gated.outcomes(result)] == [60, 60, 60]
    assert paths[SHARES] > 0.6 * free > 1.5 * paths[()]


def test_gated_flight_compares_three_gate_modes(make_checkpoint, apartments) -> None:  # noqa: F811
    rows = run_gated_flight(make_checkpoint("p.pt"), EnvConfig(), None, apartments[:1], starts=2, steps=12)
    without, hovers, served = rows
    assert [row["flown"] for row in rows] == ["without", "gate, hovers", "gate"] and without["episodes"] == 2
    assert without["wait"] == without["slower"] == without["longest"] == without["difference"] == 0.0
    assert hovers["slower"] == 0.0 and hovers["wait"] == hovers["stands"]
    assert (
        served["score"] - without["score"] == pytest.approx(served["difference"])
        and served["low"] <= served["difference"]
    )


def test_actor_sends_colliding_motion_slower(stage) -> None:
    model = tiny_model()
    fly_ahead(model.runner.policy)
    gate = RolloutGate(stage.field, SMALL, GateConfig(threshold=-10.0), capacity=64)
    actor = stage.actor(stage.environment(SMALL.model_copy(update={"max_steps": 400}), sessions=2), model, gate=gate)
    reader, flown = Subscriber([actor.publisher.endpoint], ["action_v2"]), set()

    def slowed() -> bool:
        message = reader.receive(0.1)
        flown.update([] if message is None else [round(float(message.linear_velocity[0, 0]), 4)])
        return 0.0 in flown and len(flown) >= 3

    until(slowed)
    reader.close()
    full = math.tanh(3.0)
    wanted = {round(full * share, 4) for share in (1.0, *SHARES)}
    assert flown <= wanted and actor.metrics.counter("gate_slowed_total") > 0


def test_gated_flight_never_collides(field: Field) -> None:
    env = NavigationEnv(field, ROWS, CONFIG, seed=9)
    gate = RolloutGate(field, CONFIG, GateConfig(threshold=-10.0), capacity=ROWS)
    rows, draws = torch.arange(ROWS), torch.Generator().manual_seed(9)
    obs, velocity, start = env.reset(), torch.zeros(ROWS, 4), env.poses()
    gate.begin(DroneState(rows, start["position"], start["yaw"], velocity, obs))
    hits = 0
    for _ in range(60):
        pose, action = env.poses(), torch.rand(ROWS, 4, generator=draws) * 2 - 1
        choice = choose_action(gate, DroneState(rows, pose["position"], pose["yaw"], velocity, obs), action, SHARES)
        batch = env.step(choice.command)
        velocity, obs = choice.velocity, batch.obs
        hits += int(batch.info["collision"].sum())
    assert hits == 0
