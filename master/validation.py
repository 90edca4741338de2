"""What a client may ask for: every check that needs no worker, and every default.

Ranges follow OpenAI's API where it has the field, and vLLM's for the extensions. A seed is 0 … 2^63-1.
"""

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from master.errors import invalid
from master.request import GenerationRequest, RequestOptions
from master.service import ModelCard
from protos.sampling_messages import SamplingParams

MAX_N = 128
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 1024
MAX_CACHE_SALT_CHARACTERS = 256
MAX_PRIORITY = 100  # either way
INT32 = 2**31
# Dividing logits by less overflows float32, and the most likely token is chosen anyway.
SMALLEST_TEMPERATURE = 1e-4

CONTEXT_EXCEEDED = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Limits:
    """What this deployment can take: `max_worker_tokens` of prompt and completion together and
    `max_worker_sequences` at once on the largest worker; None while no worker is known."""

    max_context: int
    max_worker_tokens: int | None = None
    max_worker_sequences: int | None = None
    default_time_limit_s: float = 600.0
    max_time_limit_s: float = 3600.0


def random_seed() -> int:
    return secrets.randbelow(MAX_SEED + 1)


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
    _check_prompt(prompt_ids, vocab_size)
    max_tokens = _max_tokens(len(prompt_ids), options.max_tokens, model, limits)
    min_tokens = _whole("min_tokens", options.min_tokens, 0, 0, max_tokens)
    n = _n(options.n, limits)
    temperature = _number("temperature", options.temperature, 1.0, 0, 2)
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature if temperature >= SMALLEST_TEMPERATURE else 0.0,
        top_p=_positive("top_p", options.top_p, 1.0, 1),
        top_k=_top_k(options.top_k, vocab_size),
        min_p=_number("min_p", options.min_p, 0.0, 0, 1),
        presence_penalty=_number("presence_penalty", options.presence_penalty, 0.0, -2, 2),
        frequency_penalty=_number("frequency_penalty", options.frequency_penalty, 0.0, -2, 2),
        repetition_penalty=_positive("repetition_penalty", options.repetition_penalty, 1.0, 2),
        logit_bias=_logit_bias(options.logit_bias, vocab_size),
        seed=new_seed() if options.seed is None else _whole("seed", options.seed, 0, 0, MAX_SEED),
        logprobs=_optional_whole("logprobs", options.logprobs, 0, MAX_LOGPROBS),
        prompt_logprobs=_optional_whole("prompt_logprobs", options.prompt_logprobs, 0, MAX_LOGPROBS),
        stop_token_ids=_stop_token_ids(options, vocab_size, eos_token_ids),
        bad_words_ids=_bad_words_ids(options.bad_words, encode),
        grammar=options.grammar,
    )
    return GenerationRequest(
        id=new_id(),
        model=model.id,
        prompt_ids=tuple(prompt_ids),
        sampling=sampling,
        arrived_s=now(),
        time_limit_s=_time_limit_s(options.time_limit_s, limits),
        n=n,
        stop=_stop(options.stop),
        include_stop=options.include_stop,
        skip_special_tokens=options.skip_special_tokens,
        priority=_whole("priority", options.priority, 0, -MAX_PRIORITY, MAX_PRIORITY),
        cache_salt=_cache_salt(options.cache_salt),
    )


def _check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> None:
    if not prompt_ids:
        raise invalid("prompt", "prompt is empty; it must have at least one token")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        position = next(at for at, token_id in enumerate(prompt_ids) if not 0 <= token_id < vocab_size)
        wrong = prompt_ids[position]
        raise invalid("prompt", f"prompt[{position}] is token id {wrong}; ids must be 0 … {vocab_size - 1}")


def _max_tokens(num_prompt: int, asked: int | None, model: ModelCard, limits: Limits) -> int:
    """Tokens the completion may have: the asked for number, which must fit, or else all there is room for."""
    room, what = min(model.max_context, limits.max_context), "the model's context is"
    if limits.max_worker_tokens is not None and limits.max_worker_tokens < room:
        room, what = limits.max_worker_tokens, "the largest worker here holds"
    limit = f"{what} {room} tokens, prompt and completion together"
    if num_prompt >= room:
        raise invalid("prompt", f"prompt has {num_prompt} tokens; {limit}", code=CONTEXT_EXCEEDED)
    if asked is None:
        return room - num_prompt
    if _is_bool(asked) or asked < 1:
        raise invalid("max_tokens", f"max_tokens is {_shown(asked)}; it must be at least 1")
    if num_prompt + asked > room:
        told = f"max_tokens is {_shown(asked)} and prompt has {num_prompt} tokens; {limit}"
        raise invalid("max_tokens", told, code=CONTEXT_EXCEEDED)
    return asked


