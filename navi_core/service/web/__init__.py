"""Browser page: dashboard, replay and explorer, message hub, and web server."""
