"""Questions about transactions between brokers: they travel together, and every one gets its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.coordinator.markers import Marker
from ottla.coordinator.transaction_state import ProducerIdentity
from ottla.model import BrokerUnavailable, Error, TopicPartition
from ottla.network.transaction_peer import MarkerSender, Verifications
from ottla.wire.apis.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from unit.network.peer_kit import RecordingLink, peer_over

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ALICE, BOB = ProducerIdentity(1, 0), ProducerIdentity(2, 7)


def verified(request: Any) -> AddPartitionsToTxnResponse:
    """Partition 1 was not added by anybody."""
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=number,
                                partition_error_code=Error.TRANSACTION_ABORTABLE if number else Error.NONE,
                            )
                            for number in topic.partitions
                        ],
                    )
                    for topic in one.topics
                ],
            )
            for one in request.transactions
        ]
    )


def test_questions_travel_together() -> None:
    async def run() -> None:
        link = RecordingLink(verified)
        link.may_answer.clear()
        asking = Verifications(lambda broker: peer_over(link, broker))
        questions = [
            asyncio.ensure_future(asking.verify(2, *one))
            for one in [("x", ALICE, [A0]), ("alice", ALICE, [A0, A1]), ("bob", BOB, [B0]), ("alice", ALICE, [B0])]
        ]
        await asyncio.sleep(0.01)
        link.may_answer.set()
        answers = await asyncio.gather(*questions)
        assert answers == [
            {A0: Error.NONE},
            {A0: Error.NONE, A1: Error.TRANSACTION_ABORTABLE},
            {B0: Error.NONE},
            {B0: Error.NONE},
        ]
        together = [[one.transactional_id for one in request.transactions] for _, request in link.sent]
        assert together == [["x", "alice", "bob"], ["alice"]], "never two questions about one id in one request"
        version, request = link.sent[0]
        assert version == 5
        bob = request.transactions[2]
        assert (bob.producer_id, bob.producer_epoch, bob.verify_only) == (2, 7, True)
        asking.close()
        assert link.closed

    asyncio.run(run())


def test_whoever_waits_is_called_off_at_the_end() -> None:
    async def run() -> None:
        link = RecordingLink(verified)
        link.may_answer.clear()
        asking = Verifications(lambda broker: peer_over(link, broker))
        sent = asyncio.ensure_future(asking.verify(2, "alice", ALICE, [A0]))
        await asyncio.sleep(0.01)
        queued = asyncio.ensure_future(asking.verify(2, "bob", BOB, [A0]))
        await asyncio.sleep(0)
        asking.close()
        results = await asyncio.gather(sent, queued, return_exceptions=True)
        assert [type(one) for one in results] == [asyncio.CancelledError, asyncio.CancelledError]

    asyncio.run(run())


def test_a_coordinator_that_does_not_answer_or_refuses() -> None:
    async def run() -> None:
        for answer, error in [
            (BrokerUnavailable("silence"), Error.NETWORK_EXCEPTION),
            (AddPartitionsToTxnResponse(error_code=Error.CLUSTER_AUTHORIZATION_FAILED), Error.CLUSTER_AUTHORIZATION_FAILED),
            (AddPartitionsToTxnResponse(), Error.UNKNOWN_SERVER_ERROR),
        ]:
            link = RecordingLink(lambda _request, answer=answer: answer)  # type: ignore[misc]
            asking = Verifications(lambda broker, link=link: peer_over(link, broker))  # type: ignore[misc]
            assert await asking.verify(2, "alice", ALICE, [A0]) == {A0: error}

    asyncio.run(run())


def test_markers_travel_together() -> None:
    def written(request: Any) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=one.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=number, error_code=Error.NOT_LEADER_OR_FOLLOWER if number else Error.NONE
                                )
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in reversed(request.markers)  # in any order
            ]
        )

    async def run() -> None:
        link = RecordingLink(written)
        link.may_answer.clear()
        sending = MarkerSender(lambda broker: peer_over(link, broker))
        markers = [(Marker(1, 0, 3, True), [B0, A1, A0]), (Marker(2, 7, 3, False), [A0]), (Marker(1, 1, 3, False), [A0])]
        questions = [asyncio.ensure_future(sending.send(2, *one)) for one in markers]
        await asyncio.sleep(0.01)
        link.may_answer.set()
        first, second, third = await asyncio.gather(*questions)
        assert first == {A0: Error.NONE, A1: Error.NOT_LEADER_OR_FOLLOWER, B0: Error.NONE}
        assert second == third == {A0: Error.NONE}
        told = [
            [(one.producer_id, one.producer_epoch, one.coordinator_epoch, one.transaction_result) for one in request.markers]
            for _, request in link.sent
        ]
        assert told == [[(1, 0, 3, True), (2, 7, 3, False)], [(1, 1, 3, False)]]
        topics = [(topic.name, list(topic.partition_indexes)) for topic in link.sent[0][1].markers[0].topics]
        assert topics == [("a", [0, 1]), ("b", [0])]

    asyncio.run(run())


def test_a_leader_that_does_not_answer() -> None:
    async def run() -> None:
        link = RecordingLink(lambda _request: BrokerUnavailable("silence"))
        sending = MarkerSender(lambda broker: peer_over(link, broker))
        assert await sending.send(2, Marker(1, 0, 3, True), [A0]) == {A0: Error.BROKER_NOT_AVAILABLE}

    asyncio.run(run())
