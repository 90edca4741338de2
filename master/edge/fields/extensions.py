"""What this server adds to the APIs that have no such fields of their own; the names are those of chat completions."""

import msgspec


class ExtensionFields(msgspec.Struct, frozen=True, kw_only=True):
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, object] | None = None
