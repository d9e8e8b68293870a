"""Writing Arrow into topics: `write` for one table, a `Producer` for several, in a transaction if it has a transactional id.

Guards: a write returns when every record is acknowledged, or raises; idempotent by default, so a retry never doubles. A
producer whose write failed is of no further use, except to abort: what it sent may or may not be there. In a transaction
nothing is visible to `read_committed` before `commit`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ottla.client.admin.groups import Committed
from ottla.client.cluster import Cluster, as_cluster
from ottla.client.encoding import ColumnNames, Encoder, by_topic, chunks, finish, named
from ottla.client.errors import ClientError, InvalidSetting, InvalidTable
from ottla.client.sending import Sender, Written
from ottla.client.settings import Settings
from ottla.client.transactions import (
    NOBODY,
    Identity,
    add_offsets,
    add_partitions,
    end_transaction,
    init_producer,
    until_visible,
)
from ottla.model import Error, TopicPartition
from ottla.records.codecs import BY_NAME, Codec

_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
_SEQUENCES = 1 << 31


class Producer:
    """Writes tables, one after the other. Also a context: leaving it with an error aborts an open transaction."""

    def __init__(
        self,
        cluster: Cluster | Settings | Mapping[str, object] | str,
        *,
        transactional_id: str | None = None,
        identity: Identity | None = None,
        acks: str | int | None = None,
        codec: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        """With `identity` it writes as another producer does, in that one's transaction; it must then not end it."""
        self._cluster = as_cluster(cluster)
        self._own_cluster = self._cluster is not cluster
        settings = self._cluster.settings
        self._acks = settings.acks if acks is None else _acks(acks)
        self._codec = _codec(settings.codec if codec is None else codec)
        self._size = settings.batch_size if batch_size is None else batch_size
        self._joined = identity is not None
        transactional = transactional_id is not None or self._joined
        if transactional and self._acks != -1:
            raise InvalidSetting("A transaction needs acks=all.")
        try:
            if identity is None:
                idempotent = transactional or (settings.idempotence and self._acks == -1)
                identity = init_producer(self._cluster, transactional_id) if idempotent else NOBODY
        except BaseException:
            if self._own_cluster:
                self._cluster.close()
            raise
        self.identity = identity
        """Who we are: other processes can join our transaction with it."""
        self._sequences: dict[TopicPartition, int] = {}
        self._entered: set[TopicPartition] = set()
        self._in_transaction = self._joined and identity.transactional_id is not None
        self._touched = False  # offsets are in the transaction, if not records
        self._failed = False
        self._sticky = 0
        self._sender = Sender(self._cluster, identity, self._acks, zstd=self._codec is Codec.ZSTD, before=self._before_sending)

    def write(
        self,
        topic: str | None,
        data: Any,
        *,
        key: str | None = "key",
        value: str | None = "value",
        partition: str | None = "partition",
        timestamp: str | None = "timestamp",
        headers: str | None = "headers",
        topic_column: str | None = "topic",
    ) -> dict[TopicPartition, Written]:
        """Write all rows and wait until they are acknowledged; the offsets that they got, by partition.

        The arguments name columns; one with its default name may be missing, and None leaves a column out. Rows go to the
        partition that they name, else by their key, else to one that changes now and then. With `topic` None the topic column
        decides.
        """
        self._must_be_sound()
        if self.identity.transactional_id is not None and not self._in_transaction:
            raise ClientError(Error.INVALID_TXN_STATE, "There is no transaction: call begin first.")
        wanted = ColumnNames(key, value, partition, timestamp, headers, topic_column)
        self._sender.written = {}
        try:
            for batch in chunks(data):
                names = named(batch.schema, wanted)
                for name, rows in by_topic(batch, names, topic):
                    self._encode(name, rows, names)
            self._sender.flush()
        except InvalidTable:
            self._sender.flush()
            raise
        except BaseException:
            self._failed = True
            self._sender.close()
            raise
        return self._sender.written

    def _encode(self, topic: str, rows: Any, names: ColumnNames) -> None:
        count = len(self._cluster.topic(topic).partitions)
        encoder = Encoder(rows, names, count, time.time_ns() // 1_000_000, self._size)
        blocks, self._sticky = encoder.blocks(self._sticky)
        who = self.identity
        for block in blocks:
            tp = TopicPartition(topic, block.partition)
            sequence = self._sequences.get(tp, 0) if who.producer_id >= 0 else -1
            data = finish(
                block, self._codec, who.producer_id, who.epoch, sequence, transactional=who.transactional_id is not None
            )
            self._sequences[tp] = (sequence + block.records) % _SEQUENCES
            self._sender.add(tp, data, block.records)

    def _before_sending(self, partitions: Iterable[TopicPartition]) -> None:
        if self.identity.transactional_id is not None:
            entering = set(partitions) - self._entered
            if entering:
                add_partitions(self._cluster, self.identity, entering)
                self._entered |= entering

    # ---- transactions ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction; the coordinator hears of it with the first write."""
        self._must_own("begin")
        self._must_be_sound()
        if self._in_transaction:
            raise ClientError(Error.INVALID_TXN_STATE, "There is a transaction already: commit or abort it first.")
        self._in_transaction = True
        self._entered = set()

    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int | Committed]) -> None:
        """Commit a group's offsets with the transaction."""
        if not self._in_transaction:
            raise ClientError(Error.INVALID_TXN_STATE, "There is no transaction: call begin first.")
        add_offsets(self._cluster, self.identity, group, offsets)
        self._touched = True

    send_offsets_to_transaction = send_offsets

    def commit(self, *, visible: bool = False) -> None:
        """Make everything since `begin` visible at once; with `visible`, return only when readers can see it."""
        self._must_be_sound()
        wrote = bool(self._entered or self._touched)
        self._end(commit=True)
        if visible and wrote:
            with suppress(ClientError):  # it is committed, whoever is slow to hear of it: a failure would be told wrongly
                until_visible(self._cluster, self.identity)

    def abort(self) -> None:
        """Make sure that nothing since `begin` is ever visible."""
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        self._must_own("commit" if commit else "abort")
        if not self._in_transaction:
            raise ClientError(Error.INVALID_TXN_STATE, "There is no transaction: call begin first.")
        if self._entered or self._touched:
            end_transaction(self._cluster, self.identity, commit=commit)
        self._in_transaction = self._touched = False
        self._entered = set()

    def _must_be_sound(self) -> None:
        """What a write that failed left behind must not get into the next one."""
        if self._failed:
            raise ClientError(
                Error.INVALID_REQUEST, "A write of this producer failed: abort its transaction, and make a new one."
            )

    def _must_own(self, what: str) -> None:
        if self._joined or self.identity.transactional_id is None:
            why = "it only joined the transaction" if self._joined else "it has no transactional id"
            raise ClientError(Error.INVALID_TXN_STATE, f"This producer cannot {what}: {why}.")

    # ---- life ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. An open transaction stays open until it is ended elsewhere or times out."""
        self._sender.close()
        if self._own_cluster:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is not None and self._in_transaction and not self._joined:
                self._abort_quietly()
        finally:
            self.close()

    def _abort_quietly(self) -> None:
        """What went wrong already is what the caller has to hear; a transaction that cannot be aborted times out."""
        try:
            self.abort()
        except ClientError:
            pass


