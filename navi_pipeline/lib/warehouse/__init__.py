"""The DuckDB warehouse: ingest, archive, snapshots, SQL files."""
