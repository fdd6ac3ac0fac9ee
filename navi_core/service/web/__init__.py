"""The page in the browser: what it shows, the messages it is sent, and the server behind it."""

from navi_core.service.web.app import listen, serve_page, served_page
from navi_core.service.web.hub import Hub

__all__ = ["Hub", "listen", "serve_page", "served_page"]
