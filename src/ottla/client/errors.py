"""What the client says when it cannot go on: one line each, with what happened, where, and what to do.

All are `ClientError`, which is a `KafkaError`: `error` holds Kafka's code, where a broker gave one.
"""

from __future__ import annotations

from ottla.model import Error, KafkaError, TopicPartition, error_of

PASSING = frozenset(
    {
        Error.LEADER_NOT_AVAILABLE,
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.REPLICA_NOT_AVAILABLE,
        Error.BROKER_NOT_AVAILABLE,
        Error.NETWORK_EXCEPTION,
        Error.REQUEST_TIMED_OUT,
        Error.COORDINATOR_LOAD_IN_PROGRESS,
        Error.COORDINATOR_NOT_AVAILABLE,
        Error.NOT_COORDINATOR,
        Error.NOT_ENOUGH_REPLICAS,
        Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Error.NOT_CONTROLLER,
        Error.KAFKA_STORAGE_ERROR,
        Error.FENCED_LEADER_EPOCH,
        Error.UNKNOWN_LEADER_EPOCH,
        Error.OFFSET_NOT_AVAILABLE,
        Error.CONCURRENT_TRANSACTIONS,
        Error.UNSTABLE_OFFSET_COMMIT,
        Error.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Errors of a cluster that is moving something: asked again in a moment, it knows better."""


class ClientError(KafkaError):
    """Whatever the client raises."""


class InvalidSetting(ClientError):
    """A setting that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.INVALID_CONFIG, message)


class BrokerUnreachable(ClientError):
    """A broker that could not be asked, or did not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.BROKER_NOT_AVAILABLE, message)


class AnswerLost(BrokerUnreachable):
    """A broker that was asked and did not answer: whether it did what it was asked is not known."""


class AuthenticationFailed(ClientError):
    """The broker does not take us for who we say we are, or we do not trust it."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.SASL_AUTHENTICATION_FAILED, message)


class UnsupportedByBroker(ClientError):
    """A request in a version that the broker does not serve, or bytes that are not Kafka's protocol."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.UNSUPPORTED_VERSION, message)


class TimedOut(ClientError):
    """The cluster did not do it in time."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.REQUEST_TIMED_OUT, message)


class UnknownTopic(ClientError):
    """A topic, or a partition of one, that does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.UNKNOWN_TOPIC_OR_PARTITION, message)


class OffsetOutOfRange(ClientError):
    """An offset that the log does not have, or not any more."""

    def __init__(self, partition: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        super().__init__(
            Error.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} of partition {partition} is out of range: the log has offsets {earliest} to {latest}.",
        )
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class CorruptBatch(ClientError):
    """Records that are not what was written. Nothing of the batch was handed out."""

    def __init__(self, partition: TopicPartition, offset: int, why: str) -> None:
        super().__init__(
            Error.CORRUPT_MESSAGE,
            f"The batch at offset {offset} of partition {partition} is corrupt ({why}): read on from a later offset, or repair"
            " the log.",
        )
        self.partition = partition
        self.offset = offset


class InvalidTable(ClientError):
    """Columns that cannot become records."""

    def __init__(self, message: str) -> None:
        super().__init__(Error.INVALID_RECORD, message)


class WriteFailed(ClientError):
    """Records that a broker refused."""

    def __init__(self, error: Error, partition: TopicPartition, why: str = "") -> None:
        super().__init__(error, f"Records for partition {partition} were refused: {error.name}{f' ({why})' if why else ''}.")
        self.partition = partition


class ProducerFenced(ClientError):
    """Another producer uses the transactional id now, or the transaction took longer than its timeout."""


class TransactionAborted(ClientError):
    """The transaction cannot be committed any more: abort it, and begin again."""


def describe(code: int, message: str | None = None) -> str:
    """An error code in words."""
    try:
        name = Error(code).name
    except ValueError:
        name = f"error {code}"
    return f"{name}: {message}" if message else name


def refusal(code: int, what: str, message: str | None = None) -> ClientError | None:
    """What a broker refused with, as an error that says what was being done; None where it did not refuse."""
    return None if code == Error.NONE else ClientError(error_of(code), f"{what}: {describe(code, message)}")


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise what a broker refused with."""
    refused = refusal(code, what, message)
    if refused is not None:
        raise refused


def lasting(code: int, what: str, message: str | None = None) -> ClientError | None:
    """A refusal for the caller; one that passes is raised, so that `Cluster.patiently` asks again."""
    refused = refusal(code, what, message)
    if refused is not None and refused.error in PASSING:
        raise refused
    return refused
