"""The settings of a topic: Apache Kafka 3.9's names, types and limits, and the broker settings that give their defaults."""

from __future__ import annotations

from ottla.config.types import LONG_MAX, Setting, boolean, double, integer, listing, long, string

HOUR, MINUTE = 3_600_000, 60_000


def _throttled(text: str) -> str | None:
    """`*`, or a list of partition:broker."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts in ([], ["*"]):
        return None
    for part in parts:
        partition, _, broker = part.partition(":")
        if not (partition.isdigit() and broker.isdigit()):
            return "allowed is * or a list of partition:broker, such as 0:1,1:2"
    return None


def _from(name: str, *more: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return ((name, 1), *more)


TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        listing("cleanup.policy", "delete", "compact", "delete", fallbacks=_from("log.cleanup.policy")),
        integer("compression.gzip.level", -1, -1, 9, fallbacks=_from("compression.gzip.level")),
        integer("compression.lz4.level", 9, 1, 17, fallbacks=_from("compression.lz4.level")),
        string(
            "compression.type", "producer",
            "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer", fallbacks=_from("compression.type"),
        ),
        integer("compression.zstd.level", 3, -131072, 22, fallbacks=_from("compression.zstd.level")),
        long("delete.retention.ms", 24 * HOUR, 0, fallbacks=_from("log.cleaner.delete.retention.ms")),
        long("file.delete.delay.ms", MINUTE, 0, fallbacks=_from("log.segment.delete.delay.ms")),
        long("flush.messages", LONG_MAX, 1, fallbacks=_from("log.flush.interval.messages")),
        long("flush.ms", LONG_MAX, 0, fallbacks=_from("log.flush.interval.ms")),
        string("follower.replication.throttled.replicas", "", check=_throttled),
        integer("index.interval.bytes", 4096, 0, fallbacks=_from("log.index.interval.bytes")),
        string("leader.replication.throttled.replicas", "", check=_throttled),
        long("local.retention.bytes", -2, -2),
        long("local.retention.ms", -2, -2),
        long("max.compaction.lag.ms", LONG_MAX, 1, fallbacks=_from("log.cleaner.max.compaction.lag.ms")),
        integer("max.message.bytes", 1048588, 0, fallbacks=_from("message.max.bytes")),
        boolean("message.downconversion.enable", True, fallbacks=_from("log.message.downconversion.enable")),
        string("message.format.version", "3.0-IV1", fallbacks=_from("log.message.format.version")),
        long("message.timestamp.after.max.ms", LONG_MAX, 0, fallbacks=_from("log.message.timestamp.after.max.ms")),
        long("message.timestamp.before.max.ms", LONG_MAX, 0, fallbacks=_from("log.message.timestamp.before.max.ms")),
        long("message.timestamp.difference.max.ms", LONG_MAX, 0, fallbacks=_from("log.message.timestamp.difference.max.ms")),
        string(
            "message.timestamp.type", "CreateTime", "CreateTime", "LogAppendTime",
            fallbacks=_from("log.message.timestamp.type"),
        ),
        double("min.cleanable.dirty.ratio", 0.5, 0, 1, fallbacks=_from("log.cleaner.min.cleanable.ratio")),
        long("min.compaction.lag.ms", 0, 0, fallbacks=_from("log.cleaner.min.compaction.lag.ms")),
        integer("min.insync.replicas", 1, 1, fallbacks=_from("min.insync.replicas")),
        boolean("preallocate", False, fallbacks=_from("log.preallocate")),
        boolean("remote.storage.enable", False),
        long("retention.bytes", -1, fallbacks=_from("log.retention.bytes")),
        long(
            "retention.ms", 7 * 24 * HOUR, -1,
            fallbacks=_from("log.retention.ms", ("log.retention.minutes", MINUTE), ("log.retention.hours", HOUR)),
        ),
        integer("segment.bytes", 1 << 30, 14, fallbacks=_from("log.segment.bytes")),
        integer("segment.index.bytes", 10 << 20, 4, fallbacks=_from("log.index.size.max.bytes")),
        long("segment.jitter.ms", 0, 0, fallbacks=_from("log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR))),
        long("segment.ms", 7 * 24 * HOUR, 1, fallbacks=_from("log.roll.ms", ("log.roll.hours", HOUR))),
        boolean("unclean.leader.election.enable", False, fallbacks=_from("unclean.leader.election.enable")),
    )
}  # fmt: skip
