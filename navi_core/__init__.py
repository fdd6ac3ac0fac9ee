"""Navi: scenes in, a measured navigation policy out. This package is the training engine."""

from importlib.metadata import PackageNotFoundError, version

from navi_core.errors import DISTRIBUTION
from navi_core.machine import limit_threads
from navi_core.machine.resources import keep_compiled_code

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # a checkout on the path that is not installed
    __version__ = "0+unknown"

limit_threads()
keep_compiled_code()
