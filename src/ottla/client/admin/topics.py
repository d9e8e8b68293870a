"""Topics and their partitions: create, grow, empty, delete, move, and choose leaders. To look at them is `Cluster.topics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.admin.grouping import by_topic
from ottla.client.cluster import Cluster
from ottla.client.errors import AnswerLost, BrokerUnreachable, ClientError, UnknownTopic, check, lasting, refusal
from ottla.model import Error, TopicPartition
from ottla.wire.apis.reassignment import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.apis.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

BROKERS_CHOICE = -1
"""A count that is left to the broker."""

TO_HIGH_WATERMARK = -1
"""To `delete_records`: all that there is."""

PREFERRED, UNCLEAN = 0, 1
"""Which leader `elect_leaders` is to choose."""

_COUNTS_BY_BROKER = 4  # the first version of CreateTopics that takes BROKERS_CHOICE


class NewTopic(NamedTuple):
    """A topic to create: by counts, or with the replicas of every partition."""

    name: str
    partitions: int = BROKERS_CHOICE
    replication_factor: int = BROKERS_CHOICE
    config: Mapping[str, object] = {}
    assignment: Sequence[Sequence[int]] = ()


class Reassignment(NamedTuple):
    """A move of replicas that is under way."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


Outcome = ClientError | None
"""What became of one thing of many: the refusal, or None."""


def create_topics(cluster: Cluster, topics: Sequence[NewTopic]) -> dict[str, Outcome]:
    """Create topics."""
    by_broker = any(BROKERS_CHOICE in (one.partitions, one.replication_factor) for one in topics if not one.assignment)
    least = _COUNTS_BY_BROKER if by_broker else 0

    def create(left: Sequence[str], controller: int) -> dict[str, Outcome]:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=one.name,
                    num_partitions=BROKERS_CHOICE if one.assignment else one.partitions,
                    replication_factor=BROKERS_CHOICE if one.assignment else one.replication_factor,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
                        for number, replicas in enumerate(one.assignment)
                    ],
                    configs=[CreatableTopicConfig(name=key, value=str(value)) for key, value in one.config.items()],
                )
                for one in topics
                if one.name in left
            ],
            timeout_ms=cluster.settings.request_timeout_ms,
        )
        answer: CreateTopicsResponse = cluster.ask(request, controller, at_least=least)
        return {
            one.name: refusal(one.error_code, f"Topic {one.name} was not created", one.error_message) for one in answer.topics
        }

    def is_there(_name: str, refused: ClientError) -> bool:
        return refused.error is Error.TOPIC_ALREADY_EXISTS

    return _settle(cluster, [one.name for one in topics], create, is_there)


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = BROKERS_CHOICE,
    replication_factor: int = BROKERS_CHOICE,
    config: Mapping[str, object] | None = None,
) -> None:
    """Create a topic; -1 leaves a count to the broker."""
    _raise_any(create_topics(cluster, [NewTopic(name, partitions, replication_factor, config or {})]))


