"""HTTP: one model behind OpenAI's API. Needs the extra `server`."""

from minfer.server.app import create_app
from minfer.server.config import ServerConfig
from minfer.server.running import serve

__all__ = ["ServerConfig", "create_app", "serve"]
