"""How the HTTP edge behaves."""

from dataclasses import dataclass, field

from master.parsing.formats import ParserChoice

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class HttpConfig:
    max_body_bytes: int = 32 * MEBIBYTE
    body_timeout_s: float = 60.0  # until a request's body is whole
    slow_reader_timeout_s: float = 60.0  # until a client that takes nothing of its answer is cut
    parsers: ParserChoice = field(default_factory=ParserChoice)  # of what the served model writes
    max_stored_responses: int = 0  # of /v1/responses
    keep_responses_s: float = 3600.0
    shows_tokenizer: bool = False  # whether /tokenizer_info answers
    has_dashboard: bool = True
    cors_origins: tuple[str, ...] = ()  # of web pages that may read answers