def _n(asked: int | None, limits: Limits) -> int:
    n = _whole("n", asked, 1, 1, MAX_N)
    if limits.max_worker_sequences is not None and n > limits.max_worker_sequences:
        raise invalid("n", f"n is {n}; the largest worker here runs at most {limits.max_worker_sequences} at once")
    return n


def _whole(field: str, value: int | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if _is_bool(value) or not low <= value <= high:
        raise invalid(field, f"{field} is {_shown(value)}; it must be a whole number, {low} … {high}")
    return value


def _optional_whole(field: str, value: int | None, low: int, high: int) -> int | None:
    return None if value is None else _whole(field, value, low, low, high)


def _number(field: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    # NaN is in no range
    if _is_bool(value) or not low <= value <= high:
        raise invalid(field, f"{field} is {_shown(value)}; it must be between {low} and {high}")
    return float(value)


def _positive(field: str, value: float | None, default: float, high: float) -> float:
    if value is None:
        return default
    if _is_bool(value) or not 0 < value <= high:
        raise invalid(field, f"{field} is {_shown(value)}; it must be more than 0 and at most {high}")
    return float(value)


def _top_k(value: int | None, vocab_size: int) -> int:
    if value is None:
        return 0
    if _is_bool(value) or value < -1:
        raise invalid("top_k", f"top_k is {_shown(value)}; it must be at least 1, or 0 or -1 for no limit")
    return min(max(value, 0), vocab_size)


def _logit_bias(biases: Mapping[int, float] | None, vocab_size: int) -> dict[int, float]:
    if not biases:
        return {}
    if len(biases) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"logit_bias has {len(biases)} entries; at most {MAX_LOGIT_BIASES} are allowed")
    for token_id, bias in biases.items():
        _check_token_id("logit_bias", token_id, vocab_size)
        if _is_bool(bias) or not -100 <= bias <= 100:
            raise invalid(
                "logit_bias", f"logit_bias of token {token_id} is {_shown(bias)}; it must be between -100 and 100"
            )
    return {token_id: float(bias) for token_id, bias in biases.items()}


def _stop(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"stop has {len(stops)} strings; at most {MAX_STOPS} are allowed")
    for text in stops:
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop", f"stop has a string of {len(text)} characters; each must have 1 … {MAX_STOP_CHARACTERS}"
            )
    return tuple(dict.fromkeys(stops))


def _stop_token_ids(options: RequestOptions, vocab_size: int, eos_token_ids: Collection[int]) -> tuple[int, ...]:
    asked = options.stop_token_ids
    if len(asked) > MAX_STOP_TOKEN_IDS:
        raise invalid(
            "stop_token_ids", f"stop_token_ids has {len(asked)} ids; at most {MAX_STOP_TOKEN_IDS} are allowed"
        )
    for token_id in asked:
        _check_token_id("stop_token_ids", token_id, vocab_size)
    ends = () if options.ignore_eos else tuple(eos_token_ids)
    return tuple(dict.fromkeys((*ends, *asked)))


def _bad_words_ids(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """A word's ids at the start of a text and, where they differ, after a space."""
    if len(words) > MAX_BAD_WORDS:
        raise invalid("bad_words", f"bad_words has {len(words)} words; at most {MAX_BAD_WORDS} are allowed")
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not 0 < len(bare) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "bad_words", f"bad_words has a word of {len(bare)} characters; each must have 1 … {MAX_STOP_CHARACTERS}"
            )
        for text in (bare, f" {bare}"):
            spellings[tuple(encode(text))] = None
    spellings.pop((), None)
    return tuple(spellings)


def _cache_salt(salt: str | None) -> str:
    if salt is None:
        return ""
    if len(salt) > MAX_CACHE_SALT_CHARACTERS:
        raise invalid(
            "cache_salt", f"cache_salt has {len(salt)} characters; at most {MAX_CACHE_SALT_CHARACTERS} are allowed"
        )
    return salt


def _time_limit_s(asked: float | None, limits: Limits) -> float:
    """What a client is willing to wait, and never more than the server is."""
    asked = _positive("time_limit_s", asked, limits.default_time_limit_s, math.inf)
    return min(asked, limits.max_time_limit_s)


def _check_token_id(field: str, token_id: int, vocab_size: int) -> None:
    if _is_bool(token_id) or not 0 <= token_id < vocab_size:
        raise invalid(field, f"{field} has token id {_shown(token_id)}; ids must be 0 … {vocab_size - 1}")


def _is_bool(value: object) -> bool:
    """JSON's true must not pass for the number 1, as Python would have it."""
    return isinstance(value, bool)


def _shown(value: float) -> str:
    """A client's number may have thousands of digits."""
    return f"{value!r:.40}" if isinstance(value, float) or abs(value) < 10**40 else "a number of over 40 digits"
