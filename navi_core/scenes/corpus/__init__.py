"""Scene corpora: discovery, layouts, parallel compilation, splits."""
