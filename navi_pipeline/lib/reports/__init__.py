"""Reports: HTML pages, SVG charts, Markdown tables and pictures."""
