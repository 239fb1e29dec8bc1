"""`minfer perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.loading import note
from minfer.cli.options import CacheType, Debug, Device, ModelName, option
from minfer.cli.report import INTERRUPTED
from minfer.cli.terminal import progress_bar, status_line
from minfer.errors import FormatError
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.measure import Chunks, Estimate, Opened

_text = partial(option, "Text")
STEP_ROWS = 128


@dataclass(frozen=True)
class Text:
    """Which text is scored, and how it is cut."""

    file: Annotated[Path | None, _text("A text in UTF-8.", "-f", "--file", metavar="FILE")] = None
    n_ctx: Annotated[int, _text("Tokens of a chunk.", "-c", "--ctx-size", metavar="N")] = 512
    n_chunks: Annotated[
        int, _text("Chunks to score at most; -1 for all.", "--chunks", metavar="N")
    ] = -1

    def cut(self, path: Path) -> Chunks:
        """The text as the tokens of the model in `path`.

        Raises:
            typer.BadParameter: without a text.
            FormatError: if it cannot be read.
        """
        from minfer.gguf import open_gguf
        from minfer.measure import cut
        from minfer.text import Tokenizer

        if self.file is None:
            raise typer.BadParameter("a text is needed", param_hint="-f")
        if self.n_chunks == 0 or self.n_chunks < -1:
            raise typer.BadParameter(f"value {self.n_chunks} is no count", param_hint="--chunks")
        try:
            text = self.file.read_text(encoding="utf-8")
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror}", where=str(self.file)) from None
        except UnicodeDecodeError as error:
            raise FormatError(f"is not UTF-8: {error}", where=str(self.file)) from None
        with open_gguf(path) as file:
            tokenizer = Tokenizer.from_metadata(file.metadata)
        return cut(tokenizer, text, self.n_ctx, None if self.n_chunks == -1 else self.n_chunks)


def perplexity(
    model: ModelName,
    text: Text,
    device: Annotated[
        Device | None, typer.Option("--device", help="Where to run; by default the best there is.")
    ] = None,
    cache_type: Annotated[
        CacheType, typer.Option("--cache-type", help="Element type of the KV cache.")
    ] = CacheType.f16,
    decode: Annotated[
        bool, typer.Option("--decode", help="Score by the decode path, a token at a time.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    """Score how well a model predicts a text.

    Chunks and scored positions are those of llama.cpp's perplexity tool: the second half of each
    chunk. Ctrl-C ends it with the chunks done by then.
    """
    from minfer import measure

    settings = settings_on(device)
    path = resolved(model, settings)
    chunks = text.cut(path)
    nll: list[float] = []
    interrupted = False
    with status_line() as say, opened(path, settings, cache_type.value, text.n_ctx, say) as run:
        left = remaining(len(chunks))
        try:
            for part in measure.score(run.engine, chunks, single=decode):
                logs = measure.log_softmax(part.logits)
                nll += (-logs[range(len(logs)), part.targets]).tolist()
                if len(nll) % chunks.n_scored == 0:
                    done = len(nll) // chunks.n_scored
                    so_far = in_figures(measure.perplexity(nll))
                    say(f"chunk {done}/{len(chunks)}, perplexity {so_far}, {left(done)}")
        except KeyboardInterrupt:
            interrupted = True
        name = run.facts.model_type
    n_done = len(nll) // chunks.n_scored
    if not n_done:
        raise KeyboardInterrupt
    found = measure.perplexity(nll[: n_done * chunks.n_scored])
    if as_json:
        facts = {"model": name, "perplexity": found.value, "error": found.error}
        counts = {"chunks": n_done, "n_ctx": text.n_ctx, "predictions": n_done * chunks.n_scored}
        print(json.dumps(facts | counts))
    else:
        of = f"{n_done} of {len(chunks)} chunks of {text.n_ctx} tokens"
        counted = f"{n_done * chunks.n_scored:,} predictions"
        print(f"{name}: perplexity {in_figures(found)} over {of} ({counted})")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def in_figures(estimate: Estimate) -> str:
    """An estimate with its error."""
    form = ".4f" if estimate.value < 1e5 else ".4g"
    return f"{estimate.value:{form}} ± {estimate.error:{form}}"


def settings_on(device: Device | None) -> Settings:
    """The process's settings, on a device if one is given."""
    settings = Settings.load()
    return settings if device is None else replace(settings, device=device.value)


def resolved(model: str, settings: Settings) -> Path:
    """The file of a model, fetched if need be."""
    from minfer import hub

    with progress_bar() as bar:
        return hub.resolve(model, settings, progress=bar)


@contextmanager
def opened(
    path: Path, settings: Settings, cache_type: str, n_ctx: int, say: Callable[[str], None]
) -> Iterator[Opened]:
    """A model loaded for scoring chunks of `n_ctx` tokens."""
    from minfer import measure

    say(f"loading {path.name}")
    setup = measure.Setup(str(path), type_k=cache_type, type_v=cache_type, n_ubatch=STEP_ROWS)
    with measure.opened(setup, path, settings, n_ctx) as run:
        say("")
        note(run.notices)
        yield run


def remaining(n_parts: int) -> Callable[[int], str]:
    """A function that says, given how many of `n_parts` are done, how long the rest will take."""
    began = time.perf_counter()

    def tell(done: int) -> str:
        seconds = (time.perf_counter() - began) / done * (n_parts - done)
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s left" if minutes else f"{rest} s left"

    return tell
