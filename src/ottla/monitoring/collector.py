"""What is measured, and where it is read: every family that `/metrics` shows.

Guards: a scrape of ten thousand partitions holds nobody up. It is made piece by piece, each a fraction of a millisecond's work,
and whoever sends the pieces lets others have their turn in between; so what one scrape shows is not of one moment.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ottla import __version__
from ottla.api.registry import HANDLERS, Registry
from ottla.api.services import Services
from ottla.metrics import Durations, RequestCounters, TopicCounters
from ottla.model import NO_LEADER, Error
from ottla.monitoring.text import COUNTER, GAUGE, HISTOGRAM, family, head, histogram, labels, one
from ottla.network.connection import Connection
from ottla.network.server import Server
from ottla.replication.partition import Partition
from ottla.replication.waiting import DelayedFetch, DelayedProduce
from ottla.storage.cleaning.cleaner import Cleaner

_AT_ONCE = 100
"""Partitions in one piece."""
_LOOKED_AT = 1000
"""Things that are only counted, in one piece."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Sources:
    """Where the numbers are."""

    services: Services
    registry: Registry
    server: Server
    cleaner: Cleaner | None
    loop_lag: Durations
    started: float
    """Seconds since 1970."""


def scrape(sources: Sources) -> Iterator[str]:
    """The whole page, in pieces."""
    yield from _process(sources)
    yield from _requests(sources.registry)
    yield _connections(sources.server)
    yield from _topics(sources.services)
    yield from _partitions(sources.services)
    yield from _controller(sources.services)
    yield from _coordinators(sources.services)
    yield _cleaner(sources)


# ---- the process ---------------------------------------------------------------------------------------------------------


