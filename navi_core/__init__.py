"""Navi: scenes in, a measured navigation policy out. This package is the training engine."""

from navi_core.machine import limit_threads
from navi_core.machine.numba_cache import keep_compiled_code

__version__ = "0.1.0"

limit_threads()
keep_compiled_code()
