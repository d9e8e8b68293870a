"""The console beside a broker: a process of its own, so that nothing a browser asks for costs the broker's loop.

Guards: it ends when the broker does, whichever way that is (its input ends with us); that it does not start, or dies, is one
line in the log, and nothing to the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence

log = logging.getLogger("ottla.console")

_PATIENCE_S = 5.0


class ConsoleProcess:
    """`ottla console` as a child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, bootstrap: str, port: int, log_dirs: Sequence[str]) -> ConsoleProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "ottla", "console", "--bootstrap-server", bootstrap, "--port", str(port),
            "--log-dirs", ",".join(log_dirs), "--until-stdin-ends", stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def _watch(self) -> None:
        code = await self._process.wait()
        log.warning("The console ended with exit code %d; the broker goes on without it", code)

    async def stop(self) -> None:
        self._watching.cancel()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
