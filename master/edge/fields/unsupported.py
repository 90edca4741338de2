"""Fields of other servers that would change the answer. Ignoring them would give another answer than was asked for."""

import msgspec

from master.errors import invalid

INSTEAD = {
    "regex": "use guided_regex",
    "ebnf": "use guided_grammar, which takes Lark",
    "structural_tag": "use tools",
    "lora_path": "adapters are models of their own",
    "chat_template": "the model's own is used",
}


class UnsupportedFields(msgspec.Struct, frozen=True, kw_only=True):
    # OpenAI's
    audio: object = None
    web_search_options: object = None
    # vLLM's
    use_beam_search: object = None
    length_penalty: object = None
    allowed_token_ids: object = None
    logits_processors: object = None
    truncate_prompt_tokens: object = None
    structural_tag: object = None
    chat_template: object = None
    documents: object = None
    # SGLang's
    regex: object = None
    ebnf: object = None
    stop_regex: object = None
    custom_logit_processor: object = None
    lora_path: object = None

    def check_supported(self) -> None:
        """Raises ServingError naming the first that is set. Null, false and what is empty ask for nothing."""
        for field in UnsupportedFields.__struct_fields__:
            if getattr(self, field):
                instead = f"; {INSTEAD[field]}" if field in INSTEAD else ""
                raise invalid(field, f"{field} is set, which is not supported here{instead}")
