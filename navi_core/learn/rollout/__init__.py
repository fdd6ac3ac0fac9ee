"""Rollouts: experience collection, storage, minibatches, diagnostics."""
