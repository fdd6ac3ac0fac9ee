-- Studies have a database of their own: Optuna and Dagster both keep a table alembic_version.
create database studies;
