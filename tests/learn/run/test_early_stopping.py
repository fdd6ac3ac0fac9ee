"""Stopping early: the cost by hand, patience and its band, trends, workers, entities, events, adaptation, and runs."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from navi_core.config import AdaptationConfig, EarlyStopConfig, TrainConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.learn import EarlyStopController
from navi_core.learn.estimators import drift_smoother
from navi_core.learn.estimators.noise import normals
from navi_core.learn.events import (
    AdaptationApplied,
    AGMConfig,
    AGMMetrics,
    EarlyStopDecision,
    EarlyStopTriggered,
    PopulationMetrics,
    SmoothingDecision,
)
from navi_core.learn.run.early_stopping import aggregate, early_stop_check, rising_trend, stop_cost
from navi_core.learn.run.monitor import Adapter, RunWatch, sign_changes
from navi_core.record.events import (
    ENTITIES,
    EvaluationMade,
    Event,
    EventBus,
    ParameterSync,
    ReplayUpdate,
    UpdateMade,
    read_entity,
)
from tests.learn.algorithms.test_dqn import collected, fly, make_config, parts

FLAT = (1.0, 0.0, 1.0, 10.0)


def test_the_cost_by_hand():
    assert stop_cost(1.0, 0.0, 1.0) == pytest.approx(1.0) and stop_cost(0.0, 1.0, 0.0) == 0.0
    controller = EarlyStopController(EarlyStopConfig(td_ema_beta=0.5, reward_ema_beta=0.0, hysteresis_pct=0.5))
    first = controller.update(2.0, 4.0, 0.75, 100.0).metrics
    assert first["td_distortion"] == pytest.approx(4 / (4 + 4)) and first["plateau_risk"] == 1.0
    assert first["cost"] == pytest.approx(0.3 * 0.5 + 0.5 * 0.25 + 0.2)
    second = controller.update(4.0, 0.0, 1.0, 110.0).metrics
    assert second["td_distortion"] == pytest.approx(2 / (2 + 9))
    assert second["plateau_risk"] == pytest.approx(10 / (0.5 * 110))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(0, 9), st.floats(0, 1), st.floats(-900, 900)), max_size=40))
def test_all_parts_stay_between_0_and_1_and_a_stop_is_final(evaluations):
    controller, stopped = EarlyStopController(EarlyStopConfig(patience=3)), None
    for evaluation in evaluations:
        decision = controller.update(*evaluation)
        assert stopped is None or decision is stopped
        parts = [decision.metrics[name] for name in ("td_distortion", "local_structure", "plateau_risk", "cost")]
        assert all(-1e-12 <= x <= 1 + 1e-12 for x in parts)
        assert decision.should_stop == (decision.patience_left == 0)
        stopped = decision if decision.should_stop else None


def test_patience_counts_holds_and_resets_by_band():
    config = EarlyStopConfig(plateau_threshold=0.5, hysteresis_pct=0.1)
    counts, count = [], 0
    for cost in (0.44, 0.44, 0.46, 0.54, 0.44, 0.56, 0.44):
        count = early_stop_check(cost, count, config)
        counts.append(count)
    assert counts == [1, 2, 2, 2, 3, 0, 1]


def test_a_plateau_ends_a_run_and_a_rising_reward_does_not():
    controller = EarlyStopController(EarlyStopConfig(patience=4))
    decisions = [controller.update(*FLAT) for _ in range(6)]
    assert [d.should_stop for d in decisions] == [False, False, False, True, True, True]
    assert decisions[3].reason == "plateau"
    rising = EarlyStopController(EarlyStopConfig(patience=4, plateau_threshold=0.1))
    assert not any(rising.update(0.0, 1e-9, 1.0, 10.0 * 1.2**i).should_stop for i in range(40))


def test_a_variance_at_its_floor_without_improvement_ends_a_run():
    config = EarlyStopConfig(patience=3, td_var_floor=1e-3, plateau_threshold=0.01)
    controller = EarlyStopController(config)
    decisions = [controller.update(0.0, 1e-4, 0.0, 5.0) for _ in range(4)]
    assert [d.should_stop for d in decisions] == [False, False, False, True] and "floor" in decisions[3].reason


def test_reward_slump_delays_the_stop_until_recovery():
    settings = {"patience": 3, "reward_ema_beta": 0.0}
    asked, plain = (EarlyStopController(EarlyStopConfig(slump=s, **settings)) for s in (0.1, None))
    rewards = [100.0, 100.0, 50.0, 50.0, 50.0, 89.0]
    assert not any(asked.update(0.0, 0.0, 1.0, reward).should_stop for reward in rewards)
    assert asked.update(0.0, 0.0, 1.0, 91.0).should_stop
    assert [plain.update(0.0, 0.0, 1.0, reward).should_stop for reward in rewards[:3]] == [False, False, True]


def test_a_run_that_has_not_begun_to_learn_goes_on():
    settings = {"patience": 3, "reward_ema_beta": 0.0}
    asked, plain = (EarlyStopController(EarlyStopConfig(rise=r, **settings)) for r in (0.1, None))
    floor = [-500.0] * 9 + [-450.0]
    decisions = [asked.update(0.0, 0.0, 1.0, reward) for reward in floor]
    assert not any(d.should_stop for d in decisions) and "not risen" in decisions[-1].reason
    assert plain.update(0.0, 0.0, 1.0, -500.0).patience_left == 2
    assert [plain.update(0.0, 0.0, 1.0, -500.0).should_stop for _ in range(3)] == [False, True, True]
    again = EarlyStopController(asked.config)
    again.load_state_dict(asked.state_dict())
    for controller in (asked, again):
        controller.update(0.0, 0.0, 1.0, -400.0)
        seen = [controller.update(0.0, 0.0, 1.0, -400.0).should_stop for _ in range(4)]
        assert seen[-1], "it has risen by more than a tenth of 500, and is flat again"


def test_a_trend_keeps_a_run_going():
    assert rising_trend([1, 2, 3, 4, 5, 6]) and not rising_trend([6, 5, 4, 3, 2, 1]) and not rising_trend([1, 1, 1, 1])
    # n = 5 ascending: S = 10, var = 5·4·15/18, z = 9/√16.67 = 2.20.
    assert rising_trend([1, 2, 3, 4, 5]) and not rising_trend([1, 2, 3])
    # n = 6: √var = 5.32; two pairs out of order leave S = 11, z = 1.88, three S = 9, z = 1.50.
    assert rising_trend([3, 1, 2, 4, 5, 6]) and not rising_trend([4, 1, 2, 3, 5, 6])
    # Too slow for the plateau's measure, and by the fourth evaluation a trend.
    slow = [10.0 + 0.001 * i for i in range(30)]
    for trend, stops in ((False, True), (True, False)):
        controller = EarlyStopController(EarlyStopConfig(patience=5, trend=trend, reward_ema_beta=0.0))
        assert any(controller.update(1.0, 0.0, 1.0, x).should_stop for x in slow) == stops


def test_worker_metrics_aggregate_by_median_or_trimmed_mean():
    config = EarlyStopConfig(aggregate="trimmed_mean", trim=0.2)
    assert aggregate([5.0, 1.0, 1000.0], EarlyStopConfig()) == 5.0 and aggregate([1.0, 3.0], EarlyStopConfig()) == 2.0
    assert aggregate([1.0, 2.0, 3.0, 4.0, 1000.0], config) == 3.0 and aggregate([7.0], config) == 7.0
    with pytest.raises(ConfigError, match="no worker"):
        EarlyStopController().update_population([])
    one, many = EarlyStopController(), EarlyStopController()
    single = one.update(*FLAT)
    assert many.update_population([FLAT, FLAT, (99.0, 99.0, 0.0, -99.0)]).metrics == single.metrics


def test_restored_controller_continues_equally():
    one, two = EarlyStopController(EarlyStopConfig(patience=5)), EarlyStopController(EarlyStopConfig(patience=5))
    for _ in range(3):
        one.update(*FLAT)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for _ in range(4):
        a, b = one.update(*FLAT), two.update(*FLAT)
        assert a == b
    assert a.should_stop
    two.load_state_dict(one.state_dict())
    assert two.stopped is not None and two.stopped.should_stop


@pytest.mark.parametrize("bad", [(math.nan, 0, 0, 0), (0, -1, 0, 0), (0, 0, 1.1, 0), (0, 0, 0, math.inf)])
def test_impossible_evaluations_are_refused(bad):
    with pytest.raises(ConfigError, match="allowed"):
        EarlyStopController().update(*bad)


METRICS = {"convergence_rate": 0.0, "mean_spread": 0.1, "oscillation_strength": 0.0, "iterations_used": 1,
           "timestamp": 1.0, "td_mean": 0.0, "td_var": 1.0, "q_rel_change": 0.0, "val_reward": 1.0}  # fmt: skip
MADE = [
    AGMConfig(0.15, 0.1, 16, 1e-3),
    AGMMetrics(**METRICS),
    SmoothingDecision(True, 0.15, 0.5, False, 1.0, (0.1, 0.2, 0.3), 0.05, 0.2),
    EarlyStopDecision(False, "waiting", 3, {"cost": 0.4}),
    PopulationMetrics(3, 0.0, 1.0, 0.5, 10.0),
    ParameterSync("run", 640, 0, 10, "ab12", 2, 3),
    ReplayUpdate("run", 64, 0, "added", 16, 48, 64, {"min": 0.1, "mean": 0.2, "max": 0.9}),
    AdaptationApplied("run", 64, AGMConfig(0.1, 0.1, 16, 1e-3), AGMConfig(0.2, 0.1, 16, 1e-3), "oscillation",
                      {"td_var": 2.0}, {"td_var": 1.0}),
    EarlyStopTriggered("run", 64, EarlyStopDecision(True, "plateau", 0, {"cost": 0.4}), 7),
]  # fmt: skip


@pytest.mark.parametrize("entity", MADE, ids=lambda e: type(e).__name__)
def test_entity_is_immutable_and_round_trips(entity):
    plain = json.loads(json.dumps(entity.as_dict()))
    assert read_entity(plain) == entity and ENTITIES[plain["kind"]] is type(entity)
    with pytest.raises(AttributeError):
        entity.version_ = 2
    with pytest.raises(ConfigError, match="version"):
        read_entity(plain | {"version": 99})
    with pytest.raises(ConfigError, match="fields"):
        read_entity(plain | {"extra": 1})
    with pytest.raises(ConfigError, match="agm_config"):
        read_entity(plain | {"kind": "nothing"})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AGMConfig(-0.1, 0.1, 16, 1e-3), "alpha_step"),
        (lambda: AGMConfig(0.1, 0.0, 16, 1e-3), "trust_region_tau"),
        (lambda: AGMConfig(0.1, 0.1, 0, 1e-3), r"\.k "),
        (lambda: AGMMetrics(**METRICS | {"td_var": -1.0}), "td_var"),
        (lambda: AGMMetrics(**METRICS | {"oscillation_strength": 1.5}), "oscillation_strength"),
        (lambda: AGMMetrics(**METRICS | {"val_reward": math.inf}), "val_reward"),
        (lambda: SmoothingDecision(True, 0.1, 1.5, False, 0.0, (0, 0, 0)), "tau_clip"),
        (lambda: SmoothingDecision(False, 0.0, 0.0, True, 0.0, (0, 0, 0), 1.0), "mean_step"),
        (lambda: SmoothingDecision(True, 0.1, 0.0, True, 0.0, (0, 0, 0)), "applied"),
        (lambda: EarlyStopDecision(True, "plateau", 2), "patience_left"),
        (lambda: EarlyStopDecision(False, "", 2), "reason"),
        (lambda: PopulationMetrics(0, 0.0, 0.0, 0.0, 0.0), "workers"),
        (lambda: ParameterSync("run", 0, 0, 1, "", 0, 1), "checksum"),
        (lambda: ReplayUpdate("run", 0, 0, "added", -1, 0, 0), "count"),
    ],
)
def test_entity_refuses_impossible_values(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_duplicate_entity_name_is_refused():
    with pytest.raises(ConfigError, match="entity 'agm_config' is taken"):
        type("AGMConfig", (AGMConfig,), {})


def test_event_bus_delivers_until_the_subscription_ends(caplog):
    stops, every = [], []
    bus = EventBus({Event: every.append, EarlyStopTriggered: lambda event: 1 / 0})
    leave = bus.subscribe(EarlyStopTriggered, stops.append)
    stop = EarlyStopTriggered("run", 64, EarlyStopDecision(True, "plateau", 0), 2)
    for event in (stop, stop, EvaluationMade("run", 64, "progress", {})):
        bus.publish(event)
    assert stops == [stop, stop] and len(every) == 3, "neither the failure of another subscriber nor its kind matters"
    leave()
    leave()
    bus.publish(stop)
    assert len(stops) == 2 and len(every) == 4
    assert [record.message for record in caplog.records] == [
        "a subscriber of early_stop_triggered failed; its later failures are not logged"
    ]


def test_adaptation_moves_within_its_bounds_and_then_rests():
    adapter = Adapter(AdaptationConfig(enabled=True, min_dwell=2))
    start = AGMConfig(0.15, 0.1, 16, 1e-3)
    swinging, still, falling = (
        AGMMetrics(**METRICS | change)
        for change in ({"oscillation_strength": 0.6}, {"convergence_rate": 0.0}, {"convergence_rate": 0.2})
    )
    reason, after = adapter.update(swinging, start)
    assert (reason, after) == ("oscillation", AGMConfig(0.15 * 1.05, 0.1, 17, 1e-3 * 0.95))
    assert adapter.update(still, after) is None and adapter.update(still, after) is None
    reason, grown = adapter.update(still, after)
    assert (grown.trust_region_tau, grown.learning_rate) == pytest.approx((0.105, 1e-3 * 0.95 * 1.05))
    assert reason == "standstill"
    edge = AGMConfig(0.01, 1.0, 64, 1e-5)
    assert Adapter(AdaptationConfig(enabled=True)).update(falling, edge) is None
    assert Adapter(AdaptationConfig(enabled=True)).update(swinging, edge)[1] == AGMConfig(0.0105, 1.0, 64, 1e-5)
    narrow = AdaptationConfig(enabled=True, tau_bounds=(0.01, 0.102), k_bounds=(4, 16))
    assert Adapter(narrow).update(still, start)[1].trust_region_tau == 0.102
    assert Adapter(narrow).update(swinging, start)[1].k == 16
    assert Adapter(AdaptationConfig()).update(swinging, start) is None, "off by default"


def test_the_oscillation_rate_counts_turns_above_the_noise():
    assert sign_changes([0, 1, 0, 1, 0]) == 1.0 and sign_changes([0, 1, 2, 3]) == 0.0
    assert sign_changes([0.0, 1.0, 0.999, 2.0, 3.0]) == 0.0, "a dip of a thousandth is noise"
    assert sign_changes([0, 2, 1, 3]) == 1.0 and sign_changes([1, 1]) == 0.0


def test_adaptation_counts_turns_of_the_smoothed_return(monkeypatch):
    """Of noise alone single evaluations turn two times in three, which would lower every learning rate."""
    stopping = {"eval_interval": 1, "reward_ema_beta": 0.5, "window": 4}
    config = make_config(adaptation={"enabled": True}, early_stopping=stopping)
    watch, learner = RunWatch(config, EventBus()), parts(config)[1]
    reported = []
    monkeypatch.setattr(watch.adapter, "update", lambda seen, now: reported.append(seen.oscillation_strength))
    rewards = [0.0, 8.0, 2.0, 10.0, 4.0, 12.0, 6.0]
    signs = {"td_mean": 1.0, "td_var": 1.0, "local_structure": 0.5}
    for step, reward in enumerate(rewards, 1):
        watch.after(step, signs | {"episode_return": reward}, learner)
    averages = [4.0, 3.0, 6.5, 5.25, 8.625, 7.3125]  # those of the window and two before it
    assert reported[-1] == sign_changes(averages)
    assert RunWatch(config, EventBus()).state_dict()["rewards"] == [] and watch.state_dict()["rewards"] == averages


def test_evaluations_are_eval_interval_decisions_apart():
    seen = []
    config = make_config(early_stopping={"enabled": True, "eval_interval": 100})
    watch = RunWatch(config, EventBus({EvaluationMade: lambda made: seen.append(made.step)}))
    for steps in range(40, 401, 40):
        metrics = {"td_mean": 1.0, "td_var": 1.0, "local_structure": 0.5, "episode_return": 1.0}
        watch.after(steps, metrics, None)
    assert seen == [120, 200, 320, 400]


@pytest.mark.slow
def test_updates_without_a_gradient_step_resume_bit_for_bit(tmp_path):
    """An update without a gradient step has no minibatch whose structure the controller could see, resumed or not."""
    config = make_config(
        dqn={"replay_ratio": 0.25},
        early_stopping={"enabled": True, "eval_interval": 64, "patience": 10_000},
        total_steps=64 * 10,
        checkpoint_every=10_000,
    )
    reported, seen = [], []
    whole = fly(tmp_path / "whole", config, events=EventBus({UpdateMade: reported.append}))
    fly(tmp_path / "parts", config, stop=lambda: len(seen) >= 4, events=EventBus({UpdateMade: seen.append}))
    fly(tmp_path / "parts", config, events=EventBus({UpdateMade: seen.append}))
    straight, resumed = ([m.metrics.get("stop_cost") for m in run] for run in (reported, seen))
    assert straight == resumed and sum(cost is not None for cost in straight) > 3, whole.reason


STOPPING = {"enabled": True, "eval_interval": 64, "patience": 1, "plateau_threshold": 0.99, "hysteresis_pct": 0.0}


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "grpo"])
def test_every_learner_may_be_stopped_early_and_stays_stopped(algorithm, tmp_path):
    rules = {"rollout": 16, "bptt": 8}
    config = make_config(algorithm=algorithm, total_steps=64 * 12, early_stopping=STOPPING, ppo=rules, grpo=rules)
    first = fly(tmp_path, config)
    assert first.reason.startswith("early_stopping") and first.steps < 64 * 12
    assert {"td_mean", "td_var", "local_structure", "stop_cost"} <= set(first.metrics)
    again = fly(tmp_path, config)
    assert (again.reason, again.steps) == (first.reason, first.steps) and again.metrics == {}


@pytest.mark.parametrize(
    ("where", "core"), [("td_targets", "none"), ("td_targets", "gru"), ("latents", "gru"), ("q_regulariser", "none")]
)
def test_smoothing_applies_in_every_place_and_is_reported(where, core, tmp_path):
    short = {"total_steps": 128, "checkpoint_every": 10_000}
    smoothing = {"enabled": True, "apply_to": where, "k": 4, "free_energy_weight": 1e-3}
    made = fly(tmp_path / "a", make_config(core, kernel_smoothing=smoothing, **short))
    plain = fly(tmp_path / "b", make_config(core, **short))
    figures = {name: made.metrics[name] for name in ("smoothed_share", "smoothing_step", "smoothing_clipped")}
    assert figures["smoothed_share"] == 1.0 and figures["smoothing_step"] > 0
    assert made.metrics["q_loss"] != plain.metrics["q_loss"]
    off = make_config(core, kernel_smoothing={"enabled": True, "apply_to": where, "alpha_step_init": 0.0}, **short)
    still = fly(tmp_path / "c", off)
    assert still.metrics["smoothed_share"] == 0.0 and still.metrics["q_loss"] == plain.metrics["q_loss"]


def test_each_gradient_step_draws_new_noise(monkeypatch):
    collector, learner = parts(make_config(kernel_smoothing={"enabled": True, "k": 4, "noise_std": 0.1}))
    asked = []
    monkeypatch.setattr(drift_smoother, "normals", lambda *a, **kw: asked.append(a[2:]) or normals(*a, **kw))
    learner.update(collected(collector), index=0, steps=0)
    assert learner.gradient_steps > 2 and len(set(asked)) == len(asked) == learner.gradient_steps


@pytest.mark.parametrize(("algorithm", "on"), [("ppo", False), ("grpo", False), ("dqn", True)])
def test_adaptation_switches_the_monitor_on_for_dqn_alone(algorithm, on):
    config = parse_config(TrainConfig, {"algorithm": algorithm, "adaptation": {"enabled": True}})
    assert RunWatch(config, EventBus()).on == on


def test_adapted_settings_survive_a_resume(tmp_path):
    config = make_config(
        adaptation={"enabled": True, "min_dwell": 1},
        early_stopping={"eval_interval": 64, "reward_ema_beta": 0.0},
        kernel_smoothing={"enabled": True, "k": 4},
        total_steps=64 * 8,
        checkpoint_every=10_000,
    )
    whole, seen = fly(tmp_path / "whole", config), []
    fly(tmp_path / "parts", config, stop=lambda: len(seen) >= 6, events=EventBus({UpdateMade: seen.append}))
    last = fly(tmp_path / "parts", config)
    assert last.metrics["learning_rate"] == whole.metrics["learning_rate"] != 3e-4
    assert last.metrics["q_loss"] == whole.metrics["q_loss"] and torch.isfinite(torch.tensor(last.metrics["q_loss"]))
