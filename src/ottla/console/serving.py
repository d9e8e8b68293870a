"""A console that runs: the address is taken, the application served, and all of it ended again.

Guards: a port that is in use, or an address that is not ours, is told in one line before anything starts; a console that was
started by a broker ends with it, even where the broker was killed.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable

import uvicorn

from ottla.client.errors import InvalidSetting
from ottla.console.app import build
from ottla.console.state import Console

_LAST_WORDS_S = 1


def take_address(host: str, port: int) -> socket.socket:
    """Listen there. Port 0 is any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], found[1])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen(128)
    except OSError as problem:
        choose = "choose another with --port (`ottla server`: --console-port), or --host"
        why = f"cannot listen on {host}:{port}: {problem.strerror or problem}; {choose}"
        raise InvalidSetting(why) from None
    return listener


def serve(console: Console, listener: socket.socket, ready: Callable[[], None], *, until_stdin_ends: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C, or until whoever holds the other end of our input is gone."""
    config = uvicorn.Config(
        build(console),
        log_level="warning",
        access_log=False,
        ws="none",
        loop="asyncio",
        http="h11",
        server_header=False,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    server = uvicorn.Server(config)
    if until_stdin_ends:
        threading.Thread(target=_end_with_stdin, args=(server,), name="ottla-parent", daemon=True).start()
    ready()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended in order, and says that it was by Ctrl-C
        server.run(sockets=[listener])


def _end_with_stdin(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    server.should_exit = True
