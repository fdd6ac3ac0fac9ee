"""Dagster assets, asset checks and partitions, one module or folder per stage."""

import warnings

import dagster as dg

# Checks of partitioned assets are a preview, backfills in one run a beta of Dagster 1.13; the pinned version is tested.
for _category in (dg.PreviewWarning, dg.BetaWarning):
    warnings.filterwarnings("ignore", category=_category)
