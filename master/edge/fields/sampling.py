"""The sampling options as fields of a body, made from their declaration in protos/sampling_messages.py."""

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar, get_type_hints

import msgspec

from protos.option import Api
from protos.sampling_messages import SAMPLING_OPTIONS, SamplingOptions

TYPES = get_type_hints(SamplingOptions)


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """A body `with_sampling`. `option_names` are what its API calls the options."""

    option_names: ClassVar[Mapping[str, str]]

    def sampling_options(self) -> SamplingOptions:
        """Those that are set. Raises ServingError where an API has a form of its own, and it is wrong."""
        given = {option: getattr(self, field) for option, field in self.option_names.items()}
        return msgspec.convert({option: value for option, value in given.items() if value is not None}, SamplingOptions)


Body = TypeVar("Body", bound=SamplingFields)


def with_sampling(api: Api) -> Callable[[type[Body]], type[Body]]:
    """Gives a body a field for each sampling option that `api` takes, by the name it has there."""
    names = {name: option.names.get(api, name) for name, option in SAMPLING_OPTIONS.items()}
    taken = {option: field for option, field in names.items() if field is not None}

    def add_fields(body: type[Body]) -> type[Body]:
        fields = [(field, TYPES[option], None) for option, field in taken.items()]
        namespace = {"__doc__": body.__doc__, "option_names": taken}
        made = msgspec.defstruct(
            body.__name__, fields, bases=(body,), module=body.__module__, namespace=namespace, frozen=True, kw_only=True
        )
        assert issubclass(made, body)
        return made

    return add_fields
