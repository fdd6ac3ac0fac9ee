"""Dagster assets, asset checks and partitions, one module or folder per stage."""

import warnings

import dagster as dg

# Checks of partitioned assets are a preview feature of Dagster 1.13; the pinned version is what we tested.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
