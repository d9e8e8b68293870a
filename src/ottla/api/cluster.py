"""What leaders and operators ask of the controller: AlterPartition, ElectLeaders, and moving replicas.

Handlers turn wire into values and back; the controller decides. A broker that is not the controller answers NOT_CONTROLLER in
every place where a client may look for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.model import Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal
from ottla.wire.apis.reassignment import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from ottla.wire.apis.replication import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)

PREFERRED = 0
UNCLEAN = 1
_BY_TOPIC_ID = 2
"""The first version of AlterPartition that names topics by their ids."""

Results = Mapping[TopicPartition, KafkaError | None]


# A leader asks for another ISR


@handles(AlterPartitionRequest)
async def alter_partition(ctx: Context, request: AlterPartitionRequest) -> AlterPartitionResponse:
    by_id = ctx.version >= _BY_TOPIC_ID
    # By what the controller knows: our own image may not have heard yet of a topic that it just made.
    names = await ctx.services.controller.topic_names() if by_id else {}
    proposals = [
        _proposal(TopicPartition(name, one.partition_index), topic.topic_id, one)
        for topic in request.topics
        if (name := names.get(topic.topic_id, "") if by_id else topic.topic_name)
        for one in topic.partitions
    ]
    outcomes = await ctx.services.controller.alter_partitions(request.broker_id, request.broker_epoch, proposals)
    unknown = IsrOutcome(Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION)
    return AlterPartitionResponse(
        topics=[
            _altered(topic, names.get(topic.topic_id, "") if by_id else topic.topic_name, outcomes, unknown)
            for topic in request.topics
        ]
    )


def _proposal(tp: TopicPartition, topic_id: bytes, one: AlterPartitionRequestPartition) -> IsrProposal:
    """From version 3 on members come with the life in which the leader has seen them."""
    epochs = {member.broker_id: member.broker_epoch for member in one.new_isr_with_epochs}
    return IsrProposal(tp, topic_id, one.leader_epoch, tuple(epochs) or tuple(one.new_isr), one.partition_epoch, epochs)


def _altered(
    topic: AlterPartitionRequestTopic, name: str, outcomes: Mapping[TopicPartition, IsrOutcome], unknown: IsrOutcome
) -> AlterPartitionResponseTopic:
    results = []
    for one in topic.partitions:
        outcome = outcomes.get(TopicPartition(name, one.partition_index), unknown)
        result = AlterPartitionResponsePartition(partition_index=one.partition_index, error_code=outcome.error)
        if outcome.error is Error.NONE:
            result.leader_id, result.leader_epoch = outcome.leader, outcome.leader_epoch
            result.isr, result.partition_epoch = outcome.isr, outcome.version
        results.append(result)
    return AlterPartitionResponseTopic(topic_name=topic.topic_name, topic_id=topic.topic_id, partitions=results)


# Leaders on request


@handles(ElectLeadersRequest)
async def elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(
            Error.INVALID_REQUEST, f"There is no election of type {request.election_type}: 0 is preferred, 1 unclean."
        )
    asked = None
    if request.topic_partitions is not None:
        asked = [TopicPartition(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions]
    results = await ctx.services.controller.elect_leaders(request.election_type == UNCLEAN, asked)
    if asked is None:  # of all partitions only those are told in which something happened
        results = {tp: error for tp, error in results.items() if error is None or error.error is not Error.ELECTION_NOT_NEEDED}
    return ElectLeadersResponse(replica_election_results=_elections(results))


@shapes_errors_of(ElectLeadersRequest)
def elect_leaders_error(request: ElectLeadersRequest, error: Error, message: str) -> ElectLeadersResponse:
    problem = KafkaError(error, message)
    asked = request.topic_partitions or ()
    every = {TopicPartition(topic.topic, number): problem for topic in asked for number in topic.partitions}
    return ElectLeadersResponse(error_code=error, replica_election_results=_elections(every))


def _elections(results: Results) -> list[ReplicaElectionResult]:
    return [
        ReplicaElectionResult(
            topic=topic,
            partition_result=[
                PartitionResult(partition_id=tp.partition, error_code=_code(results[tp]), error_message=_words(results[tp]))
                for tp in partitions
            ],
        )
        for topic, partitions in _by_topic(results)
    ]


# Moving replicas


@handles(AlterPartitionReassignmentsRequest)
async def alter_partition_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    wanted = {
        TopicPartition(topic.name, one.partition_index): None if one.replicas is None else tuple(one.replicas)
        for topic in request.topics
        for one in topic.partitions
    }
    return AlterPartitionReassignmentsResponse(
        error_message=None, responses=_reassigned(await ctx.services.controller.reassign(wanted))
    )


@shapes_errors_of(AlterPartitionReassignmentsRequest)
def alter_partition_reassignments_error(
    request: AlterPartitionReassignmentsRequest, error: Error, message: str
) -> AlterPartitionReassignmentsResponse:
    problem = KafkaError(error, message)
    every = {TopicPartition(topic.name, one.partition_index): problem for topic in request.topics for one in topic.partitions}
    return AlterPartitionReassignmentsResponse(error_code=error, error_message=message, responses=_reassigned(every))


def _reassigned(results: Results) -> list[ReassignableTopicResponse]:
    return [
        ReassignableTopicResponse(
            name=topic,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=tp.partition, error_code=_code(results[tp]), error_message=_words(results[tp])
                )
                for tp in partitions
            ],
        )
        for topic, partitions in _by_topic(results)
    ]


@handles(ListPartitionReassignmentsRequest)
async def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    asked = None
    if request.topics is not None:
        asked = [TopicPartition(topic.name, number) for topic in request.topics for number in topic.partition_indexes]
    moving = await ctx.services.controller.reassignments(asked)
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            OngoingTopicReassignment(
                name=topic,
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=tp.partition,
                        replicas=moving[tp].replicas,
                        adding_replicas=moving[tp].adding,
                        removing_replicas=moving[tp].removing,
                    )
                    for tp in partitions
                ],
            )
            for topic, partitions in _by_topic(moving)
        ],
    )


@shapes_errors_of(ListPartitionReassignmentsRequest)
def list_partition_reassignments_error(
    request: ListPartitionReassignmentsRequest, error: Error, message: str
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        error_code=error,
        error_message=message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[OngoingPartitionReassignment(partition_index=number) for number in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ],
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(group)) for topic, group in groupby(sorted(partitions), key=lambda tp: tp.topic)]


def _code(problem: KafkaError | None) -> Error:
    return Error.NONE if problem is None else problem.error


def _words(problem: KafkaError | None) -> str | None:
    return None if problem is None else problem.message
