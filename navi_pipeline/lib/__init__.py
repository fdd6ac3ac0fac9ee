"""Implementation of the assets: warehouse, training, evaluation, nights, sweeps, studies, reports."""
