"""The transports there are, the one that is tried first at the top."""

from collections.abc import Iterable

from kvcache.transfer.transports.tcp import Tcp
from kvcache.transfer.transports.transport import Transport
from kvcache.transfer.transports.vm_read import VmRead

TRANSPORTS: tuple[Transport, ...] = (
    VmRead(),
    Tcp(),
)


def named(names: Iterable[str], table: Iterable[Transport] = TRANSPORTS) -> tuple[Transport, ...]:
    """Returns the transports of these names, in that order. Raises ValueError for none, or one that is not there."""
    by_name = {transport.name: transport for transport in table}
    try:
        found = tuple(by_name[name] for name in names)
    except KeyError as error:
        raise ValueError(f"there is no {error.args[0]!r}, only {', '.join(by_name)}") from None
    if not found:
        raise ValueError(f"names none of {', '.join(by_name)}")
    return found
