"""Run loops: training and cloning runs, checkpoints, records, early stopping."""
