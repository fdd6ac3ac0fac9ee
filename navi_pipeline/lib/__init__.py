"""Implementation of the assets: warehouse, training, evaluation, nights, experiments, studies, reports."""
