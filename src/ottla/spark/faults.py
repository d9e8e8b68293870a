"""Named steps at which tests make a process fail: where else would a driver die exactly between two requests?

With OTTLA_SPARK_FAULTS naming a directory, a file in it called like a step is the order to fail there, once: the file is
renamed, and its content says how. `raise` fails the step, `exit` ends the process, `driver` kills Spark's driver (its process
id follows), `wait` does nothing for so many seconds. Without the variable nothing is looked at.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

STEPS = (
    "plan.taken", "plan.settled", "plan.ready",
    "task.begun", "task.counted", "task.half", "task.written",
    "commit.begun", "commit.checked", "commit.marked", "commit.counted", "commit.ended",
    "decision.marked", "decision.checked", "decision.written", "decision.half", "decision.carried",
)  # fmt: skip
_DIRECTORY = os.environ.get("OTTLA_SPARK_FAULTS")


def step(name: str) -> None:
    """Fail here, if a test says so."""
    if _DIRECTORY is None:
        return
    order = Path(_DIRECTORY, name)
    taken = Path(_DIRECTORY, f".{name}-{os.getpid()}")
    try:
        order.rename(taken)  # of several tasks one fails
    except OSError:
        return
    how, _, argument = taken.read_text().partition(" ")
    if how == "wait":
        time.sleep(float(argument))
        return
    if how == "driver":
        os.kill(int(argument), signal.SIGKILL)
    if how in ("driver", "exit"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(f"a test wants a failure at {name}")
