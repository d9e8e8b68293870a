"""Transaction markers: what they say, and how long one keeps trying to have them written.

Guards: a transaction counts as complete only when every one of its partitions has the marker, or is gone. A partition that
cannot take it now is asked again; a coordinator or producer that was fenced stops trying, for somebody newer has taken over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from ottla.model import Error, KafkaError, TopicPartition

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class Marker(NamedTuple):
    """The end of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


Outcome = Error | Awaitable[Error]
Send = Callable[[Marker, Collection[TopicPartition]], Mapping[TopicPartition, Outcome]]
"""Has the leaders of these partitions write the marker; what came of it in each, or when that can be told."""

Pause = Callable[[float], Awaitable[None]]

# A newer epoch of the producer or of the coordinator has been there: what we have to say is out of date.
_FENCED = frozenset({Error.INVALID_PRODUCER_EPOCH, Error.PRODUCER_FENCED, Error.TRANSACTION_COORDINATOR_FENCED})
_DONE = frozenset({Error.NONE, Error.UNSUPPORTED_FOR_MESSAGE_FORMAT})


def all_written(outcomes: Mapping[TopicPartition, Outcome]) -> bool:
    """Whether every partition has its marker already."""
    return all(outcome is Error.NONE for outcome in outcomes.values())


async def settled(outcomes: Mapping[TopicPartition, Outcome]) -> dict[TopicPartition, Error]:
    """What came of it in each partition, once that can be told."""
    return {partition: outcome if isinstance(outcome, Error) else await outcome for partition, outcome in outcomes.items()}


async def deliver(
    marker: Marker,
    outcomes: Mapping[TopicPartition, Outcome],
    send: Send,
    exists: Callable[[TopicPartition], bool],
    pause: Pause,
) -> None:
    """After a first attempt, have the marker written to all of its partitions that still exist; raises KafkaError where we
    were fenced."""
    wait = FIRST_PAUSE
    while True:
        results = await settled(outcomes)
        if fenced := _FENCED.intersection(results.values()):
            raise KafkaError(next(iter(fenced)), f"the end of producer {marker.producer_id}'s transaction was overtaken")
        left = [partition for partition, error in results.items() if error not in _DONE and exists(partition)]
        if not left:
            return
        await pause(wait)
        wait = min(wait * 2, LONGEST_PAUSE)
        outcomes = send(marker, left)
