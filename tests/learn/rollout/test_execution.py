"""Other ways to carry out the same calls: bfloat16 products, compiled programs, graphs."""

import pytest
import torch

from navi_core.config import PolicyConfig
from navi_core.errors import ConfigError
from navi_core.learn import train
from navi_core.learn.rollout.execution import carried_out, check_execution
from navi_core.policy import build_policy
from navi_core.policy.navigation_policy import Trunk
from navi_core.record import RunDirectory
from tests.learn.builders import CPU, filled, small_config, small_parts, weights
from tests.learn.toy_environments import MixedEndingsEnv


@pytest.mark.parametrize("encoder", ["ring_cnn", "rayvit"])
def test_bfloat16_stays_in_the_encoder_and_near_single_precision(encoder):
    policy = build_policy(PolicyConfig(encoder=encoder, core="mamba2", azimuth_bins=16, elevation_bins=8))
    obs = torch.rand(4, 3, 16, 8)
    obs[:, 1] = torch.randint(0, 300, (4, 16, 8)).float()
    state, reset = policy.initial_state(4), torch.ones(4, dtype=torch.bool)
    full = policy.act(obs, torch.zeros(4, 3), state, reset, None)
    for module in policy.modules():
        if isinstance(module, Trunk):
            module.half_encoder = True
    half = policy.act(obs, torch.zeros(4, 3), state, reset, None)
    for out in (half.embedding, half.log_prob, half.value, *half.state):
        assert out.dtype == torch.float32
    assert not torch.equal(half.embedding, full.embedding)
    assert (half.embedding - full.embedding).abs().max() < 0.05 * full.embedding.abs().max()


def test_a_run_in_bfloat16_learns_with_acting_and_learning_alike(tmp_path):
    config = small_config(precision="bf16", total_steps=6 * 32 * 2)
    with RunDirectory.open(tmp_path / "runs", asset="toy", partition="p", config=config) as run:
        result = train(config, run, env=MixedEndingsEnv(6), log=run.metric_log(tmp_path / "outbox"))
    assert result.metrics["parity_ratio"] < 1e-2


def test_graph_execution_requires_cuda():
    config = small_config(execution="graph")
    with pytest.raises(ConfigError, match="eager or compile"):
        check_execution(config, CPU)
    policy = build_policy(config.policy)
    with pytest.raises(ConfigError, match="CUDA graphs"):
        carried_out(policy.act, config, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["gru", "mamba2"])
def test_compiled_equals_eager(core):
    made = []
    for execution in ("eager", "compile"):
        collector, learner = small_parts(small_config(core, execution=execution, ppo={"epochs": 1}))
        rollout = filled(collector)
        metrics = learner.update(rollout, index=0, steps=0).metrics
        assert metrics["parity_ratio"] < 1e-4
        made.append((rollout.log_probs.clone(), rollout.values.clone(), weights(learner)))
    (log_probs, values, one), (other, others, two) = made
    torch.testing.assert_close(other, log_probs, rtol=0, atol=1e-4)
    torch.testing.assert_close(others, values, rtol=0, atol=1e-4)
    assert max(float((a - b).abs().max()) for a, b in zip(one, two)) < 1e-3
