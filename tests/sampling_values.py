"""A value for each sampling option, made from its type: a new option needs no line in a test that carries them all."""

from typing import get_type_hints

import msgspec

from protos.sampling_messages import SamplingOptions

# The first that has an option's type is its value. All are allowed together, and none is a message's default.
VALUES = (True, 0.5, 3, {7: -2.0}, [5, 6], ["a", "b"], "text")


def one_of_each() -> SamplingOptions:
    values = {name: _value_of(kind) for name, kind in get_type_hints(SamplingOptions).items()}
    return msgspec.convert(values | {"skip_special_tokens": False}, SamplingOptions)


def _value_of(kind: object) -> object:
    for value in VALUES:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
    raise AssertionError(f"no value is a {kind}")
