"""Fixtures of modules that make assets of a profile once and examine the results."""

import pytest
from dagster._core.storage.defs_state.base import set_defs_state_storage

from navi_core.record import navi_home
from tests.pipeline.empty_warehouse import start_warehouse
from tests.pipeline.policy_runs import run_twice
from tests.pipeline.postgres import database, postgres_server  # noqa: F401  fixtures of all modules here


@pytest.fixture(autouse=True, scope="module")
def no_instance_of_an_earlier_module():
    """Dagster keeps the storage of the instance opened last; instances closed out of order leave one that is gone."""
    with set_defs_state_storage(None):
        yield


@pytest.fixture(autouse=True)
def _empty_warehouse(_own_home):
    """Begin every test's home with an empty warehouse."""
    start_warehouse(navi_home())


@pytest.fixture(scope="module")
def stage(tmp_path_factory, request):
    """A module's ASSETS made twice with its SETTINGS; home and both results."""
    root = tmp_path_factory.mktemp("navi")
    return root, run_twice(root, request.module.ASSETS, request.module.SETTINGS)


@pytest.fixture
def results(stage, monkeypatch):
    """Both results, in their home."""
    home, both = stage
    monkeypatch.setenv("NAVI_HOME", str(home))
    return both
