"""What the controller has to tell the brokers: one ordered channel for each that lives.

Guards: nothing here makes the controller wait. Messages to one broker leave one at a time, in an order that gives the same
result as the order in which they were put in: those that wait are merged (the later state of a partition replaces the earlier),
roles before metadata before stops (but who comes hears of the cluster first: a follower must know where its leaders are), and a
replica that is stopped and then wanted again is stopped first. Each is repeated until the broker has done it, is gone (another
registration is another channel), or the reign ends. A broker that knows a newer controller ends the reign.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ottla.controller.channels import Channel, Stamp, Stop
from ottla.metadata.image import BrokerImage, MetadataUpdate, TopicImage
from ottla.model import Error, KafkaError, TopicPartition

log = logging.getLogger("ottla.controller")

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_MERGE_BEYOND = 16
"""How many updates may wait one by one: a broker that does not answer must not cost more than the whole state."""

Errors = Mapping[TopicPartition, Error]


def merged(parts: Iterable[Sequence[TopicImage]]) -> list[TopicImage]:
    """Topics with some of their partitions, one after the other: the later state counts, another id is another topic."""
    topics: dict[str, TopicImage] = {}
    owned: set[str] = set()
    for part in parts:
        for topic in part:
            known = topics.get(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                topics[topic.name] = topic
                owned.discard(topic.name)
                continue
            if topic.name not in owned:
                topics[topic.name] = known = TopicImage(known.name, known.topic_id, dict(known.partitions))
                owned.add(topic.name)
            known.partitions.update(topic.partitions)  # type: ignore[attr-defined]  # a dictionary of our own
    return list(topics.values())


@dataclass(slots=True)
class Batch:
    """What waits for one broker and may leave together."""

    roles: list[Sequence[TopicImage]] = field(default_factory=list)
    new: set[TopicPartition] = field(default_factory=set)
    updates: list[MetadataUpdate] = field(default_factory=list)
    stops: dict[TopicPartition, Stop] = field(default_factory=dict)

    def takes_roles(self, topics: Iterable[TopicImage]) -> bool:
        """Whether these roles may leave before the stops that wait here."""
        return not self.stops or not any((topic.name, number) in self.stops for topic in topics for number in topic.partitions)

    def add_update(self, update: MetadataUpdate) -> None:
        self.updates.append(update)
        if len(self.updates) > _MERGE_BEYOND:
            self.updates = [self.update()]

    def add_roles(self, topics: Sequence[TopicImage], new: Collection[TopicPartition]) -> None:
        self.roles.append(topics)
        self.new.update(new)
        if len(self.roles) > _MERGE_BEYOND:
            self.roles = [merged(self.roles)]

    def update(self) -> MetadataUpdate:
        """All updates in one; a single one as it is, for all brokers get the same."""
        last = self.updates[-1]
        if len(self.updates) == 1:
            return last
        return MetadataUpdate(last.controller_id, last.brokers, merged(update.topics for update in self.updates))


class Mailbox:
    """The way to one life of one broker."""

    def __init__(self, broker: BrokerImage, channel: Channel, outbox: Outbox) -> None:
        self.broker = broker
        self.closed = False
        self._stamp = Stamp(outbox.controller_id, outbox.controller_epoch, broker.epoch)
        self._channel = channel
        self._outbox = outbox
        self._waiting: deque[Batch] = deque()
        self._put_in = 0
        self._introduced = False
        """Whether this life of the broker has been told of the cluster."""
        self._done = 0
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def open_batch(self) -> Batch:
        """The last batch that has not left yet."""
        if not self._waiting:
            self._begin_batch()
        return self._waiting[-1]

    def _begin_batch(self) -> None:
        self._waiting.append(Batch())
        self._put_in += 1
        if self._task is None and not self.closed:
            self._task = asyncio.ensure_future(self._send_all())

    def roles(self, topics: Sequence[TopicImage], new: Collection[TopicPartition]) -> None:
        if not self.open_batch().takes_roles(topics):
            self._begin_batch()
        self._waiting[-1].add_roles(topics, new)

    def close(self) -> None:
        """Nothing more leaves; what is on its way may arrive."""
        self.closed = True
        self._ended.set()
        self._waiting.clear()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def settled(self) -> asyncio.Future[None]:
        """Done when the broker has done all that was put in so far, or when it does not count any more."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed or self._done == self._put_in:
            waiter.set_result(None)
        else:
            self._waiters.append((self._put_in, waiter))
        return waiter

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # what is put in during this turn of the loop leaves together
        try:
            while self._waiting and not self.closed:
                await self._send(self._waiting.popleft())
                self._done += 1
                self._wake_waiters()
        finally:
            self._task = None

    def _wake_waiters(self) -> None:
        still_waiting: list[tuple[int, asyncio.Future[None]]] = []
        for number, waiter in self._waiters:
            if number > self._done:
                still_waiting.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still_waiting

    async def _send_metadata(self, batch: Batch) -> None:
        if batch.updates:
            update = batch.update()
            await self._until_done("the metadata", lambda: self._channel.update_metadata(self._stamp, update))

    async def _send(self, batch: Batch) -> None:
        stamp, channel, broker = self._stamp, self._channel, self.broker
        first, self._introduced = not self._introduced, True
        if first:  # who follows must know where its leaders are
            await self._send_metadata(batch)
        if batch.roles:
            topics = merged(batch.roles)
            live = tuple(self._outbox.brokers)
            errors = await self._until_done("its roles", lambda: channel.leader_and_isr(stamp, topics, live, batch.new))
            if errors:
                self._outbox.roles_refused(broker, errors)
        if not first:
            await self._send_metadata(batch)
        if batch.stops:
            stops = list(batch.stops.values())
            errors = await self._until_done("what to stop", lambda: channel.stop_replicas(stamp, stops))
            if errors is not None:
                self._outbox.stopped(broker, stops, errors)

    async def _until_done(self, what: str, send: Callable[[], Awaitable[T]]) -> T | None:
        """The answer; None if the broker or the reign is gone."""
        pause = 0.0
        while not self.closed:
            try:
                return await send()
            except KafkaError as problem:
                if problem.error is Error.STALE_CONTROLLER_EPOCH:
                    log.warning("Broker %d knows a newer controller: %s", self.broker.id, problem)
                    self._outbox.deposed()
                    return None
                if problem.error is Error.STALE_BROKER_EPOCH:
                    log.info("Broker %d has been started again: it is told everything when it has registered", self.broker.id)
                    self.close()
                    return None
                if not pause and not self.closed:
                    log.warning("Broker %d could not be told %s, and is told again: %s", self.broker.id, what, problem)
            except Exception:
                log.exception("Broker %d could not be told %s, and is told again", self.broker.id, what)
            pause = min(2 * pause, _LONGEST_PAUSE) or _FIRST_PAUSE
            try:
                async with asyncio.timeout(pause):
                    await self._ended.wait()
            except TimeoutError:
                pass
        return None


