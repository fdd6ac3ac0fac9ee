"""Every test here draws the same numbers whatever ran before it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
