"""Dagster project of Navi: assets, jobs and sensors, the DuckDB warehouse, and the pipeline's commands."""
