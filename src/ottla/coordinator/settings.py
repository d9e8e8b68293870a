"""The settings that the group coordinator obeys, typed and under Kafka's names; times are seconds inside, as deadlines are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        )
