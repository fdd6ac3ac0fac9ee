"""Served policies: models, batched inference, sessions."""
