"""The run loop: equal runs, resume, signals, checkpoints, rows and stops."""

import json
import logging
import os
import signal
from pathlib import Path

import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import CheckpointError, NonFiniteError, RecordError
from navi_core.learn import train
from navi_core.learn.run.checkpoints import checkpoints_in
from navi_core.models import load_checkpoint
from navi_core.record import MetricLog, RunDirectory
from navi_core.record.events import EventBus, UpdateMade
from tests.learn.toy_environments import MixedEndingsEnv, PoisonEnv

ROWS = 4
TIMES = {"sps", "env_ms", "ppo_update_ms", "zero_wait_ratio"}
NAMES = [
    "reward_ema",
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "total_loss",
    "rnd_loss",
    "beta",
    "grad_norm",
    "sps",
    "env_ms",
    "ppo_update_ms",
    "zero_wait_ratio",
    "episode_return",
    "episode_length",
    "parity_ratio",
    "parity_value",
]


def make_config(**changes) -> TrainConfig:
    data = {
        "actors": ROWS,
        "seed": 5,
        "threads": 1,
        "device": "cpu",
        "total_steps": ROWS * 16 * 5,
        "checkpoint_every": ROWS * 16 * 2,
        "env": {"azimuth_bins": 16, "elevation_bins": 8},
        "policy": {"encoder": "ring_cnn", "core": "gru", "azimuth_bins": 16, "elevation_bins": 8, "aux": "full"},
        "shaper": {"loop_coefficient": 0.5, "memory_exclusion": 2, "memory_capacity": 400},
        "ppo": {"rollout": 16, "bptt": 8, "minibatch": 4, "epochs": 2, "learning_rate": 1e-3},
    }
    for key, value in changes.items():
        data[key] = data[key] | value if isinstance(value, dict) else value
    return parse_config(TrainConfig, data)


def fly(root: Path, config: TrainConfig, *, env=None, fresh=False, **kw):
    """One start of a run; returns the result and the metric rows that were acknowledged."""
    outbox = root / "outbox"
    with RunDirectory.open(root / "runs", asset="toy", partition="p", config=config) as run:
        log = run.metric_log(outbox)
        result = train(config, run, env=env or MixedEndingsEnv(ROWS), log=log, fresh=fresh, **kw)
    return result, rows_in(outbox)


def rows_in(outbox: Path) -> dict[tuple[int, str], float]:
    rows = {}
    for file in sorted(outbox.glob("*-metrics.ndjson")):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)
            rows[row["step"], row["name"]] = row["value"]
    return rows


def untimed(rows: dict) -> dict:
    return {key: value for key, value in rows.items() if key[1] not in TIMES}


def same_weights(a: Path, b: Path) -> bool:
    one, two = (load_checkpoint(path).policy_state for path in (a, b))
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def stopper(updates: int):
    """Stop callable and event bus that end a run after some updates of this start."""
    seen = []
    return {"stop": lambda: len(seen) >= updates, "events": EventBus({UpdateMade: seen.append})}


def test_metrics_carry_the_agreed_names(straight):
    result, rows = straight
    names = {name for _, name in rows}
    assert set(NAMES) <= names and "pay" in names
    assert {step for step, _ in rows} == {64, 128, 192, 256, 320}
    assert result.steps == 320 and result.updates == 5 and result.reason == "total_steps"
    assert result.reward_ema == rows[320, "reward_ema"]
    assert all(rows[s, "parity_ratio"] < 1e-4 and rows[s, "parity_value"] < 1e-4 for s, n in rows if n == "sps")
    assert all(0.0 < value < 1.0 for (_, name), value in rows.items() if name == "zero_wait_ratio")


class Leaving(MixedEndingsEnv):
    """An environment whose cut episodes are cut by the void."""

    def step(self, actions):
        batch = super().step(actions)
        batch.info["void"] = batch.truncated.clone()
        return batch


@pytest.mark.parametrize("ends", ["truncated", "terminated"])
def test_a_run_warns_where_leaving_the_scene_is_not_penalised(ends, tmp_path, caplog):
    fly(tmp_path, make_config(total_steps=ROWS * 16, env={"void_ends": ends}), env=Leaving(ROWS))
    assert ("set env.void_ends=terminated" in caplog.text) is (ends == "truncated")


