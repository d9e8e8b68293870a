"""Spark's own process under a pipeline, which may be killed.

Guards: when it is gone, every question that waits for its answer ends. The sockets alone do not see to that: a helper that it
was just starting may have inherited its side of them, and then holds them open with nobody behind.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

from ottla.spark.workers import connections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jvm:
    """The process, and where py4j talks to it."""

    def __init__(self, process: Popen[bytes], address: tuple[str, int]) -> None:
        self._process = process
        self._address = address
        threading.Thread(target=self._watch, name="ottla-jvm", daemon=True).start()

    @classmethod
    def of(cls, spark: SparkSession) -> Jvm | None:
        """That of a session; None where somebody else started it."""
        gateway: Any = spark.sparkContext._gateway
        process = getattr(gateway, "proc", None)
        where = gateway.gateway_parameters
        return None if process is None else cls(process, (where.address, where.port))

    def ended(self, within: float = 0) -> bool:
        """Whether it is gone: then nothing in it can be asked any more."""
        try:
            return self._process.wait(within) is not None
        except TimeoutExpired:
            return False

    def _watch(self) -> None:
        self._process.wait()
        # py4j knows only of connections that nobody uses: those of questions under way are found by where they lead.
        for one in connections():
            with contextlib.suppress(OSError):  # closed meanwhile
                if one.getpeername()[:2] == self._address:
                    one.shutdown(socket.SHUT_RDWR)
