"""Which part of a reply is the model's reasoning, and which its answer.

Reasoning stands between two tags at the very start of a reply. Chat templates of some models open
it in the prompt already, so that the reply begins inside. Tags further on are text.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.text.chars import END, Emit, Reader, blanks, literal


@dataclass(frozen=True)
class ReasoningTags:
    """The pair of tags one family of models puts around its reasoning."""

    begin: str
    end: str

    def opened_by(self, prompt: str) -> bool:
        """Tell whether a prompt ends inside reasoning, so that the reply begins there."""
        return prompt.rstrip().endswith(self.begin)


KNOWN_TAGS = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
)


def reasoning_tags(template: str) -> ReasoningTags | None:
    """Return the tags a chat template's source mentions, None where it mentions none."""
    return next((tags for tags in KNOWN_TAGS if tags.end in template), None)


def read_reasoning(
    tags: ReasoningTags, *, inside: bool, reasoning: Emit, answer: Emit
) -> Reader[None]:
    """Split a reply: reasoning without the white space around it, then the answer.

    The white space between the two goes as well; a reply without reasoning is left as it is.

    Args:
        tags: what surrounds reasoning.
        inside: whether the reply begins within it.
        reasoning, answer: take the characters of each.
    """
    space, char = yield from blanks()
    read, after = yield from literal(tags.begin, char)
    if after is not None and not inside:
        answer(space + read)
        while after != END:
            answer(after)
            after = yield
        return
    # The opening tag read is markup, even inside reasoning, where it is only said once more. What
    # agreed with a part of it may just as well begin the closing tag.
    held = "" if after is None else read
    space, char = (yield from blanks()) if after is None else ("", after)
    space = ""  # none at the start
    while char != END:
        held += char
        while held and not tags.end.startswith(held):
            if held[0].isspace():
                space += held[0]
            else:
                reasoning(space + held[0])
                space = ""
            held = held[1:]
        if held == tags.end:
            _, char = yield from blanks()
            while char != END:
                answer(char)
                char = yield
            return
        char = yield
    if held:
        reasoning(space + held)
