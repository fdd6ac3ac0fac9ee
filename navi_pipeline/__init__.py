"""The pipeline around Navi's engine: Dagster assets, the DuckDB warehouse, the demo."""
