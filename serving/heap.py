"""Keeps Python's collector of cycles away from what lives as long as the process."""

import gc

# Of new objects, until the youngest are looked through. Python's 700 are few where each request makes a thousand.
YOUNG_OBJECTS = 20_000


def settle_heap() -> None:
    """Called once all is loaded: modules, vocabularies and servers are not looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
