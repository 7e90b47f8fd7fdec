"""The one exception of this package."""


class ClusterError(Exception):
    """Something the user can act on: the message says what went wrong and what to do about it."""
