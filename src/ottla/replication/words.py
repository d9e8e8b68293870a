"""The controller's word as replicas need it: what `controller/channels` sends looks like this."""

from __future__ import annotations

from typing import Protocol

from ottla.model import TopicPartition


class Stamp(Protocol):
    """Who speaks, and to which life of this broker."""

    @property
    def controller_epoch(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...


class Stop(Protocol):
    """A replica to be given up, and the leader epoch in which that was decided."""

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def delete(self) -> bool: ...