def _process(sources: Sources) -> Iterator[str]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    services = sources.services
    info = {"version": __version__, "broker_id": services.broker_id, "cluster_id": services.cluster_id}
    yield family("ottla_build_info", GAUGE, "Which program this is, of which broker.", [(info, 1)])
    yield one("process_cpu_seconds_total", COUNTER, "CPU used, user and system.", used.ru_utime + used.ru_stime)
    yield one("process_resident_memory_bytes", GAUGE, "Resident memory.", _resident())
    yield one("process_open_fds", GAUGE, "Open file descriptors.", _open_files())
    yield one("process_max_fds", GAUGE, "How many may be open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield one("process_start_time_seconds", GAUGE, "When it was started.", sources.started)
    name = "ottla_loop_lag_ms"
    yield head(name, HISTOGRAM, "How late the event loop comes to a timer, measured twice a second.")
    yield histogram(name, [sources.loop_lag])


def _resident() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


# ---- requests ------------------------------------------------------------------------------------------------------------

_TIMES: Sequence[tuple[str, str, Callable[[RequestCounters], tuple[list[Durations], int]]]] = (
    ("totaltimems", "From its arrival to its answer.", lambda c: ([c.quick, c.total], 0)),
    ("requestqueuetimems", "Waiting behind others of the same connection.", lambda c: _or_none(c, c.queue)),
    ("localtimems", "In its handler.", lambda c: ([c.quick, c.local], 0)),
    ("remotetimems", "Waiting for data, other replicas or a disk.", lambda c: _or_none(c, c.remote)),
    ("responsesendtimems", "Until the client had taken its answer.", lambda c: _or_none(c, c.send)),
)


def _or_none(counters: RequestCounters, measured: Durations) -> tuple[list[Durations], int]:
    """What only some requests have is zero for the others."""
    return [measured], max(sum(counters.quick.counts) + sum(counters.total.counts) - sum(measured.counts), 0)


def _requests(registry: Registry) -> Iterator[str]:
    seen = {
        HANDLERS[key][0].name.removesuffix("Request"): counters
        for key, counters in registry.counters.items()
        if counters.requests
    }
    yield family(
        "kafka_network_requestmetrics_requests_total", COUNTER, "Requests.",
        [({"request": name, "version": v}, n) for name, c in seen.items() for v, n in c.requests.items()],
    )  # fmt: skip
    yield family(
        "kafka_network_requestmetrics_errors_total", COUNTER, "Requests that ended in an error as a whole.",
        [({"request": name, "error": Error(e).name}, n) for name, c in seen.items() for e, n in c.errors.items()],
    )  # fmt: skip
    for suffix, words, parts_of in _TIMES:
        name = f"kafka_network_requestmetrics_{suffix}"
        yield head(name, HISTOGRAM, words)
        for request, counters in seen.items():
            parts, zeros = parts_of(counters)
            yield histogram(name, parts, zeros, coarse=suffix != _TIMES[0][0], request=request)


def _connections(server: Server) -> str:
    waiting = Counter(type(waiter) for one in server.connections if isinstance(one, Connection) for waiter in one.waiters)
    listeners = Counter(one.listener for one in server.connections)
    counts: list[tuple[dict[str, object], float]] = [
        ({"listener": listener.name}, listeners[listener.name]) for listener in server.listeners
    ]
    purgatories: list[tuple[dict[str, object], float]] = [
        ({"delayedOperation": "Produce"}, waiting[DelayedProduce]),
        ({"delayedOperation": "Fetch"}, waiting[DelayedFetch]),
    ]
    accepted = one("kafka_server_socketservermetrics_connection_creation_total", COUNTER, "Accepted.", server.accepted)
    return (
        family("kafka_server_socketservermetrics_connection_count", GAUGE, "Open connections.", counts)
        + accepted
        + family("kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE, "Requests that wait.", purgatories)
    )


# ---- topics and partitions -----------------------------------------------------------------------------------------------

_PER_TOPIC: Sequence[tuple[str, str, Callable[[TopicCounters], int]]] = (
    ("messagesin", "Records written by producers.", lambda c: c.messages_in),
    ("bytesin", "Bytes written by producers.", lambda c: c.bytes_in),
    ("bytesout", "Bytes read by consumers.", lambda c: c.bytes_out),
    ("replicationbytesin", "Bytes fetched from leaders.", lambda c: c.replication_bytes_in),
    ("replicationbytesout", "Bytes fetched by followers.", lambda c: c.replication_bytes_out),
    ("totalproducerequests", "Partitions in produce requests.", lambda c: c.produces),
    ("failedproducerequests", "Of those, refused.", lambda c: c.failed_produces),
    ("totalfetchrequests", "Partitions in fetch answers.", lambda c: c.fetches),
    ("failedfetchrequests", "Of those, refused.", lambda c: c.failed_fetches),
)


def _topics(services: Services) -> Iterator[str]:
    rows = [(labels(topic=name), counters) for name, counters in services.replicas.counters.items()]
    for suffix, words, value in _PER_TOPIC:
        name = f"kafka_server_brokertopicmetrics_{suffix}_total"
        yield head(name, COUNTER, words)
        for begin in range(0, len(rows), _AT_ONCE):
            yield "".join(f"{name}{label} {value(counters)}\n" for label, counters in rows[begin : begin + _AT_ONCE])


_PER_PARTITION: Sequence[tuple[str, str, Callable[[Partition], int]]] = (
    ("size", "Bytes on the disk.", lambda p: p.log.size),
    ("numlogsegments", "Segments.", lambda p: len(p.log.segments)),
    ("logstartoffset", "The first offset.", lambda p: p.log.log_start_offset),
    ("logendoffset", "The next offset.", lambda p: p.log.log_end_offset),
)


def _partitions(services: Services) -> Iterator[str]:
    partitions = list(services.replicas.partitions.values())
    counts: Counter[str] = Counter()
    rows: list[tuple[str, Partition]] = []
    lagging: list[str] = []
    for begin in range(0, len(partitions), _AT_ONCE):
        for partition in partitions[begin : begin + _AT_ONCE]:
            label = labels(topic=partition.tp.topic, partition=partition.tp.partition)
            rows.append((label, partition))
            if partition.is_leader:
                state = partition.state
                counts["leadercount"] += 1
                counts["reassigningpartitions"] += bool(state.adding or state.removing)
                if len(state.isr) < len(state.replicas):
                    counts["underreplicatedpartitions"] += 1
                    lagging.append(label)
                if len(state.replicas) > 1 and partition.under_min_isr:
                    counts["underminisrpartitioncount"] += 1
        yield ""
    counts["partitioncount"] = len(partitions)
    counts["offlinereplicacount"] = len(services.replicas.offline)
    for name, words in (
        ("leadercount", "Partitions that this broker leads."),
        ("partitioncount", "Partitions that this broker has."),
        ("underreplicatedpartitions", "Partitions led here whose ISR is not whole."),
        ("underminisrpartitioncount", "Partitions led here with fewer in sync than min.insync.replicas."),
        ("reassigningpartitions", "Partitions led here that are being reassigned."),
        ("offlinereplicacount", "Replicas here whose disk failed."),
    ):
        yield one(f"kafka_server_replicamanager_{name}", GAUGE, words, counts[name])
    changes = services.replicas.around.counters
    yield one("kafka_server_replicamanager_isrshrinks_total", COUNTER, "Replicas fell behind.", changes.isr_shrinks)
    yield one("kafka_server_replicamanager_isrexpands_total", COUNTER, "Replicas caught up.", changes.isr_expands)
    yield one("kafka_server_replicamanager_failedisrupdates_total", COUNTER, "Refused ISRs.", changes.failed_isr_updates)
    yield _directories(services)
    name = "kafka_cluster_partition_underreplicated"
    yield head(name, GAUGE, "1 for each partition led here whose ISR is not whole; others are left out.")
    for begin in range(0, len(lagging), _AT_ONCE):
        yield "".join(f"{name}{label} 1\n" for label in lagging[begin : begin + _AT_ONCE])
    for suffix, words, value in _PER_PARTITION:
        name = f"kafka_log_log_{suffix}"
        yield head(name, GAUGE, words)
        for begin in range(0, len(rows), _AT_ONCE):
            yield "".join(f"{name}{label} {value(partition)}\n" for label, partition in rows[begin : begin + _AT_ONCE])


def _directories(services: Services) -> str:
    offline = services.logs.offline_dirs
    return family(
        "kafka_log_logmanager_logdirectoryoffline", GAUGE, "1 for a log directory that failed.",
        [({"logDirectory": path}, path in offline) for path in services.config.log_dirs],
    ) + one("kafka_log_logmanager_offlinelogdirectorycount", GAUGE, "Log directories that failed.", len(offline))  # fmt: skip


# ---- the cluster ---------------------------------------------------------------------------------------------------------


def _controller(services: Services) -> Iterator[str]:
    """What only the controller counts is 0 elsewhere, so that a sum over all brokers is right."""
    controller = services.controller
    image = services.metadata.image  # swapped whole, never changed
    active = controller.active
    partitions = leaderless = led_badly = 0
    for topic in image.topics.values() if active else ():
        for state in topic.partitions.values():
            partitions += 1
            leaderless += state.leader == NO_LEADER
            led_badly += bool(state.replicas) and state.leader != state.replicas[0]
            if partitions % _LOOKED_AT == 0:
                yield ""
    rows = (
        ("activecontrollercount", "1 on the controller.", int(active)),
        ("offlinepartitionscount", "Partitions without a leader.", leaderless),
        ("preferredreplicaimbalancecount", "Partitions not led by their first replica.", led_badly),
        ("globaltopiccount", "Topics.", len(image.topics) if active else 0),
        ("globalpartitioncount", "Partitions.", partitions),
        ("activebrokercount", "Brokers that are alive.", len(image.brokers) if active else 0),
    )
    counters = controller.counters
    elections, unclean = counters.leader_elections, counters.unclean_elections
    stats = "kafka_controller_controllerstats_"
    yield (
        "".join(one(f"kafka_controller_kafkacontroller_{name}", GAUGE, words, value) for name, words, value in rows)
        + one(f"{stats}leaderelection_total", COUNTER, "Partitions that got another leader.", elections)
        + one(f"{stats}uncleanleaderelections_total", COUNTER, "Of those, a leader that was not in sync.", unclean)
    )


_GROUP_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")


def _coordinators(services: Services) -> Iterator[str]:
    states: Counter[str] = Counter()
    groups = services.groups.all_groups()
    for begin in range(0, len(groups), _LOOKED_AT):
        states.update(group.state.value for group in groups[begin : begin + _LOOKED_AT])
        yield ""
    name = "kafka_coordinator_group_groupmetadatamanager_"
    yield one(f"{name}numgroups", GAUGE, "Groups coordinated here.", states.total())
    for state in _GROUP_STATES:
        yield one(f"{name}numgroups{state.lower()}", GAUGE, f"Groups coordinated here in state {state}.", states[state])
    transactions: Counter[str] = Counter()
    known = services.transactions.all_transactions()
    for begin in range(0, len(known), _LOOKED_AT):
        transactions.update(one.status.shown for one in known[begin : begin + _LOOKED_AT])
        yield ""
    yield family(
        "ottla_coordinator_transactions", GAUGE, "Transactional ids coordinated here, by state.",
        [({"state": state}, count) for state, count in transactions.items()],
    )  # fmt: skip


def _cleaner(sources: Sources) -> str:
    cleaner = sources.cleaner
    if cleaner is None:
        return ""
    name = "kafka_log_logcleaner"
    return (
        one(f"{name}_cleanercount", GAUGE, "Logs that are being cleaned.", len(cleaner.cleaning))
        + one(f"{name}_cleans_total", COUNTER, "Cleans that were finished.", cleaner.cleans)
        + one(f"{name}_cleanedbytes_total", COUNTER, "Bytes that cleans took away.", cleaner.bytes_gained)
        + one(f"{name}_maxcleantimesecs", GAUGE, "The longest clean since the start.", cleaner.longest_clean)
        + one(f"{name}manager_uncleanablepartitionscount", GAUGE, "Logs that cannot be cleaned.", len(cleaner.uncleanable))
    )
