"""DuckDB warehouse: ingest of outbox segments, Parquet archive, read-only snapshot, SQL migrations."""
