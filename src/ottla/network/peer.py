"""Other brokers as this one asks them: requests out, responses back, over one connection for each purpose.

Guards: requests to one broker over one `Peer` leave and are answered in order; a broken connection is made anew by the next
request, and the request that met the break fails, for it may have been carried out. Versions are the newest of both sides' one
protocol, Apache Kafka 3.9's: clusters are of one version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ottla.metadata.image import Endpoint
from ottla.model import BrokerUnavailable
from ottla.network.link import Dial, Link
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Malformed, Request, Response

_CONNECT_TIMEOUT = 3.0
ANSWER_TIMEOUT = 30.0

_R = TypeVar("_R", bound=Response)


class Peer:
    """One other broker, for one purpose."""

    def __init__(
        self,
        broker_id: int,
        address_of: Callable[[int], Endpoint | None],
        dial: Dial,
        client_id: str,
        timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self.broker_id = broker_id
        self._address_of = address_of
        self._dial = dial
        self._client_id = client_id
        self._timeout = timeout
        self._link: Link | None = None
        self._address: Endpoint | None = None
        self._connecting = asyncio.Lock()
        self._correlation_id = 0

    async def ask(self, request: Request, answer: type[_R], timeout: float | None = None) -> _R:
        """The broker's answer. Raises BrokerUnavailable."""
        version = request.max_version
        link = self._link
        if link is None or link.closed or self._address_of(self.broker_id) != self._address:
            link = await self._connected()
        self._correlation_id += 1
        number = self._correlation_id
        frame = encode_request(request, version, number, self._client_id)
        data = await link.exchange(frame, timeout or self._timeout)
        try:
            correlation_id, response = decode_response(answer, data, version)
        except Malformed as problem:
            link.close()
            raise BrokerUnavailable(f"broker {self.broker_id} sent an answer that cannot be read ({problem})") from None
        if correlation_id != number or not isinstance(response, answer):
            link.close()
            raise BrokerUnavailable(f"broker {self.broker_id} sent an answer to another request")
        return response

    async def _connected(self) -> Link:
        async with self._connecting:
            address = self._address_of(self.broker_id)
            if address is None:
                raise BrokerUnavailable(f"broker {self.broker_id} is not known to be alive")
            if self._link is not None and (self._link.closed or address != self._address):
                self.close()
            if self._link is None:
                self._link = await self._dial(address.host, address.port, _CONNECT_TIMEOUT)
                self._address = address
            return self._link

    def close(self) -> None:
        """Hang up; the next request connects again."""
        if self._link is not None:
            self._link.close()
            self._link = None
