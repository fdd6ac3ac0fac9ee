"""Ray addresses without a listener are refused at once, also without Ray installed."""

import socket
import time

import pytest

from navi_core.errors import ConfigError
from navi_core.scale.ray_ports import join_ray


def test_address_without_listener_fails_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConfigError, match=f"no Ray at {address}.*ray start --head"):
            join_ray(address, None)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1", ":6379", "127.0.0.1:ray", "127.0.0.1:70000"])
def test_invalid_address_is_named(address):
    with pytest.raises(ConfigError, match="neither host:port nor auto"):
        join_ray(address, None)
