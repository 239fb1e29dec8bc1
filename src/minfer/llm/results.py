"""What a model answers: pieces of a stream, completions, usage, facts about the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from minfer.engine import Choice, FinishReason


@dataclass(frozen=True, slots=True)
class Notice:
    """What a user should know about the choice of devices and sizes.

    Attributes:
        text: a sentence or two, as an error is told.
        usual: whether it is so on many machines, and need not be told unasked: there is no GPU.
    """

    text: str
    usual: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and seconds of one request.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens generated, an end token included.
        cached_tokens: tokens of the prompt that were found in the KV cache.
        prompt_seconds: from the start of the request's work to its first token.
        decode_seconds: from its first token to its last.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prompt_seconds: float
    decode_seconds: float

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed a second; 0 where none were."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first; 0 where there was only one."""
        after = self.completion_tokens - 1
        return after / self.decode_seconds if after > 0 and self.decode_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a stream: text that is certain by now, and the token it came with.

    Attributes:
        text: valid UTF-8, often empty while a character or a stop string is incomplete.
        choice: the token, with log probabilities where asked; None on a last piece without one.
        finish_reason: set on the last piece: `stop`, `length` or `cancelled`.
        usage: set on the last piece.
        stop: the stop string that ended the text.
    """

    text: str
    choice: Choice | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    Attributes:
        text: the generated text, without the stop string that ended it.
        token_ids: every generated token, an end token included.
        finish_reason: `stop` (an end token or stop string), `length` or `cancelled`.
        usage: tokens and seconds.
        stop: the stop string that ended the text.
        logprobs: one entry a token where `SamplingParams.logprobs` is set.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stop: str | None = None
    logprobs: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a loaded model.

    Attributes:
        path: its file; of a split model, the first part.
        architecture, name: from its metadata.
        file_type: the type most of its weights have, e.g. `q4_K`.
        n_params: weights in all.
        file_bytes: size of its files.
        n_ctx_train: tokens it was trained for.
        n_vocab: tokens of its vocabulary.
        n_layers, width: as usual.
    """

    path: Path
    architecture: str
    name: str
    file_type: str
    n_params: int
    file_bytes: int
    n_ctx_train: int
    n_vocab: int
    n_layers: int
    width: int
    backends: tuple[str, ...] = field(default=())
