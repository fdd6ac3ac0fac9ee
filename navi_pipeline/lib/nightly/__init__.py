"""Nightly training job: preflight, bounded training, resume proof, evaluation, benchmarks, gated promotion, summary."""
