"""HTML pages, charts and pictures."""
