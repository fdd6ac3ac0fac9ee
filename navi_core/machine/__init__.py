"""Resources of this process: cores, memory and threads within its container's limits."""

from navi_core.machine.cores import chosen_threads, limit_threads, usable_cores
from navi_core.machine.memory import group_limits, whole_memory

__all__ = ["chosen_threads", "group_limits", "limit_threads", "usable_cores", "whole_memory"]