def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, Outcome]:
    """Delete topics and their data."""

    def delete(left: Sequence[str], controller: int) -> dict[str, Outcome]:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in left],
            topic_names=list(left),
            timeout_ms=cluster.settings.request_timeout_ms,
        )
        answer: DeleteTopicsResponse = cluster.ask(request, controller)
        found: dict[str, Outcome] = {}
        for one in answer.responses:
            if one.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
                found[one.name or ""] = UnknownTopic(f"Topic {one.name} does not exist: nothing was deleted.")
            else:
                what = f"Topic {one.name} was not deleted"
                found[one.name or ""] = refusal(one.error_code, what, one.error_message)
        return found

    def is_gone(_name: str, refused: ClientError) -> bool:
        return isinstance(refused, UnknownTopic)

    return _settle(cluster, names, delete, is_gone)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic and its data."""
    _raise_any(delete_topics(cluster, [name]))


def create_partitions(
    cluster: Cluster, counts: Mapping[str, int], assignments: Mapping[str, Sequence[Sequence[int]]] | None = None
) -> dict[str, Outcome]:
    """Grow topics to these numbers of partitions; `assignments` says where the new ones go."""
    places = assignments or {}

    def create(left: Sequence[str], controller: int) -> dict[str, Outcome]:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name,
                    count=counts[name],
                    assignments=[CreatePartitionsAssignment(broker_ids=list(one)) for one in places[name]]
                    if name in places
                    else None,
                )
                for name in left
            ],
            timeout_ms=cluster.settings.request_timeout_ms,
        )
        answer: CreatePartitionsResponse = cluster.ask(request, controller)
        return {
            one.name: refusal(one.error_code, f"Topic {one.name} did not get more partitions", one.error_message)
            for one in answer.results
        }

    def is_grown(name: str, refused: ClientError) -> bool:
        # Refused because it has as many already, or more. Metadata may lag behind the controller, and know of fewer.
        return refused.error is Error.INVALID_PARTITIONS and len(cluster.topic(name, fresh=True).partitions) <= counts[name]

    return _settle(cluster, list(counts), create, is_grown)


def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | ClientError]:
    """Delete the records before these offsets; the new start of each log, or why it was refused."""
    found: dict[TopicPartition, int | ClientError] = {}

    def delete() -> dict[TopicPartition, int | ClientError]:
        # Only what has no outcome yet: TO_HIGH_WATERMARK asked again would take what was written since.
        left = [tp for tp in before if tp not in found]
        requests = {
            leader: DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=number, offset=before[TopicPartition(topic, number)])
                            for number in numbers
                        ],
                    )
                    for topic, numbers in by_topic(partitions).items()
                ],
                timeout_ms=cluster.settings.request_timeout_ms,
            )
            for leader, partitions in cluster.by_leader(left).items()
        }
        answers: dict[int, DeleteRecordsResponse | BrokerUnreachable] = cluster.try_each(requests)
        passing: ClientError | None = None
        for answer in answers.values():
            if isinstance(answer, BrokerUnreachable):
                passing = answer
                continue
            for topic in answer.topics:
                for one in topic.partitions:
                    tp = TopicPartition(topic.name, one.partition_index)
                    try:
                        refused = lasting(one.error_code, f"The records of partition {tp} were not deleted")
                        found[tp] = one.low_watermark if refused is None else refused
                    except ClientError as moved:
                        passing = moved
        if passing is not None:
            raise passing
        return found

    return cluster.patiently(delete)


def elect_leaders(
    cluster: Cluster, kind: int = PREFERRED, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Outcome]:
    """Choose leaders for these partitions, or for all; ELECTION_NOT_NEEDED where the right one leads already.

    Asked for all, brokers tell only of those where something happened or went wrong.
    """
    topics = None
    if partitions is not None:
        topics = [ElectLeadersTopic(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=cluster.settings.request_timeout_ms)

    def elect() -> dict[TopicPartition, Outcome]:
        answer: ElectLeadersResponse = cluster.ask(request, cluster.controller(), at_least=1 if kind else 0)
        check(answer.error_code, "No leaders were elected")
        found = {}
        for topic in answer.replica_election_results:
            for one in topic.partition_result:
                tp = TopicPartition(topic.topic, one.partition_id)
                found[tp] = refusal(one.error_code, f"No leader was elected for partition {tp}", one.error_message)
        return found

    return cluster.patiently(elect)


def alter_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, Outcome]:
    """Begin to move partitions to these replicas; None cancels a move that is under way."""
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(partition_index=number, replicas=None if wanted is None else list(wanted))
                    for number in numbers
                    for wanted in [targets[TopicPartition(topic, number)]]
                ],
            )
            for topic, numbers in by_topic(targets).items()
        ],
        timeout_ms=cluster.settings.request_timeout_ms,
    )

    def alter() -> dict[TopicPartition, Outcome]:
        answer: AlterPartitionReassignmentsResponse = cluster.ask(request, cluster.controller())
        check(answer.error_code, "No partition was reassigned", answer.error_message)
        found = {}
        for topic in answer.responses:
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                found[tp] = refusal(one.error_code, f"Partition {tp} was not reassigned", one.error_message)
        return found

    return cluster.patiently(alter)


def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The moves that are under way, of these partitions or of all."""
    topics = None
    if partitions is not None:
        topics = [
            ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(partitions).items()
        ]
    request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=cluster.settings.request_timeout_ms)

    def look() -> dict[TopicPartition, Reassignment]:
        answer: ListPartitionReassignmentsResponse = cluster.ask(request, cluster.controller())
        check(answer.error_code, "What is being reassigned is not known", answer.error_message)
        return {
            TopicPartition(topic.name, one.partition_index): Reassignment(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in answer.topics
            for one in topic.partitions
        }

    return cluster.patiently(look)


def _settle(
    cluster: Cluster,
    names: Sequence[str],
    change: Callable[[Sequence[str], int], dict[str, Outcome]],
    is_made: Callable[[str, ClientError], bool],
) -> dict[str, Outcome]:
    """Have the controller change these topics; where it is another one by now, that is asked for what is left.

    A change whose answer was lost may have been made: `is_made` knows the refusal that then meets the next try.
    """
    found: dict[str, Outcome] = {}
    unsure: set[str] = set()

    def ask() -> dict[str, Outcome]:
        left = [name for name in names if name not in found]
        controller = cluster.controller()
        cluster.address_of(controller)  # looked up here: an answer that is lost below is that to the change itself
        try:
            outcomes = change(left, controller)
        except AnswerLost:
            unsure.update(left)
            raise
        moved: Outcome = None
        for name, refused in outcomes.items():
            if refused is not None and refused.error is Error.NOT_CONTROLLER:
                moved = refused
            else:
                found[name] = None if refused is not None and name in unsure and is_made(name, refused) else refused
        if moved is not None:
            raise moved
        return found

    return cluster.patiently(ask)


def _raise_any(outcomes: Mapping[str, Outcome]) -> None:
    for refused in outcomes.values():
        if refused is not None:
            raise refused
