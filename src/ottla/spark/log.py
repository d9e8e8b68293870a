"""Where the source and the sink say what they do: Spark's own log, which takes what its Python processes write to stderr."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("ottla.spark")


def speak() -> None:
    """Let our lines through, unless the program has set up logging itself."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
