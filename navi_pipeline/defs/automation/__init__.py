"""What happens without anybody clicking: nights, sensors, freshness."""

from navi_pipeline.defs.automation.definitions import definitions, with_freshness

__all__ = ["definitions", "with_freshness"]
