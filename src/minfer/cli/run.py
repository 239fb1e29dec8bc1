"""`minfer run`: one prompt, one streamed answer."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.generation import Message, Outcome, generate
from minfer.cli.loading import note, open_model
from minfer.cli.options import Loading, ModelName, Sampling, Tracing
from minfer.cli.report import INTERRUPTED
from minfer.cli.terminal import Output

if TYPE_CHECKING:
    from minfer.llm import LLM


def run(
    model: ModelName,
    sampling: Sampling,
    loading: Loading,
    tracing: Tracing,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="What to say; read from standard input where absent. A model without a chat "
            "template goes on with the text.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("-sys", "--system", metavar="TEXT", help="System message.")
    ] = None,
    no_template: Annotated[
        bool,
        typer.Option("--no-template", help="Complete the bare text; use no chat template."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of streaming.")
    ] = False,
) -> None:
    """Answer one prompt.

    The answer streams to standard output; a closing line of figures goes to standard error.
    `minfer MODEL PROMPT` means the same.
    """
    if system is not None and no_template:
        raise typer.BadParameter("a system message needs the template", param_hint="--system")
    params = sampling.params()
    text = _read_stdin() if prompt is None else prompt
    if not text:
        raise typer.BadParameter("the prompt is empty", param_hint="PROMPT")
    messages: str | list[Message] = text
    if system is not None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    with open_model(model, loading, tracing) as llm:
        note(llm.notices)
        output = None if as_json else Output()
        # A model without a template of its own is no chat model: it goes on with the text.
        chat = not (no_template or llm.template.is_default)
        outcome = generate(llm, messages, params, output, chat=chat)
        if as_json:
            print(json.dumps(_as_json(llm, outcome), ensure_ascii=False))
        where = " and ".join(llm.info.backends)
        loaded = f"loaded in {llm.load_seconds:.2f} s on {where}"
        print(f"{outcome.figures()} | {loaded}", file=sys.stderr)
    if outcome.interrupted:
        raise typer.Exit(INTERRUPTED)


def _read_stdin() -> str:
    if sys.stdin.isatty():
        raise typer.BadParameter(
            "give a prompt, or pipe one in; for a conversation use `minfer chat`",
            param_hint="PROMPT",
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8: {error}") from None


def _as_json(llm: LLM, outcome: Outcome) -> dict[str, object]:
    return {
        "model": llm.info.name,
        "text": outcome.text,
        "finish_reason": outcome.finish_reason,
        "usage": None if outcome.usage is None else asdict(outcome.usage),
        "load_seconds": llm.load_seconds,
    }
