"""docs/api.md names every field that is read, in the section of its API, and every status there is."""

from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from master.edge.chat.body import ChatBody
from master.edge.completions.body import CompletionBody
from master.edge.http.status import HTTP_STATUS
from master.edge.messages.body import MessagesBody
from master.edge.messages.error import ERROR_TYPES
from master.edge.responses.body import ResponsesBody
from master.errors import ErrorKind
from protos.option import Api, Option
from protos.sampling_messages import SAMPLING_OPTIONS, SamplingParams

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in DOCUMENT.split("\n## ")}
DEFAULTS = {field.name: field.default for field in fields(SamplingParams)}
HAS_OTHER_DEFAULT = ("max_tokens", "seed")


def rows(section: str) -> list[str]:
    return [line for line in SECTIONS[section].splitlines() if line.startswith("|")]


def option_row(name: str, option: Option) -> str:
    cells = [f"`{name}`"]
    for api in Api:
        sent_as = option.names.get(api, name)
        cells.append("" if sent_as is None else "✓" if sent_as == name else f"`{sent_as}`")
    allowed, default = str(option.allowed or ""), DEFAULTS.get(name)
    if isinstance(default, float | int) and name not in HAS_OTHER_DEFAULT:
        allowed += f"; default {default:g}"
    return " ".join(f"| {cell}" if cell else "|" for cell in (*cells, allowed, option.doc)) + " |"


def test_the_table_of_sampling_options_is_their_declaration() -> None:
    assert rows("Sampling options")[2:] == [option_row(name, option) for name, option in SAMPLING_OPTIONS.items()]


@pytest.mark.parametrize(
    ("section", "body"),
    [
        ("Chat and text completions", ChatBody),
        ("Chat and text completions", CompletionBody),
        ("Responses", ResponsesBody),
        ("Messages", MessagesBody),
    ],
)
def test_every_field_that_is_read_is_described(section: str, body: type[msgspec.Struct]) -> None:
    named = [row.split("|")[1] for row in rows(section)] + rows("Sampling options")
    missing = [field for field in body.__struct_fields__ if not any(f"`{field}`" in cell for cell in named)]
    assert missing == []


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_error_is_described(kind: ErrorKind) -> None:
    status = HTTP_STATUS[kind]
    assert f"| {status.code} | `{status.openai_type}` | `{ERROR_TYPES[kind]}` |" in SECTIONS["Errors"]
