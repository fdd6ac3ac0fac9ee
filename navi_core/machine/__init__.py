"""Machine resources of this process (cores, memory, threads within its container's limits), and file locks."""

from navi_core.machine.resources import chosen_threads, group_limits, limit_threads, usable_cores, whole_memory

__all__ = ["chosen_threads", "group_limits", "limit_threads", "usable_cores", "whole_memory"]
