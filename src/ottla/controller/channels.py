"""How the controller's word reaches a broker: one ordered channel per broker.

The controller speaks in values (`TopicImage`, `Image`); a channel delivers them in order. The broker that is the controller
itself is reached without a socket, through the same three calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ottla.metadata.image import Image, TopicImage
from ottla.model import TopicPartition


class Channel(Protocol):
    """The three things a controller tells a broker. Each call returns when the broker has done it."""

    async def leader_and_isr(self, controller_epoch: int, topics: Iterable[TopicImage]) -> None:
        """Lead or follow these partitions."""
        ...

    async def stop_replicas(self, controller_epoch: int, partitions: Iterable[TopicPartition], delete: bool) -> None:
        """Give these partitions up, and remove their data if asked to."""
        ...

    async def update_metadata(self, controller_epoch: int, image: Image) -> None:
        """Answer clients from this image."""
        ...
