"""Machine resources of this process (cores, memory, threads within its container's limits), variables, file locks."""

from navi_core.machine.resources import chosen_threads, group_limits, limit_threads, usable_cores, whole_memory
from navi_core.machine.variables import thread_variables, using_variables, variable, variables

__all__ = [
    "chosen_threads",
    "group_limits",
    "limit_threads",
    "thread_variables",
    "usable_cores",
    "using_variables",
    "variable",
    "variables",
    "whole_memory",
]
