"""What compaction is measured with: a log that is cleaned whole, and a producer beside it.

Guards: the broker runs and has cleaned smaller logs before one counts. Each log is written while min.cleanable.dirty.ratio=1
keeps the cleaner away, and is on the disk and in the page cache when the setting changes; from then the time runs, until
`cleaner-offset-checkpoint` says that all closed segments are clean. CPU and memory are those of the broker and of its children.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench.connection import ask
from bench.figures import CODECS, STEADY_RATE
from bench.keyed_load import RECORDS_PER_BATCH, RECORDS_PER_KEY, VALUE_SIZE
from bench.machine import family_cpu_seconds, family_peak_mb, forget_family_peak
from bench.scenarios import Bench, ScenarioError, Sizes, until_settled
from ottla.model import Error
from ottla.wire.apis.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from ottla.wire.schema import Malformed

_SEGMENT_MB = 64
_POLL_S = 0.01
_CLEAN_WITHIN_S = 300.0
_CHECKPOINT = "cleaner-offset-checkpoint"
_SET, _TOPIC = 0, 2
_RATIO = "min.cleanable.dirty.ratio"
_KEPT_DIRTY = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_MB << 20), _RATIO: "1"}

BROKER_SETTINGS = {
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "log.cleaner.backoff.ms": "20",  # how soon it sees that a log may be cleaned
}
"""For both brokers; all but the last are what both have by default."""


def explained(sizes: Sizes) -> str:
    """What a reader of the figures must know."""
    records, beside = sizes.compaction_records, sizes.compaction_beside_records
    return (
        f"Compaction: a log is {records:,} records (beside a producer: {beside:,}) with {VALUE_SIZE} bytes of text under one of"
        f" {records // RECORDS_PER_KEY:,} keys (beside a producer: {beside // RECORDS_PER_KEY:,}), drawn at random, in batches"
        f" of {RECORDS_PER_BATCH} and segments of {_SEGMENT_MB} MiB. Both brokers were sent the same batches and have the same"
        " files, on the disk and in the page cache when the clean begins. MB and GB are those of the closed segments on disk,"
        " before the clean. One cleaner thread with 128 MiB for keys; CPU and memory are those of the broker and its child"
        " processes, memory at its peak"
    )


# ---- the scenario --------------------------------------------------------------------------------------------------------


def warm_up(bench: Bench) -> None:
    """Clean small logs, until that gets no faster."""

    def once() -> float:
        topics = [bench.create_topic(1, _KEPT_DIRTY) for _ in CODECS]
        for topic, codec in zip(topics, CODECS, strict=True):
            _write(bench, topic, bench.sizes.compaction_warm_up_records, codec)
        rates = [_clean(bench, topic).rate for topic in topics]
        bench.delete_topics(*topics)
        return sum(rates)

    until_settled(bench, "compaction", "MB/s, all codecs added up", once, bench.sizes.compaction_warm_ups)


def beside_a_producer(bench: Bench) -> None:
    """One round: a log of each codec is cleaned beside a steady producer."""
    topics = [bench.create_topic(1, _KEPT_DIRTY) for _ in CODECS]
    hot = bench.create_topic(1)
    for codec, topic in zip(CODECS, topics, strict=True):
        _write(bench, topic, bench.sizes.compaction_beside_records, codec)
    with bench.running("steady_producer", topic=hot, rate=STEADY_RATE) as producer:
        producer.wait_until_ready()
        producer.tell("alone")
        time.sleep(bench.sizes.compaction_alone_s)
        producer.tell("beside")
        _clean(bench, *topics)
        figures = producer.end()
    for phase in ("alone", "beside"):
        bench.add(f"compaction.{phase}.p50", figures[f"{phase}_p50_ms"])
        bench.add(f"compaction.{phase}.p99", figures[f"{phase}_p99_ms"])
    bench.add("compaction.grows", figures["beside_p99_ms"] / figures["alone_p99_ms"])
    bench.delete_topics(*topics, hot)


def large_logs(bench: Bench) -> None:
    """A large log of each codec, one after the other, and nothing beside it."""
    for codec in CODECS:
        topic = bench.create_topic(1, _KEPT_DIRTY)
        _write(bench, topic, bench.sizes.compaction_records, codec)
        for name, value in _clean(bench, topic).figures().items():
            bench.add(f"compaction.{codec}.{name}", value)
        bench.delete_topics(topic)


def _write(bench: Bench, topic: str, records: int, codec: str) -> None:
    """A log, on the disk and in the page cache. The batches lie where all brokers of this run are sent them from."""
    batches = bench.broker.data.parents[1] / f"batches-{codec}-{records}"
    if not batches.exists():
        bench.load("make_keyed", path=str(batches), records=records, codec=codec)
    bench.load("write_keyed", path=str(batches), topic=topic, records=records)
    for path in _place(bench, topic).glob("*.log"):
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)  # or the kernel would write it out while the clean is measured
        os.close(fd)


# ---- one clean -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Clean:
    """What a clean came to."""

    seconds: float
    dirty_mb: float
    left_mb: float
    cpu_s: float
    peak_mb: float

    @property
    def rate(self) -> float:
        """MB/s."""
        return self.dirty_mb / self.seconds

    def figures(self) -> dict[str, float]:
        """Under the names of the report."""
        return {
            "rate": self.rate,
            "cpu": self.cpu_s / (self.dirty_mb / 1000),
            "rss": self.peak_mb,
            "seconds": self.seconds,
            "dirty": self.dirty_mb,
            "left": self.left_mb,
        }


def _clean(bench: Bench, *topics: str) -> _Clean:
    """Let the topics be cleaned, one after the other, and wait until all are."""
    pid, data = bench.broker.pid, bench.broker.data
    closed = {topic: _closed(_place(bench, topic)) for topic in topics}
    dirty = sum(size for _, size in closed.values())
    forget_family_peak(pid)
    cpu, began = family_cpu_seconds(pid), time.perf_counter()
    for topic in topics:
        _let_clean(bench, topic)
    while any(_cleaned_to(data, topic) < end for topic, (end, _) in closed.items()):
        if time.perf_counter() - began > _CLEAN_WITHIN_S:
            raise ScenarioError(f"{' and '.join(topics)} could not be cleaned within {_CLEAN_WITHIN_S:.0f} s")
        time.sleep(_POLL_S)
    seconds, cpu, peak = time.perf_counter() - began, family_cpu_seconds(pid) - cpu, family_peak_mb(pid)
    left = sum(_bytes_before(_place(bench, topic), end) for topic, (end, _) in closed.items())
    return _Clean(seconds, dirty / 1e6, left / 1e6, cpu, peak)


def _place(bench: Bench, topic: str) -> Path:
    return bench.broker.data / f"{topic}-0"


def _closed(place: Path) -> tuple[int, int]:
    """Where the closed segments of a log end, and their bytes."""
    end = max(int(path.stem) for path in place.glob("*.log"))
    if not end:
        raise ScenarioError(f"{place.name} has no closed segment to clean")
    return end, _bytes_before(place, end)


def _bytes_before(place: Path, end: int) -> int:
    return sum(path.stat().st_size for path in place.glob("*.log") if int(path.stem) < end)


def _let_clean(bench: Bench, topic: str) -> None:
    change = IncrementalAlterableConfig(name=_RATIO, config_operation=_SET, value="0.01")
    resource = IncrementalAlterConfigsResource(resource_type=_TOPIC, resource_name=topic, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    try:
        answer = ask(bench.broker.port, request, IncrementalAlterConfigsResponse, 1, timeout=30)
    except (OSError, Malformed) as problem:
        raise ScenarioError(f"{_RATIO} of {topic} could not be changed: {problem}") from None
    for response in answer.responses:
        if response.error_code != Error.NONE:
            raise ScenarioError(f"{_RATIO} of {topic} could not be changed: {Error(response.error_code).name}")


def _cleaned_to(data: Path, topic: str) -> int:
    """The first offset of the topic that is not clean, by the broker's own file; 0 where it has none yet."""
    try:
        lines = (data / _CHECKPOINT).read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{topic} 0 ")), 0)
