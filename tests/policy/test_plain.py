"""Plain forms of the cores for torch.compile: equal results, one graph."""

import pytest
import torch

from navi_core.config import PolicyConfig
from navi_core.policy import build_core, build_policy
from navi_core.policy.cores import Mamba2Block, gru, mamba2, mambapy, ssd

MODULES = {
    "plain_convolution": mamba2,
    "gated_norm": mamba2,
    "ssd_chunk": ssd,
    "gru_recurrence": gru,
    "selective_recurrence": mambapy,
}
MAMBA2 = {"plain_convolution", "ssd_chunk", "gated_norm"}
FORMS = {
    "mamba2": MAMBA2,
    "two groups": MAMBA2,
    "gru": {"gru_recurrence"},
    "mambapy": {"plain_convolution", "selective_recurrence"},
}


def gradients(module, call):
    """Outputs of a call, and the gradients of a loss that each of them is in."""
    module.zero_grad(set_to_none=True)
    out = call()
    sum((x * torch.linspace(0.5, 1.5, x.numel()).view_as(x)).sum() for x in out).backward()
    return [x.detach() for x in out], [p.grad.clone() for p in module.parameters() if p.grad is not None]


def assert_near(ours, theirs, bound):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert (a - b).abs().max() <= bound * b.abs().max().clamp_min(1e-6)


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("name", ["mamba2", "two groups", "gru", "mambapy"])
def test_plain_recurrences_equal_hand_written_ones(name, resets, monkeypatch):
    torch.manual_seed(0)
    core = Mamba2Block(128, groups=2, head_width=32) if name == "two groups" else build_core(name)
    x, reset = torch.randn(3, 70, 128), torch.rand(3, 70) < 0.1
    state = tuple(torch.randn_like(part).requires_grad_() for part in core.initial_state(3))

    def run():
        y, last = core(x, state, reset if resets else None)
        return y, *last

    called = set()
    for form, module in MODULES.items():
        twin = getattr(module, form)
        monkeypatch.setattr(module, form, lambda *given, form=form, twin=twin: (called.add(form), twin(*given))[1])
    made = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda answer=compiling: answer)
        for part in state:
            part.grad = None
        out, grads = gradients(core, run)
        made.append((out, grads, [part.grad for part in state]))
        assert called == (FORMS[name] if compiling else set())
    for ours, theirs in zip(made[1], made[0]):
        assert_near(ours, theirs, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "encoder"),
    [
        ("mamba2", "rayvit"),
        pytest.param("gru", "ring_cnn", marks=pytest.mark.slow),
        pytest.param("mambapy", "ring_cnn", marks=pytest.mark.slow),
    ],
)
def test_compiled_evaluate_is_one_graph_with_equal_gradients(core, encoder):
    """Without inductor: the test covers tracing of the program and its derivative."""
    policy = build_policy(PolicyConfig(encoder=encoder, core=core, azimuth_bins=16, elevation_bins=8))
    g = torch.Generator().manual_seed(0)
    obs, aux, actions = (torch.rand(shape, generator=g) for shape in ((2, 5, 3, 16, 8), (2, 5, 3), (2, 5, 4)))
    reset = torch.rand(2, 5, generator=g) < 0.3
    state = policy.initial_state(2)
    compiled = torch.compile(policy.evaluate, backend="aot_eager_decomp_partition", fullgraph=True)
    made = []
    for call in (policy.evaluate, compiled):

        def run(call=call):
            out = call(obs, aux, state, reset, actions)
            return out.log_prob, out.value, out.entropy, out.embedding

        made.append(gradients(policy, run))
    for ours, theirs in zip(made[1], made[0]):
        assert_near(ours, theirs, 1e-3)


@pytest.mark.parametrize("distribution", ["gaussian", "beta", "discrete", "q"])
def test_compiled_act_is_one_graph_with_equal_outputs(distribution):
    policy = build_policy(
        PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=8, distribution=distribution)
    )
    g = torch.Generator().manual_seed(0)
    given = torch.rand(2, 3, 16, 8, generator=g), torch.rand(2, 3, generator=g), policy.initial_state(2)
    noise = torch.randn(2, 4, generator=g)
    compiled = torch.compile(policy.act, backend="aot_eager_decomp_partition", fullgraph=True)
    with torch.no_grad():
        ours, theirs = (act(*given, torch.tensor([True, False]), noise) for act in (compiled, policy.act))
    for name in ("action", "log_prob", "value"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-6)
