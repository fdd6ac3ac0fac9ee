"""Sweeps: one thing varies, each combination is a process of its own, and no failure of one stops the rest."""
