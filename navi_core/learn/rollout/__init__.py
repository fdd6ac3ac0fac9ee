"""Rollouts: collection, storage, minibatches, diagnostics."""