def test_equal_configurations_give_equal_runs(straight, tmp_path):
    torch.set_num_threads(3)
    again, rows = fly(tmp_path, make_config())
    assert untimed(rows) == untimed(straight[1])
    assert same_weights(again.checkpoint, straight[0].checkpoint)
    assert torch.get_num_threads() == 3  # those of the program that trains


def test_another_seed_gives_another_run(straight, tmp_path):
    other, rows = fly(tmp_path, make_config(seed=6))
    assert untimed(rows) != untimed(straight[1])
    assert not same_weights(other.checkpoint, straight[0].checkpoint)


@pytest.mark.parametrize("core", ["gru", "mamba2"])
def test_resumed_run_equals_straight_run(core, straight, tmp_path):
    config = make_config(policy={"core": core})
    whole = straight if core == "gru" else fly(tmp_path / "whole", config)
    first, _ = fly(tmp_path / "parts", config, **stopper(2))
    assert (first.reason, first.steps) == ("stopped", 128)
    second, _ = fly(tmp_path / "parts", config, **stopper(1))
    assert (second.resumed_from, second.steps) == (128, 192)
    last, rows = fly(tmp_path / "parts", config)
    assert (last.resumed_from, last.steps, last.reason) == (192, 320, "total_steps")
    assert untimed(rows) == untimed(whole[1])
    assert same_weights(last.checkpoint, whole[0].checkpoint)
    assert last.episodes == whole[0].episodes


def test_torchs_own_generator_is_seeded_and_resumed(tmp_path):
    """Navi draws from generators of its own; a custom part may draw from torch's."""

    def drawn(root, updates=10):
        values = []
        events = EventBus({UpdateMade: lambda _: values.append(torch.rand(1).item())})
        torch.manual_seed(len(str(root)))
        result, _ = fly(root, make_config(), stop=lambda: len(values) >= updates, events=events)
        return values, load_checkpoint(result.checkpoint).rng["torch"]

    values, state = drawn(tmp_path / "whole")
    first, _ = drawn(tmp_path / "parts", 2)
    rest, last = drawn(tmp_path / "parts")
    assert first + rest == values and len(values) == 5 and torch.equal(last, state)


def test_a_stop_inside_a_rollout_keeps_the_state_before_it(straight, tmp_path):
    calls = []
    first, _ = fly(tmp_path, make_config(), stop=lambda: calls.append(0) or len(calls) > 25)
    assert first.steps == 64
    last, rows = fly(tmp_path, make_config())
    assert untimed(rows) == untimed(straight[1])
    assert same_weights(last.checkpoint, straight[0].checkpoint)


def test_a_signal_stops_cleanly_and_restores_the_handlers(tmp_path, capfd):
    before = signal.getsignal(signal.SIGTERM)
    result, _ = fly(
        tmp_path,
        make_config(),
        events=EventBus({UpdateMade: lambda p: p.updates == 2 and os.kill(os.getpid(), signal.SIGTERM)}),
    )
    assert (result.reason, result.steps) == ("SIGTERM", 128)
    assert result.checkpoint.exists()
    assert signal.getsignal(signal.SIGTERM) is before
    assert "SIGTERM: an update under way is finished, then a checkpoint is written; once more" in capfd.readouterr().err


def test_decisions_beyond_total_steps_are_logged(tmp_path, caplog):
    """A rollout is flown whole."""
    with caplog.at_level("INFO", logger="navi.learn"):
        result, _ = fly(tmp_path, make_config(total_steps=65))
    assert result.steps == 128 and "64 decisions each: 128 decisions are flown, not 65" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", logger="navi.learn"):
        fly(tmp_path / "even", make_config(total_steps=64))
    assert "decisions each" not in caplog.text
    assert (
        "progress is reported after each rollout and its update, 64 decisions" in caplog.text
    )  # minutes, with a large network


