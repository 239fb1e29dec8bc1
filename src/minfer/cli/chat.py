"""`minfer chat`: a conversation. Only the new turn is prefilled; the rest is in the KV cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minfer.cli.generation import Message, Outcome, generate
from minfer.cli.loading import note, open_model
from minfer.cli.options import Loading, ModelName, Sampling, Tracing
from minfer.cli.prompt import Prompt
from minfer.cli.terminal import Output
from minfer.errors import RequestError

if TYPE_CHECKING:
    from minfer.engine import SamplingParams
    from minfer.llm import LLM


def chat(
    model: ModelName,
    sampling: Sampling,
    loading: Loading,
    tracing: Tracing,
    system: Annotated[
        str | None, typer.Option("-sys", "--system", metavar="TEXT", help="System message.")
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option(
            "--session",
            metavar="FILE",
            help="Take up the conversation in this file, and save it there at the end.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Talk with a model.

    A line is a turn. A line that ends in a backslash goes on in the next; text between two lines
    of three double quotes is one turn. Lines that start with a slash are commands: /help lists
    them. Ctrl-C stops an answer; Ctrl-D ends the conversation.
    """
    params = sampling.params()
    if session is not None and not session.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {session.parent}", param_hint="--session")
    with open_model(model, loading, tracing) as llm:
        note(llm.notices)
        messages = llm.load_session(session) if session is not None and session.exists() else []
        conversation = Conversation(llm, params, messages)
        if system is not None:
            conversation.set_system(system)
        try:
            conversation.loop(Prompt())
        finally:
            if session is not None:
                llm.save_session(session, conversation.messages)


class Conversation:
    """The messages so far and what can be done with them."""

    def __init__(self, llm: LLM, params: SamplingParams, messages: list[Message]) -> None:
        self.messages = messages
        self._llm = llm
        self._params = params
        self._output = Output()
        self._last: Outcome | None = None

    def loop(self, prompt: Prompt) -> None:
        """Take turns until the input ends or a command says so."""
        if prompt.is_terminal:
            say(f"{self._llm.info.name}, loaded in {self._llm.load_seconds:.2f} s. /help for help.")
        while (turn := prompt.read()) is not None:
            if turn.startswith("/"):
                name, _, argument = turn[1:].partition(" ")
                if name == "exit":
                    return
                self._command(name, argument.strip())
            elif turn.strip():
                self.messages.append({"role": "user", "content": turn})
                self._answer()

    def set_system(self, text: str) -> None:
        """Put `text` in the place of the system message; an empty text removes it."""
        if self.messages and self.messages[0]["role"] == "system":
            del self.messages[0]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def _answer(self) -> None:
        try:
            outcome = generate(
                self._llm, list(self.messages), self._params, self._output, reuse_decoded=True
            )
        except RequestError as error:  # a turn that does not fit ends the turn alone
            del self.messages[-1]
            say(f"error: {error}")
            return
        self._last = outcome
        # Even an empty answer takes its turn: many templates refuse two user turns in a row.
        self.messages.append({"role": "assistant", "content": outcome.text})

    def _command(self, name: str, argument: str) -> None:
        if name in COMMANDS:
            COMMANDS[name][0](self, argument)
        else:
            say(f"no command /{name}; there are {', '.join('/' + known for known in HELP)}")

    def _clear(self, _: str) -> None:
        del self.messages[1 if self._has_system() else 0 :]
        self._last = None
        say("the conversation starts over")

    def _regenerate(self, _: str) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            del self.messages[-1]
        if not self.messages or self.messages[-1]["role"] != "user":
            say("there is no answer to give again")
            return
        self._answer()

    def _system(self, text: str) -> None:
        if text:
            self.set_system(text)
            say("the system message is set")
        else:
            say(str(self.messages[0]["content"]) if self._has_system() else "no system message")

    def _stats(self, _: str) -> None:
        say(self._last.figures() if self._last else "nothing was generated yet")

    def _help(self, _: str) -> None:
        say("\n".join(f"/{name:<8}{line}" for name, line in HELP.items()))

    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"


Command = Callable[[Conversation, str], None]

COMMANDS: dict[str, tuple[Command, str]] = {
    "clear": (Conversation._clear, "forget the conversation, keep the system message"),
    "regen": (Conversation._regenerate, "give the last answer again"),
    "system": (Conversation._system, "show the system message, or set it: /system TEXT"),
    "stats": (Conversation._stats, "figures of the last answer"),
    "help": (Conversation._help, "this list"),
}
HELP = {"exit": "leave (also Ctrl-D)", **{name: line for name, (_, line) in COMMANDS.items()}}


def say(text: str) -> None:
    """Tell the user something that is not the model's."""
    print(text, file=sys.stderr)
