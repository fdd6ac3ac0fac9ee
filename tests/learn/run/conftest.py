"""A run without a stop."""

import pytest

from tests.learn.run.test_train_loop import fly, make_config


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return fly(tmp_path_factory.mktemp("straight"), make_config())
