"""The page in the browser: what it shows, the messages it is sent, and the server behind it."""

from navi_core.service.web.hub import Hub
from navi_core.service.web.serving import listen, serve_page, served_page

__all__ = ["Hub", "listen", "serve_page", "served_page"]
