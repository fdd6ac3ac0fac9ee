"""Acting and learning never wait for a device, but where a whole rollout or update is over."""

import pytest
import torch

from navi_core.learn.rollout.collector import Collector
from tests.learn.builders import filled, small_config, small_parts
from tests.world.host_sync import HostSyncs

SHAPED = {"loop_coefficient": 0.5, "memory_exclusion": 2, "memory_capacity": 400}


def as_on_a_device(collector: Collector, rollout) -> None:
    """Take the paths that look at no values, although on the CPU they may."""
    rollout.terminal.looks = False
    if collector.shaper.memory is not None:
        collector.shaper.memory._looks = False


@pytest.mark.parametrize("core", ["gru", "mamba2"])
@pytest.mark.parametrize("storage", ["full", "compact"])
def test_decision_makes_no_host_synchronisation(core, storage, monkeypatch):
    config = small_config(core, shaper=SHAPED, storage=storage)
    collector, _ = small_parts(config)
    rollout = collector.new_rollout(32, 8)
    as_on_a_device(collector, rollout)
    collector.collect(rollout)
    with HostSyncs() as syncs:
        collector.collect(rollout)
    # The cores look at resets on the CPU alone, and the toy environment makes its constants anew.
    ours = [line for line in syncs.found if "/cores/" not in line and "toy_environments" not in line]
    assert [line for line in ours if "collector.py" in line.split(" < ")[0]] == [ours[-1]], ours
    assert "tolist" in ours[-1], "one packed copy a rollout"
    # Each is found twice, as a method and as an operator: the buffer of 64 might be full after 10 decisions.
    assert all("storage.py" in line for line in ours[:-1]) and len(ours[:-1]) <= 2 * 4, ours


@pytest.mark.parametrize("core", ["gru", "mamba2"])
def test_sync_free_path_keeps_the_same_endings(core):
    config = small_config(core, shaper=SHAPED)
    made = []
    for blind in (False, True):
        collector, _ = small_parts(config)
        rollout = collector.new_rollout(32, 8)
        if blind:
            as_on_a_device(collector, rollout)
        for _ in range(2):
            collector.collect(rollout)
        made.append(rollout)
    assert made[0].truncated.any()
    for name in ("bootstrap_values", "rewards", "values"):
        torch.testing.assert_close(getattr(made[0], name), getattr(made[1], name), rtol=0, atol=1e-6)


def test_truncated_rows_are_valued_in_one_batch_size(monkeypatch):
    """On a device some kernels are planned again for each new batch size."""
    collector, _ = small_parts(small_config("gru", shaper=SHAPED))
    rollout, sizes = collector.new_rollout(32, 8), []
    as_on_a_device(collector, rollout)
    value = collector.policy.value

    def counted(obs, aux, state):
        sizes.append(len(obs))
        return value(obs, aux, state)

    monkeypatch.setattr(collector.policy, "value", counted)
    collector.collect(rollout)
    assert len(sizes) > 2 and set(sizes) == {collector.rows}


@pytest.mark.parametrize("order", ["shuffled", "advantage", "sequential"])
def test_an_update_makes_one_packed_copy(order):
    config = small_config(ppo={"order": order, "target_kl": None, "rho_clip": 1.0}, shaper={"rnd_start": 0.5})
    collector, learner = small_parts(config)
    rollout = filled(collector)
    rollout.estimate_advantages = lambda **_: None  # the CPU's kernel works on host memory by definition
    with HostSyncs() as syncs:
        learner.update(rollout, index=0, steps=0)
    ours = [line for line in syncs.found if "/cores/" not in line]
    assert len(ours) == 1 and "tolist" in ours[0], ours


def test_a_kl_stop_reads_one_number_between_epochs():
    config = small_config(ppo={"epochs": 3, "target_kl": 1e9})
    collector, learner = small_parts(config)
    rollout = filled(collector)
    rollout.estimate_advantages = lambda **_: None
    with HostSyncs() as syncs:
        learner.update(rollout, index=0, steps=0)
    ours = [line for line in syncs.found if "/cores/" not in line]
    assert len([x for x in ours if "tolist" in x]) == 1 and len([x for x in ours if "float" in x]) == 2
    assert len(ours) <= 5
