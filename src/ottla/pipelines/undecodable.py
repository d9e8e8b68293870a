"""What every decoder raises."""

from __future__ import annotations


class Undecodable(ValueError):
    """A value that is not what it should be; the text is the reason that is told of the record."""
