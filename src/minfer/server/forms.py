"""The forms a request asks its answer to have: which grammar, and who holds the answer to it."""

from __future__ import annotations

from collections.abc import Callable

from minfer.engine import Constraint
from minfer.server.errors import invalid
from minfer.server.schema import Sampling
from minfer.server.service import Service
from minfer.text import Form, Grammar, compile_form


def answer_grammar(body: Sampling) -> Grammar | None:
    """The grammar of an answer's content; None where it is free.

    Raises:
        ApiError: if more than one is given, or one without its text.
    """
    found = [grammar for grammar in (_format(body), _grammar(body), _schema(body)) if grammar]
    if len(found) > 1:
        raise invalid(f"cannot be combined with `{found[0].where.split('.')[0]}`", found[1].where)
    return found[0] if found else None


def held_to(
    service: Service, form: Form | None, prompt: str | None
) -> Callable[[], Constraint | None]:
    """What makes the constraint of each answer to a request.

    Args:
        service: the model.
        form: what is asked for.
        prompt: the end of a conversation's prompt; None for a bare text, where nobody reasons.

    Raises:
        GrammarError: for what cannot be enforced.
        UnsupportedError: if grammars are not installed.
    """
    if form is None:
        return lambda: None
    return compile_form(
        service.llm.grammars,
        form,
        template=service.llm.template.source,
        reasoning=None if prompt is None else service.style.reasoning,
        prompt=prompt or "",
    )


def _format(body: Sampling) -> Grammar | None:
    asked = body.response_format
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        where = "response_format.schema"
        return Grammar("json_schema", asked.schema_ or {"type": "object"}, where)
    if asked.type == "json_schema":
        if asked.json_schema is None:
            raise invalid("the field is missing", "response_format.json_schema", "missing_field")
        where = "response_format.json_schema.schema"
        return Grammar("json_schema", asked.json_schema.schema_, where)
    text = getattr(asked, asked.type)
    where = f"response_format.{asked.type}"
    if text is None:
        raise invalid("the field is missing", where, "missing_field")
    return Grammar("gbnf" if asked.type == "grammar" else asked.type, text, where)


def _grammar(body: Sampling) -> Grammar | None:
    return Grammar("gbnf", body.grammar, "grammar") if body.grammar else None


def _schema(body: Sampling) -> Grammar | None:
    return (
        None
        if body.json_schema is None
        else Grammar("json_schema", body.json_schema, "json_schema")
    )
