"""Viewing: broadcast of a training, discovery of publishers, and the state that viewers show."""
