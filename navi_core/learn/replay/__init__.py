"""Prioritised experience replay: buffer, sum tree, Q-learning batches, replay files."""
