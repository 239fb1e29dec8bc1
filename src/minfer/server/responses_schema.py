"""The body of a responses request, and the chat request that means the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from minfer.server.chat_schema import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatRequest,
    Function,
    FunctionName,
    Message,
    Tool,
    ToolChoice,
)
from minfer.server.errors import invalid
from minfer.server.schema import Body, JsonSchema, ResponseFormat, TopLogprobs


class Part(Body):
    """A part of a message's content."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "refusal"]
    text: str = ""
    refusal: str = ""


class Item(Body):
    """Something said before: a message, a call, its result, or reasoning."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[Part] = ""


class ResponseTool(Function):
    """A function on offer, described without the envelope it has in chat."""

    type: Literal["function"]


class ResponseToolChoice(FunctionName):
    """Asks for a call of one function."""

    type: Literal["function"] = "function"


class TextForm(Body):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool = True


class TextOptions(Body):
    """What the answer's text is like."""

    format: TextForm = TextForm()


class Reasoning(Body):
    """How much the model thinks."""

    effort: str | None = None


class ResponsesRequest(Body):
    """`POST /v1/responses`."""

    # the instructions become a message too
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES - 1)]
    model: str = ""
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: Reasoning = Reasoning()
    top_logprobs: TopLogprobs = 0
    stream: bool = False
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool = False
    metadata: dict[str, Any] = Field(default={})
    user: str = ""

    def as_chat(self) -> ChatRequest:
        """The chat request that means the same.

        Raises:
            ApiError: for what would need responses to be kept: the server keeps none.
        """
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                raise invalid("responses are not kept; send the conversation", name, "unsupported")
        if self.background:
            raise invalid("responses are not kept; stream instead", "background", "unsupported")
        given = [] if self.instructions is None else [_message("system", self.instructions)]
        if isinstance(self.input, str):
            given.append(_message("user", self.input))
        else:
            given += _messages(self.input)
        choice: Any = self.tool_choice
        if isinstance(choice, ResponseToolChoice):
            choice = ToolChoice(function=FunctionName(name=choice.name))
        return ChatRequest(
            messages=given,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[Tool(function=Function(**_fields(tool))) for tool in self.tools],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=_format(self.text.format),
            reasoning_effort=self.reasoning.effort,
            logprobs=self.top_logprobs > 0,
            top_logprobs=self.top_logprobs or None,
            stream=self.stream,
        )


def _fields(tool: ResponseTool) -> dict[str, Any]:
    return tool.model_dump(include=set(Function.model_fields))


def _message(role: Any, content: str | None, **more: Any) -> Message:
    return Message(role=role, content=content, **more)


def _messages(items: list[Item]) -> list[Message]:
    """Items as messages; calls and reasoning belong to the assistant's message beside them."""
    found: list[Message] = []
    calls: list[dict[str, Any]] = []
    thought: str | None = None

    def flush(content: str | None = None) -> None:
        nonlocal calls, thought
        if calls or thought is not None or content is not None:
            more = {"tool_calls": calls or None, "reasoning_content": thought}
            found.append(_message("assistant", content, **more))
        calls, thought = [], None

    for index, item in enumerate(items):
        where = f"input[{index}]"
        if item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
        elif item.type == "reasoning":
            flush()
            thought = _text(item.content)
        elif item.type == "function_call_output":
            flush()
            found.append(_message("tool", _text(item.output), tool_call_id=item.call_id))
        elif item.role is None:
            raise invalid("the field is missing", f"{where}.role", "missing_field")
        elif item.role == "assistant":
            if calls:
                flush()
            flush(_text(item.content))
        else:
            flush()
            found.append(_message(item.role, _text(item.content)))
    flush()
    return found


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or part.refusal for part in content)
    return content or ""


def _format(form: TextForm) -> ResponseFormat | None:
    if form.type == "text":
        return None
    if form.type == "json_object":
        return ResponseFormat(type="json_object")
    if form.schema_ is None:
        raise invalid("the field is missing", "text.format.schema", "missing_field")
    return ResponseFormat(
        type="json_schema", json_schema=JsonSchema(name=form.name, schema=form.schema_)
    )
