"""Settings that the pipeline alone reads: nights, studies, sweeps, ablations."""
