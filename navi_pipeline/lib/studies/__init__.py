"""Studies: searches over settings whose trials are training runs, carried on after any crash."""
