"""The settings that the group coordinator obeys, typed and under Kafka's names; times are seconds inside, as deadlines are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.coordinator.assignors import ASSIGNORS, RANGE, UNIFORM

if TYPE_CHECKING:
    from ottla.config import BrokerConfig

_MINUTE_MS = 60_000


@dataclass(slots=True, frozen=True)
class GroupSettings:
    """Limits of groups and of committed offsets, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * _MINUTE_MS
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS
    consumer_protocol_enabled: bool = True
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = (UNIFORM, RANGE)
    """Names of the server-side assignors; the first one is used where members do not ask for another."""
    consumer_migration_policy: str = "bidirectional"

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        """What a broker's configuration says."""
        return cls(
            min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
            max_size=config.integer("group.max.size"),
            offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=config.integer("offsets.retention.minutes") * _MINUTE_MS,
            offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
            consumer_protocol_enabled="consumer" in _names(config, "group.coordinator.rebalance.protocols"),
            consumer_session_timeout_ms=config.integer("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=config.integer("group.consumer.heartbeat.interval.ms"),
            consumer_max_size=config.integer("group.consumer.max.size"),
            consumer_assignors=_assignors(_names(config, "group.consumer.assignors")),
            consumer_migration_policy=config.text("group.consumer.migration.policy"),
        )


@dataclass(slots=True, frozen=True)
class TransactionSettings:
    """Limits of transactions, with Kafka's defaults."""

    max_timeout_ms: int = 15 * _MINUTE_MS
    id_expiration_ms: int = 7 * 24 * 60 * _MINUTE_MS

    @classmethod
    def of(cls, config: BrokerConfig) -> TransactionSettings:
        """What a broker's configuration says."""
        return cls(
            max_timeout_ms=config.integer("transaction.max.timeout.ms"),
            id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        )


def _names(config: BrokerConfig, setting: str) -> list[str]:
    value = config[setting]
    assert isinstance(value, list)
    return value


def _assignors(names: Iterable[str]) -> tuple[str, ...]:
    """Assignors by name, or by the Java class that Apache Kafka's configurations name; what this broker has not is left out."""
    known = (name.rpartition(".")[2].removesuffix("Assignor").lower() for name in names)
    return tuple(name for name in dict.fromkeys(known) if name in ASSIGNORS) or (UNIFORM, RANGE)
