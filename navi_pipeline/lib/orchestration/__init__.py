"""The Dagster instance, the time of assets, failed runs."""
