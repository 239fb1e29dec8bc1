"""The body of a chat request, as OpenAI specifies it and clients send it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from minfer.server.schema import Body, Role, Sampling, TopLogprobs

MAX_MESSAGES = 16384
MAX_TOOLS = 1024
"""So many are checked fast enough for other requests not to wait."""


class TextPart(Body):
    """A part of a message. Pictures, sound and files are refused: the models read text."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""


class Message(Body):
    """A message of a conversation."""

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        found = self.model_dump(exclude_unset=True, include=set(Message.model_fields))
        found["role"] = "system" if self.role == "developer" else self.role
        if isinstance(self.content, list):
            found["content"] = [
                {"type": "text", "text": part.text or part.refusal} for part in self.content
            ]
        else:
            found["content"] = self.content
        return found


class Function(Body):
    """A function the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(Body):
    """A tool on offer."""

    type: Literal["function"] = "function"
    function: Function

    def plain(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = self.function.model_dump(
            exclude_none=True, include={"name", "description", "parameters"}
        )
        function.setdefault("parameters", {"type": "object", "properties": {}})
        return {"type": "function", "function": function}


class FunctionName(Body):
    """Names a function."""

    name: str


class ToolChoice(Body):
    """Asks for a call of one function."""

    type: Literal["function"] = "function"
    function: FunctionName


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})
    modalities: list[Literal["text"]] = Field(default=["text"])

    @property
    def token_limit(self) -> int | None:
        """Tokens to generate at most; -1 is llama-server's word for no limit."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return None if self.max_tokens == -1 else self.max_tokens
