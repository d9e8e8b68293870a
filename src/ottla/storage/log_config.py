"""The settings of one topic as the log uses them: typed, complete, with Kafka's defaults. `config.py` builds it from
strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ottla.records.codecs import Codec

MAX_LONG: Final = (1 << 63) - 1
MAX_INT: Final = (1 << 31) - 1

DELETE: Final = "delete"
COMPACT: Final = "compact"
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"
PRODUCER: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One field per topic-level setting of Kafka 3.9, dots turned into underscores. Replaced whole when a setting changes."""

    cleanup_policy: frozenset[str] = frozenset({DELETE})
    compression_type: str = PRODUCER
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    follower_replication_throttled_replicas: str = ""
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: str = ""
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_downconversion_enable: bool = True
    message_format_version: str = "3.0-IV1"
    message_timestamp_after_max_ms: int = MAX_LONG
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_difference_max_ms: int = MAX_LONG
    message_timestamp_type: str = CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    # What the append path asks on every batch, worked out once.
    compact: bool = field(init=False)
    roll_ms: int = field(init=False)
    log_append_time: bool = field(init=False)
    target_codec: Codec | None = field(init=False)  # None: as the producer sent it
    bounded_timestamps: bool = field(init=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__
        derive(self, "compact", COMPACT in self.cleanup_policy)
        derive(self, "roll_ms", min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms)
        derive(self, "log_append_time", self.message_timestamp_type == LOG_APPEND_TIME)
        derive(self, "target_codec", _codec(self.compression_type))
        bounded = min(self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms) < MAX_LONG
        derive(self, "bounded_timestamps", bounded)

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by age and size."""
        return DELETE in self.cleanup_policy

    @property
    def compression_level(self) -> int | None:
        """The level for `target_codec`, None where the codec has none."""
        levels = {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.target_codec) if self.target_codec is not None else None


def _codec(compression_type: str) -> Codec | None:
    if compression_type == PRODUCER:
        return None
    return Codec.NONE if compression_type == UNCOMPRESSED else Codec[compression_type.upper()]
