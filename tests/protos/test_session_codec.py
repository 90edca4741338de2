"""Every message of the session survives the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import sampling_messages as s
from protos import session_messages as m
from protos import session_pb2 as wire
from protos.sampling_codec import unpack_ids
from protos.served_model import ServedModel
from protos.session_codec import decode_to_master, decode_to_worker, encode_to_master, encode_to_worker

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
double = st.floats(allow_nan=False)
text = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.lists(u32, max_size=20).map(tuple)
hashes = st.lists(st.binary(min_size=16, max_size=16), max_size=4).map(tuple)

grammars = st.one_of(
    st.builds(
        s.Grammar,
        st.sampled_from([s.GrammarKind.JSON_SCHEMA, s.GrammarKind.REGEX, s.GrammarKind.LARK]),
        text,
    ),
    st.builds(s.Grammar, st.just(s.GrammarKind.CHOICE), st.just(""), st.lists(text, max_size=3).map(tuple)),
)
logprobs = st.one_of(
    st.builds(s.TokenLogprobs, token_id=u32, logprob=double, rank=u32, top=st.lists(st.tuples(u32, double)).map(tuple)),
    st.builds(s.TokenLogprobs, token_id=st.none(), logprob=st.none(), rank=st.none(), top=st.just(())),
)
sampling = st.builds(
    s.SamplingParams,
    max_tokens=u32,
    min_tokens=u32,
    temperature=double,
    top_p=double,
    top_k=st.integers(-1, 2**31 - 1),
    min_p=double,
    presence_penalty=double,
    frequency_penalty=double,
    repetition_penalty=double,
    logit_bias=st.dictionaries(u32, double, max_size=3),
    seed=st.integers(-(2**63), 2**63 - 1),
    logprobs=st.none() | u32,
    prompt_logprobs=st.none() | u32,
    stop_token_ids=ids,
    bad_words_ids=st.lists(ids, max_size=2).map(tuple),
    grammar=st.none() | grammars,
)
starts = st.builds(
    m.Start,
    leg=u64,
    request_id=text,
    stage=st.sampled_from(m.Stage),
    prompt_ids=ids,
    output_ids=ids,
    sequences=st.lists(u32, max_size=3).map(tuple),
    sampling=sampling,
    priority=st.integers(-(2**31), 2**31 - 1),
    cache_salt=text,
    time_limit_s=double,
    kv_handle=st.none() | st.binary(),
    age_s=double,
)
to_worker = st.one_of(
    st.builds(m.Hello, text, u32, text, st.binary(max_size=16)),
    starts,
    st.builds(m.Cancel, u64, st.none() | u32),
    st.builds(m.DecodeHere, u64),
    st.just(m.Drain()),
    st.just(m.Heartbeat()),
    st.builds(m.Standing, st.none() | text),
    st.just(m.SnapshotRequest()),
)
deltas = st.builds(
    m.TokenDelta,
    u32,
    u32,
    ids,
    st.lists(logprobs, max_size=2).map(tuple),
    st.none() | st.sampled_from(s.FinishReason),
)
models = st.builds(
    ServedModel,
    text,
    text,
    text,
    quantization=st.none() | text,
    adapter=st.none() | text,
    is_batch_invariant=st.booleans(),
    kv_dtype=st.none() | text,
)
updates = st.builds(
    m.LegUpdate,
    leg=u64,
    started=st.none() | st.builds(m.Started, u32, double, st.none() | st.binary()),
    prefilled=st.none() | st.builds(m.Prefilled, u32, double),
    transferred=st.none() | st.builds(m.Transferred, text, u64, u32, u32, double, double),
    deltas=st.lists(deltas, max_size=3).map(tuple),
    failure=st.none() | st.builds(m.Failure, st.sampled_from(m.ErrorCode), text),
    prompt_logprobs=st.lists(logprobs, max_size=2).map(tuple),
    ended=st.booleans(),
)
to_master = st.one_of(
    st.builds(
        m.Welcome, text, st.sampled_from(m.Role), models, u64, st.binary(max_size=16), u32, u32, u32, u32, text, u32,
        u32, st.binary(max_size=32),
    ),
    st.builds(m.Step, st.lists(updates, max_size=3).map(tuple)),
    st.builds(
        m.LoadReport, st.sampled_from(m.Role), u32, u64, u32, u32, u32, u64, double,
        st.none() | st.builds(m.PrefillSpeed, double, double), u32, st.booleans(), st.booleans(),
        st.builds(m.TransferCounters, u64, u64, u64, u64, u64), st.none() | text,
    ),
    st.builds(m.CacheEvents, u64, hashes, hashes, st.booleans()),
)  # fmt: skip


@given(to_worker)
def test_messages_to_a_worker_survive_the_wire(message: m.ToWorker) -> None:
    data = encode_to_worker(message).SerializeToString()
    assert decode_to_worker(wire.ToWorker.FromString(data)) == message


@given(to_master)
def test_messages_to_a_master_survive_the_wire(message: m.ToMaster) -> None:
    data = encode_to_master(message).SerializeToString()
    assert decode_to_master(wire.ToMaster.FromString(data)) == message


def test_zero_and_unset_differ() -> None:
    for value in (None, 0):
        params = s.SamplingParams(temperature=0.0, logprobs=value)
        start = m.Start(1, "r", m.Stage.WHOLE, (1,), params)
        assert decode_to_worker(encode_to_worker(start)) == start


def test_messages_of_another_version_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no known kind"):
        decode_to_worker(wire.ToWorker())
    with pytest.raises(ValueError, match="stage: unknown value 0"):
        decode_to_worker(wire.ToWorker(start=wire.Start(leg=1)))
    with pytest.raises(ValueError, match="3 bytes"):
        unpack_ids(b"abc")
    with pytest.raises(ValueError, match="block hashes"):
        decode_to_master(wire.ToMaster(cache=wire.CacheEvents(stored=b"short")))
