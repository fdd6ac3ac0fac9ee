"""A motion that would collide is proposed again, slower; only what passes no way hovers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from navi_core.bench.gated_flight import GatedFlyer
from navi_core.config import EnvConfig, EvalConfig, GateConfig
from navi_core.evaluate import build_course, evaluate
from navi_core.evaluate.subjects import resolve_subject
from navi_core.service.gate import RolloutGate
from navi_core.service.proposals import propose, velocity_after
from navi_core.world import Field, NavigationEnv
from tests.service.test_gate import CONFIG, ROWS, Flight

SHARES = (0.75, 0.5, 0.25, 0.0)


@pytest.fixture(scope="module")
def field(apartments) -> Field:
    return Field(apartments)


def asked(flight: Flight, action: torch.Tensor, slower=SHARES):
    life = {name: flight.env._life[name].clone() for name in ("position", "yaw", "velocity")}
    moving = (life["position"], life["yaw"].squeeze(1), life["velocity"])
    return propose(flight.gate, flight.rows, *moving, action, flight.obs, slower)


def test_the_fastest_share_that_does_not_collide_is_flown(field: Field) -> None:
    seen = {share: 0 for share in SHARES}
    for seed in range(6):
        flight = Flight(field, seed=seed, threshold=-10.0)
        for _ in range(5):
            flight.step(flight.action())
        action = 1.5 * flight.action()  # beyond the limits, as a policy's may be
        first = flight.judge(action, remember=False)
        tried = {share: flight.judge(scaled(action, share), remember=False) for share in SHARES}
        verdict, command = asked(flight, action)
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
        assert torch.equal(velocity_after(verdict)[~verdict.send], torch.zeros(int((~verdict.send).sum()), 4))
    assert min(seen.values()) > 0 and seen[None] > 50


def scaled(action: torch.Tensor, share: float) -> torch.Tensor:
    return action.clamp(-1.0, 1.0) * torch.tensor([share, share, share, 1.0])


def test_without_shares_what_would_collide_hovers(field: Field) -> None:
    flight = Flight(field, seed=3)
    action = flight.action()
    judged = flight.judge(action, remember=False)
    verdict, command = asked(flight, action, ())
    assert judged.collides.any() and torch.equal(verdict.send, judged.send)
    assert not command[~judged.send].any() and torch.equal(command[judged.send], action[judged.send])


def test_a_drone_in_no_known_scene_waits_whatever_is_proposed(field: Field) -> None:
    flight = Flight(field, seed=3)
    flight.gate._scene[:] = -1
    verdict, command = asked(flight, flight.action())
    assert not verdict.send.any() and not command.any()


def travelled(result) -> float:
    """Return the mean length of the flights [m]."""
    return sum(float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum()) for path in result.trajectories) / 3


def test_who_decides_the_same_in_the_same_place_gets_on_behind_the_gate(apartments) -> None:
    config = EvalConfig(starts=3, max_steps=60, azimuth_bins=64, elevation_bins=16, block=4)
    course = build_course(apartments[:1], config)
    env = EnvConfig(azimuth_bins=64, elevation_bins=16)
    free = travelled(evaluate("forward-plus", course))
    waits, paths = {}, {}
    for slower in ((), SHARES):
        subject = resolve_subject("forward-plus", config)
        gated = GatedFlyer(subject.flyer, env, GateConfig(slower=slower))
        result = evaluate(replace(subject, flyer=gated), course)
        waits[slower], paths[slower] = gated.waits / gated.decisions, travelled(result)
        assert result.summary["collisions_per_minute"] == 0.0
    assert waits[()] > 0.3 and waits[SHARES] < 0.05
    assert paths[SHARES] > 0.6 * free > 1.5 * paths[()]


def test_a_flight_behind_the_gate_never_collides_however_it_was_proposed(field: Field) -> None:
    env = NavigationEnv(field, ROWS, CONFIG, seed=9)
    gate = RolloutGate(field, CONFIG, GateConfig(threshold=-10.0), capacity=ROWS)
    rows, draws = torch.arange(ROWS), torch.Generator().manual_seed(9)
    obs, velocity, pose = env.reset(), torch.zeros(ROWS, 4), env.poses()
    gate.begin(rows, pose["position"], pose["yaw"], obs)
    hits = 0
    for _ in range(60):
        pose, action = env.poses(), torch.rand(ROWS, 4, generator=draws) * 2 - 1
        verdict, command = propose(gate, rows, pose["position"], pose["yaw"], velocity, action, obs, SHARES)
        batch = env.step(command)
        velocity, obs = velocity_after(verdict), batch.obs
        hits += int(batch.info["collision"].sum())
    assert hits <= 2
