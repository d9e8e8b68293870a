"""The named steps of a clean at which a test may end a process as kill -9 does.

Guards: without the environment variable nothing is looked at. With it, it names a directory: a step whose file is there is
armed, for once, and the file's content says who dies: `self`, or `both` for the worker and the broker that started it.
"""

from __future__ import annotations

import os
import signal
from typing import Final

ENVIRONMENT: Final = "OTTLA_CLEANER_FAULTS"

WORKER_STEPS: Final = ("map-built", "cleaned-begun", "cleaned-written", "cleaned-synced", "group-told", "pass-ended")
BROKER_STEPS: Final = (
    "before-swap",
    "half-named-swap",
    "named-swap",
    "half-old-gone",
    "old-gone",
    "half-swapped",
    "swapped",
    "directory-synced",
    "before-checkpoint",
    "checkpointed",
)
STEPS: Final = WORKER_STEPS + BROKER_STEPS

_directory: Final = os.environ.get(ENVIRONMENT)


def reach(step: str) -> None:
    """A clean has come to `step`."""
    if _directory is not None:
        _die_if_armed(os.path.join(_directory, step))


def _die_if_armed(path: str) -> None:
    try:
        with open(path, encoding="ascii") as file:
            victims = file.read().strip()
        os.unlink(path)
    except FileNotFoundError:
        return
    if victims == "both":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
