"""Every exception minfer raises, in one message form: what, where, value, limit, remedy.

A message reads ``[where] what. remedy`` and is written for the person who meets it; the parts
stay available as attributes, so a server can map them to fields. This module imports nothing.
"""

from __future__ import annotations


class MinferError(Exception):
    """Base of all errors of minfer.

    Args:
        what: what is wrong, with the offending value and the limit it broke, as one sentence
            without a final full stop.
        where: the file, tensor, node, field or flag concerned.
        remedy: what the reader can do about it, as a sentence.
    """

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        message = f"[{where}] {what}" if where else what
        if remedy:
            message = f"{message}. {remedy}"
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(
    cls: type[MinferError], what: str, where: str | None, remedy: str | None
) -> MinferError:
    return cls(what, where=where, remedy=remedy)


class SettingsError(MinferError):
    """A `MINFER_*` variable is unknown or its value is unusable."""


class FormatError(MinferError):
    """A file is not what it claims to be: malformed, truncated, of an unsupported version."""


class UnsupportedError(MinferError):
    """A well-formed request for something minfer cannot do: an architecture, type, tokenizer."""


class HubError(MinferError):
    """A model name cannot be resolved, or a download failed or does not match its hash."""


class TokenizerError(MinferError):
    """The vocabulary in a file is inconsistent, or of a kind minfer does not know."""


class TemplateError(MinferError):
    """A chat template cannot be compiled or rendered."""


class GrammarError(MinferError):
    """A grammar or JSON schema cannot be enforced."""


class GraphError(MinferError):
    """A compute graph or plan breaks its specification: a defect of minfer, not of the input."""


class BackendError(MinferError):
    """A device failed, or a kernel found one of its invariants broken."""


class OutOfMemoryError(MinferError):
    """Something does not fit; raised before anything is allocated, with the bytes."""


class RequestError(MinferError):
    """A generation request is unusable: a parameter out of range, an empty prompt."""


class ContextFullError(RequestError):
    """A prompt does not fit the context.

    Attributes:
        n_prompt: tokens of the prompt.
        n_ctx: tokens the context holds.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        super().__init__(
            f"the prompt has {n_prompt} tokens, but the context holds {n_ctx} "
            "and needs room for at least one more",
            where="prompt",
            remedy="Shorten the prompt or raise --n-ctx",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (ContextFullError, (self.n_prompt, self.n_ctx))


class BusyError(MinferError):
    """Something needs room that requests in progress hold; it may succeed later."""


class QueueFullError(MinferError):
    """A server has as many requests open as it takes.

    Attributes:
        n_open: sequences running and waiting.
        capacity: how many may be.
    """

    def __init__(self, n_open: int, capacity: int) -> None:
        self.n_open = n_open
        self.capacity = capacity
        super().__init__(
            f"{n_open} sequences run or wait, and {capacity} may",
            where="queue",
            remedy="Try again later",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (QueueFullError, (self.n_open, self.capacity))


class DeadlineError(MinferError):
    """A request took longer than it may."""


class ServerError(MinferError):
    """A server cannot start or go on: an address in use, a package missing."""


class ClosedError(MinferError):
    """The model or engine was used after `close`."""
