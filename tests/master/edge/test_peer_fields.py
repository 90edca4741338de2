"""A6: whatever field clients of other servers send, docs/api.md says what becomes of it here, and says the truth."""

import re
from pathlib import Path

import pytest

from master.edge.chat.body import ChatBody
from master.edge.completions.body import CompletionBody
from master.edge.fields.completion import CompletionFields
from tests.http_service import HttpEdge

OPENAI_CHAT = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages
    metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
    stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
    web_search_options
"""
OPENAI_COMPLETIONS = """
    best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop stream
    stream_options suffix temperature top_p user
"""
VLLM = """
    add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo frequency_penalty
    guided_choice guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern
    ignore_eos include_stop_str_in_output kv_transfer_params length_penalty logit_bias logits_processors
    logprob_token_ids logprobs max_tokens min_p min_tokens model n presence_penalty priority prompt_logprobs
    repetition_detection repetition_penalty request_id response_format return_mm_kwargs return_token_ids
    return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_special_tokens
    spaces_between_special_tokens stop stop_token_ids stream stream_interval stream_options structured_outputs
    temperature thinking_token_budget top_k top_p truncate_prompt_tokens truncation_side use_beam_search user
    vllm_xargs watermarking
"""
VLLM_CHAT = """
    add_generation_prompt chat_template chat_template_kwargs continue_final_message documents include_reasoning
    max_completion_tokens media_io_kwargs messages mm_processor_kwargs parallel_tool_calls reasoning_effort
    return_prompt_text tool_choice tools top_logprobs
"""
VLLM_COMPLETIONS = "best_of prompt prompt_embeds suffix"
SGLANG = """
    bootstrap_host bootstrap_port bootstrap_room cache_salt custom_logit_processor custom_params data_parallel_rank
    disagg_prefill_dp_rank ebnf extra_key frequency_penalty ignore_eos images_config logit_bias logprobs lora_path
    max_tokens min_p min_tokens model n ngram_corpus_id no_stop_trim presence_penalty priority regex
    repetition_penalty response_format return_cached_tokens_details return_hidden_states return_routed_experts
    return_token_ids rid routed_dp_rank routed_experts_start_len seed session_id session_params skip_special_tokens
    stop stop_regex stop_token_ids stream stream_options temperature top_k top_p user
"""
SGLANG_CHAT = """
    chat_template_kwargs continue_final_message input_ids max_completion_tokens max_dynamic_patch messages
    min_dynamic_patch parallel_tool_calls reasoning_effort return_meta_info return_prompt_token_ids
    separate_reasoning stream_reasoning task tool_choice tools top_logprobs use_audio_in_video
"""
SGLANG_COMPLETIONS = "best_of custom_labels echo json_schema prompt suffix"

CHAT = sorted({*" ".join([OPENAI_CHAT, VLLM, VLLM_CHAT, SGLANG, SGLANG_CHAT]).split()})
COMPLETIONS = sorted({*" ".join([OPENAI_COMPLETIONS, VLLM, VLLM_COMPLETIONS, SGLANG, SGLANG_COMPLETIONS]).split()})
SERVED, IGNORED, REFUSED = "served", "ignored", "refused"

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
# Of a type that the field may have; any other field takes any value.
ASKING: dict[str, object] = {
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "suffix": "x",
    "thinking_token_budget": 100,
}


def section(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n##")[0]


def fates(column: int) -> dict[str, str]:
    """What becomes of each field, by the table's cell for chat (1) or text (2) completions."""
    found = {}
    for row in re.findall(r"^\| `.*", section("Sampling options") + section("Chat and text completions"), re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        fate = cells[column] if cells[column] in (IGNORED, REFUSED) else SERVED
        if cells[column]:
            names = re.findall(r"`(\w+)`", cells[column] if cells[column].startswith("`") else cells[0])
            found.update(dict.fromkeys(names, fate))
    return found


@pytest.mark.parametrize(
    ("column", "fields", "body"), [(1, CHAT, ChatBody), (2, COMPLETIONS, CompletionBody)], ids=["chat", "completions"]
)
def test_every_field_of_peers_is_served_ignored_or_refused(
    column: int, fields: list[str], body: type[CompletionFields]
) -> None:
    found = fates(column)
    assert [field for field in fields if field not in found] == []
    read = body.__struct_fields__
    assert [field for field, fate in found.items() if (fate == IGNORED) == (field in read)] == []


async def test_what_is_said_to_be_refused_is_refused_by_name(edge: HttpEdge) -> None:
    hi = {"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hi"}
    for column, path, prompt in ((1, "/v1/chat/completions", hi[0]), (2, "/v1/completions", hi[1])):
        refused = [field for field, fate in fates(column).items() if fate == REFUSED]
        assert len(refused) > 20
        for field in refused:
            response = await edge.client.post(path, **prompt, **{field: ASKING.get(field, "x")})
            param = "functions" if field == "function_call" else field
            assert (field, response.status, response.error()["param"]) == (field, 400, param)
    assert edge.service.requests == []


async def test_what_is_said_to_be_ignored_changes_nothing(edge: HttpEdge) -> None:
    ignored = dict.fromkeys([field for field, fate in fates(1).items() if fate == IGNORED], "x")
    response = await edge.client.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], **ignored)
    assert response.status == 200, response.text
    plain = await edge.client.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert response.json()["choices"] == plain.json()["choices"]
