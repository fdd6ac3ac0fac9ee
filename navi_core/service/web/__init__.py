"""The page in the browser: what it shows, the messages it is sent, and the server behind it."""
