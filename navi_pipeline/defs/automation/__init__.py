"""Dagster automation: nightly jobs and sensors; schedules and sensors are off until switched on in the UI."""