def write(
    topic: str | None,
    data: Any,
    *,
    cluster: Cluster | Settings | Mapping[str, object] | str,
    key: str | None = "key",
    value: str | None = "value",
    partition: str | None = "partition",
    timestamp: str | None = "timestamp",
    headers: str | None = "headers",
    topic_column: str | None = "topic",
    acks: str | int | None = None,
    codec: str | None = None,
    transactional_id: str | None = None,
    batch_size: int | None = None,
) -> dict[TopicPartition, Written]:
    """Write a table, record batches or a data frame into a topic; the offsets that the records got, by partition.

    Columns as in `Producer.write`. With a transactional id all of it becomes visible at once, or nothing does.
    """
    columns = {"key": key, "value": value, "partition": partition, "timestamp": timestamp, "headers": headers}
    with Producer(cluster, transactional_id=transactional_id, acks=acks, codec=codec, batch_size=batch_size) as producer:
        if transactional_id is not None:
            producer.begin()
        written = producer.write(topic, data, **columns, topic_column=topic_column)
        if transactional_id is not None:
            producer.commit(visible=True)
        return written


def _acks(given: str | int) -> int:
    if str(given) not in _ACKS:
        raise InvalidSetting(f"acks {given!r} is not valid, allowed is all, 1 or 0.")
    return _ACKS[str(given)]


def _codec(name: str) -> Codec:
    if name not in BY_NAME:
        raise InvalidSetting(f"Codec {name!r} is not known: allowed are {', '.join(BY_NAME)}.")
    return BY_NAME[name]
