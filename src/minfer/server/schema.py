"""What every request body has in common: strict about types, null means default.

Clients send null for most fields, and fields we do not know; the first count as absent, the second
are accepted and named in the log. A wrong type is refused with the field's name, never converted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from minfer.engine import MAX_LOGPROBS, SamplingParams

MAX_STOPS = 16
MAX_BIASES = 1024  # each costs time at every token


class Body(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data

    @property
    def unknown(self) -> list[str]:
        """Names of the fields nobody reads."""
        return sorted(self.model_extra or ())


Stops = str | Annotated[list[str], Field(max_length=MAX_STOPS)]
Ids = Annotated[list[int], Field(min_length=1)]


def _kind(given: Any) -> str:
    """Which form of a text input something is meant to be: its first item tells."""
    if not isinstance(given, list):
        return "text"
    return {int: "ids", list: "ids of texts"}.get(type(given[0]) if given else str, "texts")


TextInput = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Tag("ids of texts")],
    Discriminator(_kind),
]
"""A text or several, each as a string or as token ids."""
Biases = Annotated[dict[str, float], Field(max_length=MAX_BIASES)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def as_list(given: TextInput) -> list[str | list[int]]:
    """The texts one by one."""
    texts: Any = given
    return [texts] if isinstance(texts, str) or isinstance(texts[0], int) else list(texts)


class StreamOptions(Body):
    """What a stream carries besides its text."""

    include_usage: bool = False


class JsonSchema(Body):
    """A schema the answer must fit."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(default={}, alias="schema")
    strict: bool = True


class ResponseFormat(Body):
    """What form the answer has."""

    type: Literal["text", "json_object", "json_schema", "grammar", "regex", "lark"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="As llama-server."
    )
    grammar: str | None = None
    regex: str | None = None
    lark: str | None = None


class Sampling(Body):
    """How to choose tokens. Without a value OpenAI's defaults hold: the model's own distribution.

    The fields after `seed` are llama-server's.
    """

    model: str = Field(default="", description="Any name; the server has one model.")
    temperature: float = Field(default=1.0, description="0 takes the most likely token.")
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Biases = Field(default={}, description="Token id -> number added to its logit.")
    stop: Stops = Field(default=[], description="Texts that end the answer.")
    seed: Seed | None = Field(default=None, description="Makes an answer repeatable; -1 draws one.")
    user: str = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    ignore_eos: bool = False
    response_format: ResponseFormat | None = Field(
        default=None, description="What form the answer has."
    )
    grammar: str | None = Field(default=None, description="A GBNF grammar the answer follows.")
    json_schema: dict[str, Any] | bool | None = Field(default=None, description="A schema it fits.")

    def params(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The checked record of the engine.

        Raises:
            RequestError: for a value out of range, under its field.
        """
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=logprobs,
            logit_bias=_bias(self.logit_bias),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            seed=None if self.seed == -1 else self.seed,
            **{name: getattr(self, name) for name in _SAME},
        )


_SAME = (
    "temperature top_p frequency_penalty presence_penalty top_k min_p typical_p repeat_penalty "
    "repeat_last_n dry_multiplier dry_base dry_allowed_length dry_penalty_last_n xtc_probability "
    "xtc_threshold mirostat mirostat_tau mirostat_eta ignore_eos"
).split()
"""Fields that `SamplingParams` has under the same name."""

TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


def _bias(given: dict[str, float]) -> dict[int, float]:
    from minfer.server.errors import invalid

    bias = {}
    for token, value in given.items():
        if not token.isascii() or not token.isdigit() or len(token) > 9:
            raise invalid(f"{token[:20]!r} is no token id", "logit_bias")
        if not -100 <= value <= 100:
            raise invalid(f"value {value} is not between -100 and 100", f"logit_bias.{token}")
        bias[int(token)] = value
    return bias
