"""Policy evaluation, comparisons, ranking and champion promotion of the pipeline."""
