"""docs/api.md names every field that is read, in the section of its API, and every status there is."""

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

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in DOCUMENT.split("\n## ")}


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
    named = [row.split("|")[1] for row in SECTIONS[section].splitlines() if row.startswith("|")]
    missing = [field for field in body.__struct_fields__ if not any(f"`{field}`" in cell for cell in named)]
    assert missing == []


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_error_is_described(kind: ErrorKind) -> None:
    status = HTTP_STATUS[kind]
    assert f"| {status.code} | `{status.openai_type}` | `{ERROR_TYPES[kind]}` |" in SECTIONS["Errors"]
