"""/v1/completions"""

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from master.edge.completions.answer import CompletionResponse, CompletionStream
from master.edge.completions.body import DEFAULT_MAX_TOKENS, MAX_CHOICES, CompletionBody, Prompt
from master.edge.completions.prompt import CompletionPrompt
from master.edge.conversation.prompt_tokens import check_ids, decode_ids, encode_text
from master.edge.http.answer import Answer
from master.edge.http.request_body import decode_body
from master.errors import invalid
from master.request import RequestOptions
from master.service import ModelCard, Service

PATH = "/v1/completions"


class CompletionReader:
    """Makes an Answer out of a body."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(CompletionBody)

    async def __call__(self, body_bytes: bytes) -> Answer:
        """Raises ServingError for whatever is wrong."""
        body, prompts, options = await self._service.text_pool.run(len(body_bytes), self._read, body_bytes)
        model = self._service.resolve_model(body.model)
        num_choices = len(prompts) * (options.sampling.get("n") or 1)
        if num_choices > MAX_CHOICES:
            raise invalid(
                "n", f"{len(prompts)} prompts with n make {num_choices} choices; at most {MAX_CHOICES} are allowed"
            )
        named = [replace(options, name=name) for name in body.request_names(len(prompts))]
        ready = [
            await self._prompt(body, prompt, model, options) for prompt, options in zip(prompts, named, strict=True)
        ]
        form = CompletionStream if body.stream else CompletionResponse
        return form(body, ready, int(time.time()), self._service.tokenizer)

    def _read(self, body_bytes: bytes) -> tuple[CompletionBody, Sequence[Prompt], RequestOptions]:
        """Takes time in proportion to the body."""
        body = decode_body(body_bytes, self._decoder)
        body.check_supported()
        if body.suffix:
            raise invalid("suffix", "suffix is set; inserting text is not supported")
        return body, body.prompts(), body.request_options()

    async def _prompt(
        self, body: CompletionBody, prompt: Prompt, model: ModelCard, options: RequestOptions
    ) -> CompletionPrompt:
        if isinstance(prompt, str):
            adds_special = body.add_special_tokens is not False
            ids = await encode_text(self._service, "prompt", prompt, adds_special, model.max_context)
        else:
            ids = prompt
            await check_ids(self._service, "prompt", ids)
        # the default must not be what makes a prompt too long
        max_tokens = max(1, min(DEFAULT_MAX_TOKENS, model.max_context - len(ids)))
        options = replace(options, sampling={"max_tokens": max_tokens, **options.sampling})
        request = await self._service.build_request(ids, options)
        text = ""
        if body.echo:
            text = prompt if isinstance(prompt, str) else await decode_ids(self._service, "prompt", ids, False)
        return CompletionPrompt(request, text, is_echoed=bool(body.echo), was_text=isinstance(prompt, str))
