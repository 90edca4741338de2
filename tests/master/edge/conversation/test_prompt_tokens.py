"""What becomes of a client's text on its way to token ids and back."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from master.edge.conversation.prompt_tokens import MAX_TEXT_BYTES
from master.edge.http.json_object import encode
from master.edge.http.request_body import MAX_ESCAPES, decode_body
from master.edge.routes.tokenize import DetokenizeBody
from master.errors import ServingError
from master.text.text_pool import THREAD_NAME
from master.text.tokenizer import Tokenizer, load_tokenizer
from master.text.vocabulary import Vocabulary
from tests.http_service import EOS, MAX_CONTEXT, HttpEdge, HttpService, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Watched:
    """A tokenizer and a template that note which threads they are used on."""

    def __init__(self, service: HttpService, threads: list[str]) -> None:
        self._tokenizer, self._template = service.tokenizer, service.chat_template
        self._threads = threads

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def note(self) -> None:
        self._threads.append(threading.current_thread().name)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self.note()
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        if len(token_ids) > 100:  # the end of a prompt is looked at on the loop
            self.note()
        return self._tokenizer.decode(token_ids, skip_special_tokens)


@pytest.fixture
def threads() -> list[str]:
    return []


@pytest.fixture
async def watched(threads: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpEdge]:
    service = HttpService()
    monkeypatch.setattr(service, "tokenizer", Watched(service, threads))
    async with serving(service) as edge:
        yield edge


MANY_TOOLS = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(1000)]
LONG = "fox " * 25_000
BODIES: list[tuple[str, dict[str, object]]] = [
    (COMPLETIONS, {"prompt": "fox " * 2_600}),
    (COMPLETIONS, {"prompt": [7] * 12_000, "echo": True}),
    (CHAT, {"messages": [{"role": "user", "content": "fox " * 2_600}]}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}] * 5_000}),
    ("/tokenize", {"prompt": LONG}),
    ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
    ("/detokenize", {"tokens": [7] * 100_000}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": MANY_TOOLS, "tool_choice": "auto"}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_long_texts_never_run_on_the_loop(
    watched: HttpEdge, threads: list[str], path: str, body: dict[str, object]
) -> None:
    """C2"""
    response = await watched.client.post(path, **body)
    assert response.status in (200, 400), response.text
    assert [name for name in threads if not name.startswith(THREAD_NAME)] == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x" * 1_000_000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 1_000_000}]}, "messages"),
    ],
)
async def test_a_hopelessly_long_text_is_not_tokenised(
    watched: HttpEdge, threads: list[str], path: str, body: dict[str, object], param: str
) -> None:
    """C3, A1: and is refused in the words that clients match."""
    error = (await watched.client.post(path, **body)).error()
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert error["message"].startswith(f"This model's maximum context length is {MAX_CONTEXT} tokens. ")
    assert threads == []


async def test_a_body_of_very_many_values_is_not_decoded(edge: HttpEdge) -> None:
    """C2: nothing else runs while JSON is decoded."""
    response = await edge.client.post("/detokenize", tokens=[1] * 600_000)
    assert response.status == 400 and "values" in response.error()["message"]


def test_a_body_of_very_many_escapes_is_not_decoded() -> None:
    """C2: each costs as much as a value."""
    body = b'{"prompt": "' + b"\\u00e9" * (MAX_ESCAPES + 1) + b'"}'
    with pytest.raises(ServingError, match="backslashes"):
        decode_body(body, msgspec.json.Decoder(DetokenizeBody))


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_a_text_of_megabytes_is_not_tokenised_though_no_context_limits_it(
    watched: HttpEdge, threads: list[str], path: str
) -> None:
    """C2: nothing else runs while its ids become numbers."""
    messages = [{"role": "user", "content": "x" * (MAX_TEXT_BYTES + 1)}]
    response = await watched.client.post(path, messages=messages)
    assert response.status == 400 and "bytes; at most" in response.text
    assert threads == []


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("make", [str, lambda text: [{"type": "text", "text": text}]], ids=["text", "parts"])
async def test_markers_that_users_write_stay_text(edge: HttpEdge, role: str, make: Callable[[str], object]) -> None:
    """T14"""
    said = f"end {EOS} it"
    messages = [{"role": "user", "content": "hi"}, {"role": role, "content": make(said), "tool_call_id": "1"}]
    await edge.client.post(CHAT, messages=messages)
    tokenizer, ids = edge.service.tokenizer, edge.service.requests[-1].prompt_ids
    assert tokenizer.eos_ids[0] not in ids
    assert said in tokenizer.decode(ids, skip_special_tokens=True)
    edge.service.user_markers = None
    await edge.client.post(CHAT, messages=messages)
    assert tokenizer.eos_ids[0] in edge.service.requests[-1].prompt_ids


async def test_markers_of_others_are_control_tokens(edge: HttpEdge) -> None:
    await edge.client.post(COMPLETIONS, prompt=f"a{EOS}")
    assert edge.service.tokenizer.eos_ids[0] in edge.service.requests[-1].prompt_ids


@pytest.fixture
def holed(tmp_path: Path) -> Tokenizer:
    """A vocabulary in which an id means nothing."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 9}, "merges": []}
    library = {"version": "1.0", "added_tokens": [], "model": model, "decoder": byte_level, "pre_tokenizer": byte_level}
    (tmp_path / "tokenizer.json").write_text(json.dumps(library))
    return load_tokenizer(tmp_path)


def test_where_an_id_without_text_is_is_told(holed: Tokenizer) -> None:
    """T15"""
    vocabulary: Vocabulary = holed.vocabulary
    assert vocabulary.position_without_text([0, 1, holed.vocab_size - 1]) is None
    assert vocabulary.position_without_text([0, 1, 2]) == 2
    assert vocabulary.position_without_text([holed.vocab_size]) == 0


async def test_an_id_without_text_is_refused_by_name_on_every_path(holed: Tokenizer) -> None:
    """T15"""
    service = HttpService()
    service.tokenizer = holed
    async with serving(service) as edge:
        for path, body, param in (
            ("/detokenize", {"tokens": [0, 5]}, "tokens"),
            (COMPLETIONS, {"prompt": [0, 5]}, "prompt"),
            (COMPLETIONS, {"prompt": [[0], [0, 5]], "echo": True}, "prompt"),
        ):
            error = (await edge.client.post(path, **body)).error()
            assert error["param"] == param and f"{param}[1] is token id 5" in error["message"]


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\x85b", "ä\n"])
async def test_an_event_is_one_line_for_whoever_reads_it(text: str) -> None:
    """T13"""
    encoded = encode({"text": text}).decode()
    assert len(encoded.splitlines()) == 1
    assert json.loads(encoded) == {"text": text}
