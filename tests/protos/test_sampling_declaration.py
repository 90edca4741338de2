"""A sampling parameter is declared once; whatever carries it follows from the declaration."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from client.options import Options
from master.edge.chat.body import ChatBody
from master.edge.completions.body import CompletionBody
from master.edge.fields.sampling import SamplingFields
from master.edge.messages.body import MessagesBody
from master.edge.responses.body import ResponsesBody
from protos import inference_pb2, sampling_pb2
from protos.option import Api
from protos.sampling_messages import SAMPLING_OPTIONS, SamplingParams

ROOT = Path(__file__).parents[2]
PRODUCT = ("client", "config", "kvcache", "master", "pdserve", "protos", "registry", "serving", "worker")
DECLARATION = {"protos/sampling.proto", "protos/sampling_messages.py"}
SAMPLER = "worker/engines/torch/sampling/"

WIRE_PARAMS = sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
WIRE_OPTIONS = inference_pb2.GenerationOptions.DESCRIPTOR.fields_by_name


@pytest.mark.parametrize(
    "name", ["top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_a_parameter_is_named_where_it_is_declared_and_where_it_is_used(name: str) -> None:
    sources = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".proto")]
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if "_pb2" not in path.name and re.search(rf"\b{name}\b", path.read_text())
    }
    used = {path for path in naming if path.startswith(SAMPLER)}
    # the answer of /v1/responses repeats what it was sampled with
    assert used and naming - used - {"master/edge/responses/response_object.py"} == DECLARATION


def test_the_wire_carries_what_workers_get() -> None:
    assert list(WIRE_PARAMS) == [field.name for field in fields(SamplingParams)]


def test_the_wire_carries_what_clients_may_set() -> None:
    assert SAMPLING_OPTIONS.keys() <= {*WIRE_PARAMS, *WIRE_OPTIONS}
    assert SAMPLING_OPTIONS.keys() <= Options.__annotations__.keys()


def test_zero_and_unset_are_two_things_on_the_wire() -> None:
    unset = sampling_pb2.SamplingParams()
    numbers = [name for name in WIRE_PARAMS if isinstance(getattr(unset, name), int | float)]
    assert len(numbers) > 10
    assert [name for name in numbers if not WIRE_PARAMS[name].has_presence] == []


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, ChatBody),
        (Api.COMPLETIONS, CompletionBody),
        (Api.RESPONSES, ResponsesBody),
        (Api.MESSAGES, MessagesBody),
    ],
)
def test_a_body_has_what_its_api_takes(api: Api, body: type[SamplingFields]) -> None:
    sent_as = {name: option.names.get(api, name) for name, option in SAMPLING_OPTIONS.items()}
    assert body.option_names == {name: field for name, field in sent_as.items() if field is not None}
    assert set(body.option_names.values()) <= set(body.__struct_fields__)
