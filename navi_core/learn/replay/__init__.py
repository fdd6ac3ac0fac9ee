"""Prioritised experience replay."""
