"""Start weights of a night when `latest` is an experiment."""

from itertools import count

import pytest
import torch

from navi_core.models import Checkpoint, Registry, save_checkpoint
from navi_core.policy import build_policy
from navi_core.presets import resolve_config
from navi_core.record import navi_home
from navi_pipeline.lib.corpus.scenes import write_corpus
from navi_pipeline.lib.nightly.night import Night, nightly_config
from navi_pipeline.lib.nightly.preflight import preflight


def version(run_id, reward=0.1, **flags):
    """Register a version of the profile quick with other settings."""
    config = resolve_config(preset="quick", flags=flags)
    file = navi_home() / "made.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    policy = build_policy(config.policy, len(Registry(navi_home() / "models").list()))
    state = Checkpoint.of(
        policy=policy,
        optimizer=torch.optim.SGD(policy.parameters(), 0.1),
        config=config,
        step_id=64,
        episode_count=64,
        reward_ema=reward,
        run_id=run_id,
        wall_time_hours=0.1,
    )
    save_checkpoint(file, state)
    return Registry(navi_home() / "models").register(file)


@pytest.fixture
def begins(tmp_path):
    """Return the gate `weights` of a night's preflight and the version that its trainer starts from."""
    scene = tmp_path / "a.gmdag"
    scene.touch()
    write_corpus([{"name": split, "split": split, "gmdag": str(scene)} for split in ("train", "validation", "test")])

    numbers = count()

    def look(**settings):
        assignments = [f"{name}={value}" for name, value in settings.items()]
        night = Night(nightly_config(minutes=1, assignments=assignments), f"n{next(numbers)}", report=lambda line: None)
        stage = night.run("preflight", preflight)
        assert {"hardware", "revision"} <= set(stage.data)
        assert stage.status in ("passed", "warned"), stage.gates
        gate = next(gate for gate in stage.gates if gate.name == "weights")
        return gate, night.data("preflight")["start"]

    return look


def test_night_starts_from_latest_if_compatible(begins):
    assert begins()[1] == "none"
    made = version("interactive-quick-1")
    gate, init = begins()
    assert gate.passed and init == made and "latest" in gate.detail
    assert begins(fresh="true")[1] == "none"


def test_incompatible_latest_is_skipped_for_the_last_night_version(begins):
    ours = version("nightly-2026-01-01-training-1")
    theirs = version("interactive-experiment-1", reward=9.0, policy={"core": "mamba2"})
    assert Registry(navi_home() / "models").aliases()["latest"] == theirs
    gate, init = begins()
    assert init == ours and not gate.passed and not gate.hard
    assert f"begins with {ours}, made by a night; passed over: {theirs} (latest) is another network" in gate.detail


def test_latest_with_other_rewards_is_skipped_for_the_champion(begins):
    ours = version("ppo_policy-quick-1")
    Registry(navi_home() / "models").promote(ours)
    theirs = version("interactive-experiment-1", shaper={"existential_tax": -0.5})
    assert Registry(navi_home() / "models").aliases()["latest"] == theirs
    gate, init = begins()
    assert init == ours and f"{theirs} (latest) was paid for something else" in gate.detail


def test_night_with_new_rewards_starts_from_the_previous_night(begins):
    ours = version("nightly-2026-01-01-training-1", shaper={"existential_tax": -0.5})
    assert begins()[1] == ours


def test_no_compatible_version_gives_new_weights_and_a_warning(begins):
    theirs = version("nightly-2026-01-01-training-1", policy={"core": "mamba2"})
    gate, init = begins()
    assert init == "none" and not gate.passed and gate.detail.count(theirs) == 1


def test_latest_moved_after_the_preflight_is_ignored(begins):
    made = version("interactive-quick-1")
    _, init = begins()
    version("interactive-experiment-1", reward=9.0, policy={"core": "mamba2"})
    assert init == made


def test_unreadable_registry_fails_the_gate_and_keeps_the_others(begins):
    version("interactive-quick-1")
    for file in (navi_home() / "models").glob("*.json*"):
        file.write_text("{")
    night = Night(nightly_config(minutes=1), "n", report=lambda line: None)
    stage = night.run("preflight", preflight)
    failed = [gate for gate in stage.gates if gate.hard and not gate.passed]
    assert [gate.name for gate in failed] == ["weights"] and "start" not in stage.data
    assert {"nobody trains", "native kernels"} <= {gate.name for gate in stage.gates}


def test_version_with_a_missing_file_is_skipped(begins):
    made = version("interactive-quick-1")
    (navi_home() / "models" / f"{made}.pt").unlink()
    gate, init = begins()
    assert init == "none" and f"{made} (latest) cannot be read" in gate.detail
