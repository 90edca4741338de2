"""What a client may ask for: every check that needs no worker, and every default that is not a constant.

What each option may be is declared in protos/sampling_messages.py.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from master.errors import ServingError, invalid
from master.request import GenerationRequest, RequestOptions
from master.service import ModelCard
from protos.option import Range, shown
from protos.sampling_messages import SAMPLING_OPTIONS, SamplingOptions, SamplingParams

# Dividing logits by less overflows float32, and the most likely token is chosen anyway.
SMALLEST_TEMPERATURE = 1e-4
TIME_LIMITS = Range(0, excludes_low=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """What this deployment can take: `max_worker_tokens` of prompt and completion together and
    `max_worker_sequences` at once on the largest worker; None while no worker is known.

    That one may be away for a moment: `present_tokens` is what the largest of those holds that are there now.
    """

    max_context: int
    max_worker_tokens: int | None = None
    present_tokens: int | None = None
    max_worker_sequences: int | None = None
    time_limit_s: float = 600.0


def random_seed() -> int:
    return secrets.randbits(63)


def build_generation_request(
    prompt_ids: Sequence[int],
    options: RequestOptions,
    *,
    model: ModelCard,
    vocab_size: int,
    eos_token_ids: Collection[int],
    limits: Limits,
    encode: Callable[[str], Sequence[int]],
    new_id: Callable[[], str],
    now: Callable[[], float],
    new_seed: Callable[[], int] = random_seed,
) -> GenerationRequest:
    """Check a request and fill in its defaults.

    `encode` turns a bad word into ids without special tokens; `now` is time.monotonic. An unset max_tokens becomes
    what the context leaves. Raises ServingError INVALID_REQUEST naming the field, its value and what is allowed; its
    code is context_length_exceeded where the prompt, or prompt and max_tokens together, are too long.
    """
    asked = options.sampling
    _check_prompt(prompt_ids, vocab_size)
    _check_options(asked)
    max_tokens = _max_tokens(len(prompt_ids), asked.get("max_tokens"), model, limits)
    params = _given_params(asked)
    if params.min_tokens > max_tokens:
        raise invalid("min_tokens", f"min_tokens is {shown(params.min_tokens)}; max_tokens is only {max_tokens}")
    _check_token_ids("logit_bias", params.logit_bias, vocab_size)
    _check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    ends = () if asked.get("ignore_eos") else tuple(eos_token_ids)
    return GenerationRequest(
        id=new_id(),
        model=model.id,
        prompt_ids=tuple(prompt_ids),
        sampling=replace(
            params,
            max_tokens=max_tokens,
            temperature=params.temperature if params.temperature >= SMALLEST_TEMPERATURE else 0.0,
            seed=new_seed() if asked.get("seed") is None else params.seed,
            stop_token_ids=tuple(dict.fromkeys((*ends, *params.stop_token_ids))),
            bad_words_ids=_bad_words_ids(_texts(asked.get("bad_words")), encode),
            grammar=options.grammar,
        ),
        arrived_s=now(),
        time_limit_s=_time_limit_s(options.time_limit_s, limits),
        n=_n(asked.get("n"), limits),
        stop=tuple(dict.fromkeys(_texts(asked.get("stop")))),
        include_stop=bool(asked.get("include_stop_str_in_output")),
        skip_special_tokens=asked.get("skip_special_tokens") is not False,
        priority=asked.get("priority") or 0,
        cache_salt=asked.get("cache_salt") or "",
        name=options.name,
    )


def context_exceeded(field: str, max_context: int, told: str) -> ServingError:
    """Begins with OpenAI's own sentence: clients look for it to go on with another model."""
    sentence = f"This model's maximum context length is {max_context} tokens"
    return invalid(field, f"{sentence}. {told}", code="context_length_exceeded")


def _check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> None:
    if not prompt_ids:
        raise invalid("prompt", "prompt is empty; it must have at least one token")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        position = next(at for at, token_id in enumerate(prompt_ids) if not 0 <= token_id < vocab_size)
        wrong = prompt_ids[position]
        raise invalid("prompt", f"prompt[{position}] is token id {wrong}; ids must be 0 … {vocab_size - 1}")


def _check_options(asked: SamplingOptions) -> None:
    for name, value in asked.items():
        allowed = SAMPLING_OPTIONS[name].allowed
        if value is not None and allowed is not None and (problem := allowed.problem(value)):
            raise invalid(name, f"{name} {problem}")


def _given_params(asked: SamplingOptions) -> SamplingParams:
    """Workers get these as they were asked for, besides the defaults."""
    return msgspec.convert({name: value for name, value in asked.items() if value is not None}, SamplingParams)


def _max_tokens(num_prompt: int, asked: int | None, model: ModelCard, limits: Limits) -> int:
    """Tokens the completion may have: the asked for number, which must fit, or else all there is room for now."""
    room, what = min(model.max_context, limits.max_context), "the model's context is"
    if limits.max_worker_tokens is not None and limits.max_worker_tokens < room:
        room, what = limits.max_worker_tokens, "the largest worker here holds"
    limit = f"{what} {room} tokens, prompt and completion together"
    if num_prompt >= room:
        raise context_exceeded("prompt", model.max_context, f"prompt has {num_prompt} tokens; {limit}")
    if asked is None:
        present = limits.present_tokens
        return (room if present is None or not num_prompt < present < room else present) - num_prompt
    if num_prompt + asked > room:
        both = f"max_tokens is {shown(asked)} and prompt has {num_prompt} tokens"
        raise context_exceeded("max_tokens", model.max_context, f"{both}; {limit}")
    return asked


def _n(asked: int | None, limits: Limits) -> int:
    n = asked or 1
    if limits.max_worker_sequences is not None and n > limits.max_worker_sequences:
        raise invalid("n", f"n is {n}; the largest worker here runs at most {limits.max_worker_sequences} at once")
    return n


def _check_token_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid(name, f"{name} has token id {shown(token_id)}; ids must be 0 … {vocab_size - 1}")


def _texts(given: str | Sequence[str] | None) -> Sequence[str]:
    """One text stands for a list of one."""
    return [given] if isinstance(given, str) else given or ()


def _bad_words_ids(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """A word's ids at the start of a text and, where they differ, after a space."""
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise invalid("bad_words", "bad_words has a word of blanks only")
        for text in (bare, f" {bare}"):
            spellings[tuple(encode(text))] = None
    spellings.pop((), None)
    return tuple(spellings)


def _time_limit_s(asked: float | None, limits: Limits) -> float:
    """What a client is willing to wait, and never more than the server is."""
    if asked is None:
        return limits.time_limit_s
    if problem := TIME_LIMITS.problem(asked):
        raise invalid("time_limit_s", f"time_limit_s {problem}")
    return min(asked, limits.time_limit_s)
