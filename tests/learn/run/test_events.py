"""Events of runs and services: every kind reaches the table, callbacks and viewers; a kill loses and doubles none."""

import json
from pathlib import Path

import pytest

from navi_core.config import ContinuousTrainingConfig, EnvConfig, GateConfig
from navi_core.learn import Event, EventBus, UpdateMade
from navi_core.learn.events import AdaptationApplied, EarlyStopTriggered
from navi_core.models import load_checkpoint
from navi_core.record import navi_home
from navi_core.record.events import CALLBACKS, ENTITIES, event_row, read_entity
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.flight_learning import FlightLearning
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.config.walk import TIMED
from tests.learn.algorithms.test_dqn import fly, make_config
from tests.own_parts import forgotten
from tests.scale.test_apex import apex_config, fly_apex, watched
from tests.service.conftest import flown_field, stage, tiny_model, until  # noqa: F401 (fixtures)

ADAPTED = {"adaptation": {"enabled": True, "min_dwell": 1}, "kernel_smoothing": {"enabled": True, "k": 4}}
STOPPING = {"enabled": True, "eval_interval": 64, "patience": 4, "plateau_threshold": 0.99, "reward_ema_beta": 0.0}
STOPPED = ADAPTED | {"early_stopping": STOPPING | {"hysteresis_pct": 0.0}, "total_steps": 64 * 40}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    yield from forgotten(monkeypatch, CALLBACKS)


def rows(root) -> list[tuple]:
    """Return kind, step and description of the event rows, those of the same key once, as ingest does."""
    found = {}
    for file in sorted((root / "outbox").glob("*-events.ndjson")):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)
            key = (row["step"], row["event"], row["recorded_at"])
            found[key] = (row["event"], row["step"], row["detail"], row.get("events"))
    return sorted(found.values(), key=str)


def test_killed_run_neither_loses_nor_doubles_event_rows(tmp_path):
    config = make_config(**ADAPTED, early_stopping={"eval_interval": 64, "reward_ema_beta": 0.0}, total_steps=64 * 10)
    fly(tmp_path / "whole", config)

    def kill(update: UpdateMade) -> None:
        if update.updates == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fly(tmp_path / "parts", config, events=EventBus({UpdateMade: kill}))
    fly(tmp_path / "parts", config)
    whole = rows(tmp_path / "whole")
    assert rows(tmp_path / "parts") == whole
    assert sum(row[3] for row in whole if row[0] == "update_made") == 10
    kinds = {row[0] for row in whole}
    assert kinds == {
        "rollout_collected", "update_made", "replay_update", "checkpoint_saved", "evaluation_made", "adaptation_applied"
    }  # fmt: skip


def test_guide_callback_receives_every_event_of_a_stopped_and_adapted_run(tmp_path, capsys):
    names: dict = {"__name__": "my_callbacks"}
    exec((Path(__file__).parents[3] / "examples/callback.py").read_text(), names)
    events: list[Event] = []
    result = fly(tmp_path, make_config(**STOPPED), events=EventBus({Event: events.append}))
    assert result.reason.startswith("early_stopping")
    assert sum(names["counts"].values()) == len(events) and set(names["counts"]) == {event.kind for event in events}
    printed = capsys.readouterr().out
    (stop,) = (event for event in events if isinstance(event, EarlyStopTriggered))
    assert f"decision {stop.step:,}: early_stop_triggered, plateau" in printed
    adapted = [event for event in events if isinstance(event, AdaptationApplied)]
    assert adapted and f"adaptation_applied, {adapted[0].reason}: " in printed
    for event in adapted:
        assert event.subject == result.run_id and event.step % 64 == 0 and event.before != event.after
        assert event.metrics_before.keys() == event.metrics_after.keys() >= {"td_mean", "td_var", "reward"}
    assert [event.step for event in events] == sorted(event.step for event in events)
    for event in events:
        plain = json.loads(json.dumps(event.as_dict()))
        assert read_entity(plain) == event and event_row(event)["event"] == event.kind


def test_failing_callback_changes_no_bit_of_a_run(tmp_path, caplog):
    plain = fly(tmp_path / "plain", make_config())
    broken = fly(tmp_path / "broken", make_config(), events=EventBus({Event: lambda event: 1 / 0}))
    assert {k: v for k, v in plain.metrics.items() if not k.endswith(TIMED)} == {
        k: v for k, v in broken.metrics.items() if not k.endswith(TIMED)
    }
    hashes = {load_checkpoint(result.checkpoint).weights_hash for result in (plain, broken)}
    assert len(hashes) == 1 and caplog.text.count("ZeroDivisionError") == 1


@pytest.mark.slow
def test_every_kind_of_event_is_in_the_warehouse(stage, tmp_path):  # noqa: F811
    home = navi_home()
    fly(home, make_config(**STOPPED))
    cluster, _ = watched({3: lambda here: here.actors.pop(1)})
    fly_apex(home, apex_config(), cluster=cluster)
    env = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=12)
    gate = RolloutGate(stage.field, env, GateConfig(), capacity=64)
    settings = {"training_interval": 0.02, "batch_size": 16, "min_batch_size": 4, "shadow_evaluation": 2}
    learning = FlightLearning(tiny_model(), ContinuousTrainingConfig(**settings), gate, outbox=home / "outbox")
    actor = stage.actor(stage.environment(sessions=4, seed=1), gate=gate, learning=learning, sample=True)
    until(lambda: learning.trainer.model_version >= 6 and learning.trainer.serving.version >= 2, 60)
    actor.stop()
    actor.thread.join(20)
    found = Warehouse().query("select kind, count(*) as n from events group by kind")
    assert set(found["kind"]) == {kind for kind, entity in ENTITIES.items() if issubclass(entity, Event)} - {"event"}
    services = Warehouse().query("select distinct kind from events where starts_with(run_id, 'service-')")["kind"]
    assert set(services) >= {"update_made", "replay_update", "evaluation_made", "parameter_sync"}
