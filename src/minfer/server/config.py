"""What an operator decides about a server."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.errors import RequestError

# Field, least and most.
_RANGES = (
    ("port", 0, 65535),
    ("max_body_mib", 0, 1024),
    ("max_waiting", 0, 1_000_000),
    ("timeout", 0.001, 1e6),
    ("body_timeout", 0.001, 1e6),
    ("drain_timeout", 0, 1e6),
    ("ping_seconds", 0.001, 1e6),
)


@dataclass(frozen=True)
class ServerConfig:
    """Fixed when a server starts.

    Attributes:
        host, port: where it listens; only this machine by default.
        model_name: how the model is called; its own name where None.
        api_keys: keys of which every request must bear one; none are asked for where empty.
        cors_origins: web pages that may call it, by origin; `*` for all.
        max_body_mib: size of a request in MiB.
        max_waiting: sequences that may wait for their turn; more are refused with 429.
        timeout: seconds a request may take in all.
        body_timeout: seconds a request may take to arrive.
        drain_timeout: seconds that accepted requests have to end after the server was told to.
        ping_seconds: seconds of silence after which a stream says that it is alive.
        metrics: whether `/metrics` answers.
        slots: whether `/slots` answers: it shows what others are doing.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    model_name: str | None = None
    api_keys: frozenset[str] = frozenset()
    cors_origins: tuple[str, ...] = ()
    max_body_mib: float = 16
    max_waiting: int = 64
    timeout: float = 600.0
    body_timeout: float = 30.0
    drain_timeout: float = 30.0
    ping_seconds: float = 15.0
    metrics: bool = True
    slots: bool = True

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                raise RequestError(
                    f"value {value} is out of range; expected {least} to {most}", where=name
                )
        if not all(key.isascii() and key.isprintable() and key for key in self.api_keys):
            raise RequestError("a key is empty or not printable ASCII", where="api_keys")

    @property
    def max_body_bytes(self) -> int:
        """Bytes of a request."""
        return int(self.max_body_mib * 2**20)
