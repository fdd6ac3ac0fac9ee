"""Scene corpora: discovery, dataset layouts, parallel compilation, train/validation/test splits."""
