"""What both edges call a client that reads too slowly."""


class SlowReader(Exception):
    """The client has taken nothing of its answer for too long."""
