"""Is the broker well after what was done to it?

Well means: the same process, another connection is answered, memory is where it was, the log has no traceback, and each
connection that the broker closed has exactly one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ottla.wire.apis.metadata import MetadataRequest, MetadataResponse
from robustness.raw import RawClient, wait_until
from support.server import ServerProcess

_CLOSING = re.compile(r"WARNING Closing 127\.0\.0\.1:(\d+)\b")


class Patient:
    """A running broker under examination."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.broker_port = server.port
        self.pid = server.pid
        self._bystander = RawClient(server.port)
        self._read_to = 0

    def connect(self, timeout: float = 10.0, receive_buffer: int = 0) -> RawClient:
        return RawClient(self.broker_port, timeout, receive_buffer)

    def check(self) -> None:
        """The same process still answers: a connection that was there before, and a new one."""
        process = self.server.process
        assert process is not None
        assert process.poll() is None, f"the broker died:\n{self.server.log()[-4000:]}"
        assert process.pid == self.pid
        for client in (self._bystander, self.connect()):
            response = client.ask(MetadataRequest(topics=[]), 9)
            assert isinstance(response, MetadataResponse)
            assert len(response.brokers) == 1
            if client is not self._bystander:
                client.close()
        assert "Traceback" not in self.server.log(), self.server.log()[-4000:]

    def new_lines(self) -> list[str]:
        """What the log has got since the last look."""
        text = self.server.log()
        lines = text[self._read_to :].splitlines()
        self._read_to = len(text)
        return lines

    def check_lines(self, closed: Iterable[int], perhaps: Iterable[int] = ()) -> None:
        """Exactly one line for each connection (by our port) that the broker closed, and none for others.

        `perhaps` are those that we gave up waiting for: the broker may have closed them a moment later.
        """
        expected = Counter(closed)
        seen: Counter[int] = Counter()

        def all_there() -> bool:
            seen.update(int(found[1]) for line in self.new_lines() if (found := _CLOSING.search(line)))
            return not expected - seen

        wait_until(all_there)
        assert seen - expected <= Counter(perhaps)

    @contextmanager
    def unharmed(self, grows_mb: float) -> Iterator[None]:
        """After what happens inside, the broker is well and has grown by at most `grows_mb`."""
        self.check()
        self.new_lines()
        before = self.server.rss_mb()
        yield
        self.check()
        after = self.server.rss_mb()
        assert after - before <= grows_mb, f"resident memory went from {before:.1f} to {after:.1f} MB"
