"""One partition as this broker sees it: its role, its epoch, and who may write.

Guards: an append is accepted only by the leader of the current epoch with enough in-sync replicas; a read never passes the
high watermark (consumers) or the last stable offset (read_committed). Life: created by `Replicas.become`, retired by `stop`;
a role change swaps `state` whole, so that no request sees half of one. Lives on the broker's loop: no locks, and nothing in
here awaits.
"""

from __future__ import annotations

from ottla.metadata.image import PartitionState
from ottla.model import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Error, KafkaError, TopicPartition
from ottla.replication import isr
from ottla.replication.waiting import Watcher
from ottla.storage.append import AppendInfo
from ottla.storage.log import Log
from ottla.storage.slices import FileSlice

READ_COMMITTED = 1
ACKS_ALL = -1
_RECENT_BYTES = 4 << 20


class Partition:
    """A replica on this broker, and the leader's bookkeeping while it leads."""

    __slots__ = ("_followers", "_unannounced", "broker_id", "is_leader", "leader_epoch", "log", "state", "tp", "watchers")

    def __init__(self, broker_id: int, tp: TopicPartition, log: Log, state: PartitionState) -> None:
        self.broker_id = broker_id
        self.tp = tp
        self.log = log
        self.watchers: set[Watcher] = set()
        self._unannounced = 0
        self.become(state)

    def become(self, state: PartitionState) -> None:
        """Take the role that the controller gave."""
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.is_leader = state.leader == self.broker_id
        self._followers: tuple[isr.Progress, ...] = ()
        if self.is_leader:
            self.log.leader_epochs.assign(state.leader_epoch, self.log.log_end_offset)
            self._advance()
        else:
            self._tell_changed()

    def append(self, records: memoryview, acks: int, api_version: int) -> AppendInfo:
        """Write what a producer sent. Returns when it is in the leader's log; whether it is committed, `committed` tells."""
        if not self.is_leader:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        if acks == ACKS_ALL and len(self.state.isr) < log.config.min_insync_replicas:
            raise KafkaError(
                Error.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {list(self.state.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{log.config.min_insync_replicas} for partition {self.tp}",
            )
        info = log.append_as_leader(records, self.leader_epoch, api_version=api_version)
        if not info.duplicate:
            self._unannounced += info.size
            if self._followers:
                self._advance()
            else:
                log.high_watermark = log.log_end_offset  # nobody else is in sync: what the leader has is committed
        return info

    def committed(self, last_offset: int) -> bool:
        """Whether every in-sync replica has `last_offset`."""
        return self.log.high_watermark > last_offset

    def wake(self) -> None:
        """Tell those who wait about what was committed since the last time."""
        size, self._unannounced = self._unannounced, 0
        for watcher in tuple(self.watchers):
            watcher.arrived(size)

    def read(
        self, offset: int, max_bytes: int, isolation: int, expected_epoch: int, min_one: bool, nowait: bool = True
    ) -> FileSlice | None:
        """Committed bytes from `offset` on, as a region of a file; None where there are none yet.

        With `nowait` it raises NotCached where looking for the place would have to wait for a disk.
        """
        self.check_leader(expected_epoch)
        log = self.log
        limit = log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark
        if offset >= limit and offset <= log.log_end_offset and offset >= log.log_start_offset:
            return None
        return log.read(offset, max_bytes, limit, min_one, nowait)

    def is_recent(self, region: FileSlice) -> bool:
        """Whether a region was written just now, so that it is in the page cache without asking."""
        active = self.log.segments[-1]
        return region.file is active.file and active.size - region.position <= _RECENT_BYTES

    def check_leader(self, expected_epoch: int = UNKNOWN_EPOCH) -> None:
        """Raise unless this broker leads the partition in the epoch that the client knows."""
        if expected_epoch not in (UNKNOWN_EPOCH, self.leader_epoch):
            if expected_epoch < self.leader_epoch:
                raise KafkaError(Error.FENCED_LEADER_EPOCH)
            raise KafkaError(Error.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    def delete_records_before(self, offset: int) -> int:
        """Give up what lies before `offset` (-1: all that is committed); the new log start offset."""
        self.check_leader()
        wanted = self.log.high_watermark if offset == UNKNOWN_OFFSET else offset
        if wanted < 0 or wanted > self.log.high_watermark:
            raise KafkaError(
                Error.OFFSET_OUT_OF_RANGE,
                f"The specified offset {offset} is higher than the high watermark {self.log.high_watermark} of {self.tp}",
            )
        self.log.delete_records_before(wanted)
        self._tell_changed()
        return self.log.log_start_offset

    def stop(self) -> None:
        """The replica is given up: nothing more is accepted, and whoever waits is answered."""
        self.is_leader = False
        self._tell_changed()

    def _advance(self) -> None:
        log = self.log
        log.high_watermark = isr.high_watermark(log.log_end_offset, self._followers, self.state.isr, log.high_watermark)

    def _tell_changed(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.changed()