def test_a_finished_run_is_not_trained_again(straight, tmp_path):
    fly(tmp_path, make_config())
    again, rows = fly(tmp_path, make_config())
    assert again.resumed_from == 320 and again.metrics == {} and again.steps == 320
    assert untimed(rows) == untimed(straight[1])


def test_fresh_ignores_existing_checkpoints(tmp_path):
    fly(tmp_path, make_config(), **stopper(2))
    again, _ = fly(tmp_path, make_config(), fresh=True, **stopper(1))
    assert again.resumed_from is None and again.steps == 64


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty"])
def test_a_broken_last_checkpoint_falls_back_to_the_one_before(damage, straight, tmp_path, caplog):
    config = make_config()
    fly(tmp_path, config, **stopper(4))
    folder = next((tmp_path / "runs").glob("toy-*")) / "checkpoints"
    good, last = checkpoints_in(folder)[-2:] if len(checkpoints_in(folder)) > 1 else (None, checkpoints_in(folder)[-1])
    assert good is not None
    data = last.read_bytes()
    last.write_bytes({"truncated": data[: len(data) // 2], "overwritten": b"x" * len(data), "empty": b""}[damage])
    with caplog.at_level(logging.WARNING, logger="navi.learn"):
        result, rows = fly(tmp_path, config)
    assert any(last.name in r.getMessage() for r in caplog.records)
    assert result.resumed_from == int(good.stem.split("-")[1])
    assert untimed(rows) == untimed(straight[1])
    assert same_weights(result.checkpoint, straight[0].checkpoint)


def test_no_usable_checkpoint_is_an_error_not_a_silent_restart(tmp_path):
    config = make_config(checkpoint_every=10_000)
    fly(tmp_path, config, **stopper(1))
    folder = next((tmp_path / "runs").glob("toy-*")) / "checkpoints"
    for path in checkpoints_in(folder):
        path.write_bytes(b"")
    for _ in range(2):  # a checkpoint that the first start set aside stays so at the next
        with pytest.raises(CheckpointError, match=f"--fresh, or move {folder.parent} away"):
            fly(tmp_path, config)
    assert fly(tmp_path, config, fresh=True, **stopper(1))[0].resumed_from is None
    assert fly(tmp_path, config, **stopper(1))[0].resumed_from == ROWS * 16


def test_old_checkpoints_are_pruned(tmp_path):
    config = make_config(checkpoint_every=ROWS * 16, keep_checkpoints=2)
    result, _ = fly(tmp_path, config)
    kept = checkpoints_in(result.checkpoint.parent)
    assert [p.name for p in kept] == [f"step-{s:012d}.pt" for s in (192, 256, 320)]


def test_nan_stops_the_run_and_keeps_the_good_checkpoint(tmp_path):
    config = make_config(checkpoint_every=ROWS * 16)
    with pytest.raises(NonFiniteError, match="reward term pay"):
        fly(tmp_path, config, env=PoisonEnv(ROWS))
    folder = next((tmp_path / "runs").glob("toy-*")) / "checkpoints"
    assert [p.name for p in checkpoints_in(folder)] == [f"step-{s:012d}.pt" for s in (64, 128)]
    steps = {step for step, _ in rows_in(tmp_path / "outbox")}
    assert steps == {64, 128}


def test_rows_are_acknowledged_before_a_checkpoint_is_kept(tmp_path, monkeypatch):
    config = make_config(checkpoint_every=ROWS * 16)
    seen = []
    with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=config) as run:
        log = run.metric_log(tmp_path / "outbox")
        original = MetricLog.flush

        def full_disk(self):
            seen.append(len(checkpoints_in(run.checkpoints)))
            if any(rows for rows in self._rows.values()) and self._step == 128:
                raise RecordError("no space left on device")
            original(self)

        monkeypatch.setattr(MetricLog, "flush", full_disk)
        with pytest.raises(RecordError):
            train(config, run, env=MixedEndingsEnv(ROWS), log=log)
        assert [p.name for p in checkpoints_in(run.checkpoints)] == ["step-000000000064.pt"]
    assert {step for step, _ in rows_in(tmp_path / "outbox")} == {64}
