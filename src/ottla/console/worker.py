"""The process that reads and writes messages for the console, from the inside: a thread for each job that it is handed.

Guards: whoever does not listen any more ends the job at its next word; what goes wrong in a job is said to whoever asked, in
one line, and the others go on. It ends when its input does: when the console does not need it, or is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.settings import parse
from ottla.console import frames
from ottla.console.asking import BadRequest, status_of
from ottla.console.frames import ACCEPTED, ANSWER, END, PROBLEM
from ottla.model import KafkaError

log = logging.getLogger("ottla.console")


class NobodyListens(Exception):
    """The page is gone, or has had enough."""


class Listener:
    """Whoever asked for a job."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def say(self, kind: str, value: object) -> None:
        """Waits while the other side has not taken what came before."""
        try:
            self._sock.sendall(frames.encode(kind, value))
        except OSError:
            raise NobodyListens from None


class WithoutNumbers:
    """Hides NumPy and pandas: Arrow loads them where they are, with their 60 MB, and nothing here is an object of theirs."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in ("numpy", "pandas"):
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)
        return None


def carry_out(cluster: Cluster, sock: socket.socket) -> None:
    """One job, from its first word to its last."""
    from ottla.console import jobs  # noqa: PLC0415 - with Arrow: the process is handed jobs while it loads

    with sock, contextlib.suppress(NobodyListens):
        asked = frames.receive(sock)
        if asked is None:
            return
        listener = Listener(sock)
        try:
            if asked.kind in jobs.ANSWERS:
                listener.say(ANSWER, jobs.ANSWERS[asked.kind](cluster, asked.value))
            else:
                work = jobs.STREAMS[asked.kind](cluster, asked.value)
                listener.say(ACCEPTED, {})
                try:
                    work(listener.say)
                finally:
                    jobs.give_back()
                listener.say(END, {})
        except (BadRequest, KafkaError) as problem:
            listener.say(PROBLEM, _told(problem))
        except NobodyListens:
            raise
        except Exception:
            log.exception("A job with messages failed")
            error = "The console failed at this; its log says where."
            listener.say(PROBLEM, {"error": error, "status": HTTPStatus.INTERNAL_SERVER_ERROR})


def _told(problem: BadRequest | KafkaError) -> Mapping[str, Any]:
    if isinstance(problem, BadRequest):
        return {"error": str(problem), "status": problem.status}
    return {"error": problem.message or problem.error.name, "status": status_of(problem)}


def main() -> None:
    """Take jobs until the console hangs up."""
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    sys.meta_path.insert(0, WithoutNumbers())
    control = socket.socket(fileno=0)
    settings = frames.receive(control)
    if settings is None:
        return
    cluster = Cluster(parse(settings.value))
    while True:
        word, handed, _, _ = socket.recv_fds(control, 1, 1)
        if not word:
            os._exit(0)  # threads may be anywhere: nothing of theirs is worth waiting for
        for fd in handed:
            threading.Thread(target=carry_out, args=(cluster, socket.socket(fileno=fd)), name="ottla-job", daemon=True).start()


if __name__ == "__main__":
    main()