class Outbox:
    """The mailboxes of one reign."""

    def __init__(
        self, controller_id: int, controller_epoch: int, channel_to: Callable[[int], Channel], deposed: Callable[[], None]
    ) -> None:
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.brokers: dict[int, BrokerImage] = {}
        self.deposed = deposed
        """Told when a broker follows a newer controller."""
        self.roles_refused: Callable[[BrokerImage, Errors], None] = lambda _broker, _errors: None
        """Told which roles a broker could not take on."""
        self.stopped: Callable[[BrokerImage, Sequence[Stop], Errors], None] = lambda _broker, _stops, _errors: None
        """Told which replicas a broker gave up, and which not."""
        self._channel_to = channel_to
        self._mailboxes: dict[int, Mailbox] = {}
        self._closed = False

    def members(self, brokers: Mapping[int, BrokerImage]) -> None:
        """These brokers live: ways to others are closed, a new life of a broker gets a new way."""
        self.brokers = dict(brokers)
        for broker_id, mailbox in list(self._mailboxes.items()):
            if broker_id not in brokers or brokers[broker_id].epoch != mailbox.broker.epoch:
                mailbox.close()
                del self._mailboxes[broker_id]
        for broker in brokers.values():
            if broker.id not in self._mailboxes and not self._closed:
                self._mailboxes[broker.id] = Mailbox(broker, self._channel_to(broker.id), self)

    def roles(self, broker_id: int, topics: Sequence[TopicImage], new: Collection[TopicPartition] = ()) -> None:
        """A broker leads or follows these partitions."""
        mailbox = self._mailboxes.get(broker_id)
        if mailbox is not None and topics and not mailbox.closed:
            mailbox.roles(topics, new)

    def metadata(self, topics: Sequence[TopicImage], to: Collection[int] | None = None) -> None:
        """All brokers, or some, answer clients from this; each is told who lives."""
        update = MetadataUpdate(self.controller_id, self.brokers, topics)
        for mailbox in self._mailboxes.values():
            if (to is None or mailbox.broker.id in to) and not mailbox.closed:
                mailbox.open_batch().add_update(update)

    def stop(self, broker_id: int, stops: Iterable[Stop]) -> None:
        """A broker gives these replicas up."""
        mailbox = self._mailboxes.get(broker_id)
        wanted = {stop.tp: stop for stop in stops}
        if mailbox is not None and wanted and not mailbox.closed:
            mailbox.open_batch().stops.update(wanted)

    async def settled(self, timeout: float | None, only: int | None = None) -> None:
        """Wait until the brokers (or one of them) have done what they were told so far; not longer than `timeout` seconds."""
        waiting = [box.settled() for broker_id, box in self._mailboxes.items() if only is None or broker_id == only]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)

    def close(self) -> None:
        """The reign is over: nothing more leaves."""
        self._closed = True
        for mailbox in self._mailboxes.values():
            mailbox.close()
