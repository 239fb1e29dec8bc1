"""Where an LLM's guesses come from: its own text, or a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from minfer.engine import Drafter, DraftModel, Engine, Lane, PromptLookup
from minfer.errors import UnsupportedError
from minfer.gguf import GGUFFile, open_gguf
from minfer.hub import resolve
from minfer.llm.loading import make_engine
from minfer.settings import Settings

LOOKUP = "lookup"
"""The name that stands for guessing from the text itself."""
SEQUENCES = 4
"""Sequences a draft model guesses for; with more of them guesses cost more than they save."""
_TOKENS = "tokenizer.ggml.tokens"


class _Model:
    """A draft model with its file."""

    def __init__(self, file: GGUFFile, engine: Engine) -> None:
        self._file = file
        self._engine = engine

    def lane(self, n_tokens: int) -> Lane:
        """Room for tokens computed by hand."""
        return self._engine.lane(n_tokens)

    def close(self) -> None:
        """Free all memory."""
        self._engine.close()
        self._file.close()


def make_drafter(
    draft: str | Path,
    file: GGUFFile,
    settings: Settings,
    *,
    n_ctx: int,
    max_sequences: int,
    progress: Callable[[str, int, int | None], None] | None,
) -> Drafter:
    """What guesses for the model of `file`.

    Args:
        draft: `lookup`, or any name of a model.
        n_ctx: tokens of context of the model it guesses for.
        max_sequences: sequences that run at the same time.

    Raises:
        UnsupportedError: if the draft model has another vocabulary.
        MinferError: if it cannot be loaded.
    """
    if draft == LOOKUP:
        return PromptLookup()
    path = resolve(str(draft), settings, progress=progress)
    small = open_gguf(path)
    try:
        if list(small.metadata[_TOKENS]) != list(file.metadata[_TOKENS]):
            raise UnsupportedError(
                f"{path.name} has another vocabulary than the model it should guess for",
                where="draft",
                remedy="Take a smaller model of the same family",
            )
        engine, _, _ = make_engine(
            small,
            settings,
            n_ctx=n_ctx,
            n_cells=0,
            max_sequences=min(SEQUENCES, max_sequences),
            progress=None,
        )
    except BaseException:
        small.close()
        raise
    return DraftModel(_Model(small, engine), engine.config.n_ctx)
