"""The counter of host synchronisations finds each kind, and nothing in a program of fixed shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.world.host_sync import HostSyncError, HostSyncs, forbid_host_sync

VALUES = torch.tensor([1.0, -2.0, 3.0])
MASK = VALUES > 0


@pytest.mark.parametrize(
    ("what", "program"),
    [
        ("item", lambda x: x.sum().item()),
        ("__bool__", lambda x: bool((x > 0).all())),
        ("__float__", lambda x: float(x.sum())),
        ("__index__", lambda x: range(3)[x.argmax()]),
        ("numpy", lambda x: x.numpy()),
        ("__array__", lambda x: np.asarray(x)),
        ("tolist", lambda x: x.tolist()),
        ("cpu", lambda x: x.cpu()),
        ("nonzero", lambda x: x.nonzero()),
        ("where", lambda x: torch.where(x > 0)),
        ("masked_select", lambda x: torch.masked_select(x, x > 0)),
        ("boolean mask", lambda x: x[x > 0]),
        ("boolean mask", lambda x: x.clone().__setitem__(x > 0, x[:2])),
        ("unique", lambda x: x.unique()),
        ("equal", lambda x: torch.equal(x, x)),
        ("between", lambda x: x.to("meta")),
        ("a list", lambda x: x[[0, 2]]),
        ("torch.tensor", lambda x: x + torch.tensor([1.0, 2.0, 3.0])),
    ],
)  # fmt: skip
def test_each_kind_of_synchronisation_is_found(what: str, program: Callable[[torch.Tensor], object]) -> None:
    with HostSyncs() as syncs:
        program(VALUES)
    assert syncs.found, f"{what} went unnoticed"
    assert "test_host_sync.py" in syncs.found[0]


def test_a_program_of_fixed_shapes_is_clean() -> None:
    with HostSyncs() as syncs:
        x = torch.where(MASK, VALUES, 0.0) + torch.zeros_like(VALUES)
        x = x[torch.arange(3)] * torch.full((3,), 2.0)
        x.index_put_((torch.arange(3),), VALUES)
        x.masked_fill_(MASK, 1.0).to(torch.int32).clamp(0, 2).cumsum(0)
    assert syncs.found == []


def test_synchronising_fails_and_names_the_call() -> None:
    expected = r"1 host synchronisations:\nTensor\.tolist at tests/world/test_host_sync\.py"
    with pytest.raises(HostSyncError, match=expected), forbid_host_sync():
        VALUES.tolist()
