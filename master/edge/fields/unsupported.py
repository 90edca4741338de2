"""Fields of other servers that would change the answer. Ignoring them would give another answer than was asked for."""

import msgspec

from master.errors import invalid

INSTEAD = {
    "structural_tag": "use tools",
    "lora_path": "adapters are models of their own",
    "chat_template": "the model's own is used",
    "no_stop_trim": "use include_stop_str_in_output",
    "return_prompt_token_ids": "use return_token_ids",
    "extra_key": "use cache_salt",
    "kv_transfer_params": "KV is moved without being asked",
    "bootstrap_room": "KV is moved without being asked",
}


class UnsupportedFields(msgspec.Struct, frozen=True, kw_only=True):
    # OpenAI's
    audio: object = None
    web_search_options: object = None
    # vLLM's
    use_beam_search: object = None
    watermarking: object = None
    allowed_token_ids: object = None
    logprob_token_ids: object = None
    logits_processors: object = None
    truncate_prompt_tokens: object = None
    prompt_embeds: object = None
    structural_tag: object = None
    guided_whitespace_pattern: object = None
    chat_template: object = None
    documents: object = None
    repetition_detection: object = None
    return_prompt_text: object = None
    kv_transfer_params: object = None
    ec_transfer_params: object = None
    vllm_xargs: object = None
    # SGLang's
    input_ids: object = None
    task: object = None
    stop_regex: object = None
    no_stop_trim: object = None
    custom_logit_processor: object = None
    custom_params: object = None
    lora_path: object = None
    session_params: object = None
    extra_key: object = None
    return_hidden_states: object = None
    return_routed_experts: object = None
    return_prompt_token_ids: object = None
    return_meta_info: object = None
    bootstrap_host: object = None
    bootstrap_port: object = None
    bootstrap_room: object = None

    def check_supported(self) -> None:
        """Raises ServingError naming the first that is set. Null, false and what is empty ask for nothing."""
        for field in UnsupportedFields.__struct_fields__:
            if getattr(self, field):
                instead = f"; {INSTEAD[field]}" if field in INSTEAD else ""
                raise invalid(field, f"{field} is set, which is not supported here{instead}")
