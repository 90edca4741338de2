"""What a chat template needs to know of a request, whichever API it came by."""

from collections.abc import Mapping
from typing import Protocol

from master.edge.fields.nesting import check_nesting
from master.errors import invalid

RESERVED_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


class Conversation(Protocol):
    def template_messages(self) -> list[dict[str, object]]:
        """The messages as the chat template takes them. Raises ServingError naming the message that is wrong."""
        ...

    def template_kwargs(self) -> dict[str, object]:
        """Further variables for the template. Raises ServingError."""
        ...

    @property
    def adds_generation_prompt(self) -> bool: ...

    @property
    def continues_final_message(self) -> bool:
        """The last message is the beginning of the answer."""
        ...

    @property
    def adds_special_tokens(self) -> bool:
        """The tokenizer adds its own besides those that the template writes."""
        ...


def template_kwargs(given: Mapping[str, object] | None, **defaults: object) -> dict[str, object]:
    """chat_template_kwargs and, where they say nothing, those defaults that are not None.

    Raises ServingError for a name that has a field of its own.
    """
    kwargs = dict(given or {})
    for name in RESERVED_KWARGS & kwargs.keys():
        raise invalid("chat_template_kwargs", f"chat_template_kwargs has {name}, which has a field of its own")
    check_nesting("chat_template_kwargs", kwargs)
    return {name: value for name, value in defaults.items() if value is not None} | kwargs
