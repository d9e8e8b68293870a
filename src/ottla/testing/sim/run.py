"""One run: a cluster, its load, its faults, and the end, at which everything is held against the rules.

A run is a function of its seed (and of the code): brokers, delays, faults and clients all draw from it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random

from ottla.model import TopicPartition
from ottla.records.batch import read_marker, read_records, split
from ottla.storage.log import Log
from ottla.testing.sim.checker import Violation, check
from ottla.testing.sim.clients import Admin, Careless, Client, Producer
from ottla.testing.sim.cluster import Cluster
from ottla.testing.sim.faults import Faults, states, whole
from ottla.testing.sim.history import Acknowledged, Entry, History, StateWritten
from ottla.testing.sim.loop import Overrun, Stuck, current_process, new_loop
from ottla.testing.sim.operator import Operator
from ottla.testing.sim.readers import Consumer, Member
from ottla.testing.sim.transactional import TransactionalProducer

_START_LIMIT = 60.0
_END_LIMIT = 180.0
_GROUP = "group"
SECONDS = 30.0


@dataclass(slots=True, frozen=True)
class Options:
    """What a run is made of, beside its seed."""

    brokers: int | None = None
    """None: 3 to 5, by the seed."""
    seconds: float = SECONDS
    """Virtual seconds of load and faults."""
    faults_every: float | None = None
    """Virtual seconds between two faults; None: by the seed, 0: no faults."""
    trace: bool = False


@dataclass(slots=True)
class Result:
    """What came of a run."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    digest: str = ""
    brokers: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    elections: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    steps: int = 0

    @property
    def ok(self) -> bool:
        return not self.violations


def simulate(seed: int, options: Options | None = None) -> Result:
    """Run a seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that a killed process never came to
        result = Run(seed, options or Options()).go()
        gc.collect()
        return result


class Run:
    """One run, from its seed to its result."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        self.random = Random(seed)
        self.loop = new_loop()
        self.history = History()
        self.result = Result(seed)
        self._clients: list[asyncio.Task[None]] = []
        self._problems: list[str] = []
        self.operator: Operator | None = None

    def go(self) -> Result:
        began = time.perf_counter()
        collecting = gc.isenabled()
        gc.disable()
        with ExitStack() as stack:
            directory = stack.enter_context(_directory())
            count = self.options.brokers or self.random.choice((3, 3, 3, 4, 5))
            self.result.brokers = count
            self.cluster = cluster = Cluster(self.loop, Random(self.random.random()), self.history, directory, count)
            self.faults = Faults(cluster, Random(self.random.random()), self._faults_every())
            stack.enter_context(_log_of_the_run(self))
            stack.enter_context(cluster.disk.installed())
            stack.enter_context(cluster.watch.installed())
            try:
                self.loop.run_until_complete(self._story())
            except (Overrun, Stuck) as end:
                self._broken("stuck", str(end))
            logs = self._final_logs()
            for problem in (*self.loop.problems, *self._problems):
                self._broken("failed", problem)
            self.result.violations += check(self.history, logs)
            self._figures(time.perf_counter() - began)
            for machine in cluster.machines.values():
                if machine.process is not None:
                    cluster._end(machine)
            self.loop.close()
        if collecting:
            gc.enable()
        return self.result

    def _faults_every(self) -> float:
        by_seed = self.random.choice((0.7, 2.0, 5.0))
        return by_seed if self.options.faults_every is None else self.options.faults_every

    def _broken(self, rule: str, text: str) -> None:
        self.result.violations.append(Violation(rule, text))

    def problem(self, text: str) -> None:
        """A broker logged what may not happen."""
        self._problems.append(text)

    def show(self, line: str) -> None:
        """One line of the trace."""
        sys.stdout.write(f"{self.loop.time():10.4f} {line}\n")

    # ---- the story -------------------------------------------------------------------------------------------------------

    async def _story(self) -> None:
        cluster = self.cluster
        for number in cluster.machines:
            cluster.start(number)
        if not await cluster.until(lambda: cluster.all_serving, _START_LIMIT):
            self._broken("stuck", f"the cluster did not start: {self._start_errors()}")
            return
        replicas = min(len(cluster.machines), 3)
        admin = Admin(cluster, "admin", Random(self.random.random()))
        topics = {"plain": self.random.randint(1, 3), "ledger": 2}
        for name, partitions in topics.items():
            creating = admin.begin(admin.create_topic(name, partitions, replicas, self._topic_config()))
            await asyncio.wait_for(asyncio.shield(creating), 60.0)
        until = self.loop.time() + self.options.seconds
        self._begin_load({name: [TopicPartition(name, at) for at in range(count)] for name, count in topics.items()}, until)
        self._begin_operator([TopicPartition(name, at) for name, count in topics.items() for at in range(count)], until)
        if self._faults_every_now() > 0:
            await self.faults.rage(until)
        else:
            await asyncio.sleep(max(until - self.loop.time(), 0.0))
        await self._end()

    def _faults_every_now(self) -> float:
        return 1.0 if self.options.faults_every is None else self.options.faults_every

    def _topic_config(self) -> dict[str, str]:
        """Some topics are flushed, most are not."""
        choices: tuple[dict[str, str], ...] = ({}, {}, {"flush.ms": "2000"}, {"flush.messages": "5"})
        return dict(self.random.choice(choices))

    def _begin_operator(self, partitions: list[TopicPartition], until: float) -> None:
        """Where there is only one broker, there is nothing to move."""
        # Not out of the run's own numbers: with and without an operator a seed is the same cluster.
        operator = Operator(self.cluster, "operator", Random(f"operator {self.seed}"), lambda: self.faults.guarding)
        self.operator = operator
        if len(self.cluster.machines) > 1:
            work = operator.begin(operator.work(partitions, until))
            work.set_name(operator.name)
            self._clients.append(work)

    def _begin_load(self, topics: dict[str, list[TopicPartition]], until: float) -> None:
        everything = [tp for partitions in topics.values() for tp in partitions]
        plain, ledger = topics["plain"], topics["ledger"]

        def add(client: Client, work: asyncio.Task[None]) -> None:
            self._clients.append(work)
            work.set_name(client.name)

        for at in range(2):
            producer = Producer(self.cluster, f"producer-{at}", Random(self.random.random()))
            add(producer, producer.begin(producer.produce(everything, until, 0.15)))
        careless = Careless(self.cluster, "careless", Random(self.random.random()))
        add(careless, careless.begin(careless.produce(plain, until, 0.3)))
        for at in range(2):
            transactional = TransactionalProducer(self.cluster, f"ledger-{at}", Random(self.random.random()))
            add(transactional, transactional.begin(transactional.transact([*ledger, *plain], until, 0.3)))
        for at in range(2):
            consumer = Consumer(self.cluster, f"consumer-{at}", Random(self.random.random()))
            add(consumer, consumer.begin(consumer.consume(everything, until, committed_only=at == 0)))
        for at in range(2):
            member = Member(self.cluster, f"member-{at}", Random(self.random.random()))
            add(member, member.begin(member.take_part(_GROUP, everything, until)))

    async def _end(self) -> None:
        """Everything is made good; then all that was begun must come to an end, and every replica be whole."""
        cluster = self.cluster
        cluster.heal()
        for number, machine in cluster.machines.items():
            cluster.resume(number)
            if machine.stopping:
                await cluster.until(lambda machine=machine: machine.process is None, 30.0)  # type: ignore[misc]
            cluster.start(number)
        if not await cluster.until(lambda: cluster.all_serving, _END_LIMIT):
            self._broken("stuck", f"not all brokers came back: {self._start_errors()}")
        if not await cluster.until(lambda: all(work.done() for work in self._clients), _END_LIMIT):
            names = ", ".join(work.get_name() for work in self._clients if not work.done())
            self._broken("stuck", f"clients that did not come to an end: {names}")
        for work in self._clients:
            if work.done() and not work.cancelled() and (error := work.exception()) is not None:
                self._broken("failed", f"client {work.get_name()}: {error!r}")
        # A transaction counts as ended when that is decided: its markers follow, and one that nobody ends is aborted in time.
        if not await cluster.until(lambda: not any(self._open_transactions()), _END_LIMIT):
            self._broken("stuck", f"transactions that did not end: {'; '.join(self._open_transactions())}")
        operator = self.operator
        if operator is not None and not await cluster.until(lambda: not any(operator.unfinished()), _END_LIMIT):
            self._broken("stuck", f"the operator's work: {'; '.join(operator.unfinished())}")
        if not await cluster.until(lambda: whole(cluster) and not any(self._out_of_sync()), _END_LIMIT):
            self._broken("stuck", f"not all replicas came in sync: {'; '.join(self._out_of_sync())}")

    def _start_errors(self) -> str:
        return "; ".join(error for machine in self.cluster.machines.values() for error in machine.errors[-1:]) or "no error"

    def _open_transactions(self) -> Iterator[str]:
        """The partitions of whose committed records some belong to a transaction that has no end yet."""
        for tp, _, leader in states(self.cluster):
            log = self.cluster.log_of(leader, tp) if leader >= 0 else None
            if log is None or log.last_stable_offset < log.high_watermark:
                stable = log.last_stable_offset if log is not None else "nobody knows where"
                yield f"{tp}: leader {leader}, stable up to {stable}"

    def _out_of_sync(self) -> Iterator[str]:
        """The partitions whose replicas are not all in sync, or differ in their end or their high watermark. (A broker that was
        away when a reassignment took a replica from it may have files of it still: they are nobody's.)"""
        for tp, isr, leader in states(self.cluster):
            logs = {number: self.cluster.log_of(number, tp) for number in isr}
            ends = {number: (log.high_watermark, log.log_end_offset) for number, log in logs.items() if log is not None}
            if leader not in ends or len(isr) != len(ends) or len(set(ends.values())) != 1:
                yield f"{tp}: leader {leader}, ISR {isr}, high watermarks and ends {ends}"

    # ---- the end ---------------------------------------------------------------------------------------------------------

    def _final_logs(self) -> dict[TopicPartition, list[Entry]]:
        """What the leaders have under their high watermarks."""
        found: dict[TopicPartition, list[Entry]] = {}
        for tp, _, leader in states(self.cluster):
            log = self.cluster.log_of(leader, tp) if leader >= 0 else None
            if log is not None and not tp.topic.startswith("__"):
                found[tp] = list(entries(log))
        return found

    def _figures(self, real_s: float) -> None:
        result = self.result
        result.digest = self.history.digest()
        result.faults = self.faults.counts
        if self.operator is not None:
            result.faults.update({f"operator: {action}": count for action, count in self.operator.counts.items()})
        result.acknowledged = sum(len(event.values) for event in self.history if isinstance(event, Acknowledged))
        result.elections = sum(isinstance(event, StateWritten) for event in self.history)
        result.virtual_s, result.real_s, result.steps = self.loop.time(), real_s, self.loop.steps


def entries(log: Log) -> Iterator[Entry]:
    """Everything that a log has under its high watermark."""
    offset, end = log.log_start_offset, log.high_watermark
    while offset < end:
        region = log.read(offset, 1 << 20, end, min_one=True)
        if region is None:
            return
        chunk = region.read()
        for position, header in split(chunk, cut=True):
            offset = header.next_offset
            marker = read_marker(chunk, position, header) if header.is_control else None
            for record in read_records(chunk, position, header):
                yield Entry(
                    record.offset,
                    header.leader_epoch,
                    header.producer_id,
                    header.producer_epoch,
                    header.is_transactional,
                    marker.type.name if marker is not None else None,
                    (record.value or b"").decode("utf-8", "replace") if marker is None else "",
                )


@contextmanager
def _directory() -> Iterator[str]:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = tempfile.mkdtemp(prefix="ottla-sim-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _RunLog(logging.Handler):
    """The brokers' log lines: a traceback is a bug; all of them are shown in a trace."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._run.problem(f"{current_process()} logged {record.getMessage()!r}: {error!r} ({_where(error)})")
        if self._run.options.trace:
            self._run.show(f"{current_process()} {record.levelname} {record.name}: {record.getMessage()}")


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace is not None else "nowhere"


@contextmanager
def _log_of_the_run(run: Run) -> Iterator[None]:
    logger = logging.getLogger("ottla")
    handler = _RunLog(run)
    before = logger.propagate, logger.level, logger.handlers[:]
    logger.propagate, logger.handlers = False, [handler]
    logger.setLevel(logging.DEBUG if run.options.trace else logging.WARNING)
    add = run.history.add
    if run.options.trace:

        def shown(event: object) -> None:
            add(event)  # type: ignore[arg-type]
            run.show(repr(event))

        run.history.add = shown  # type: ignore[method-assign]
    try:
        yield
    finally:
        logger.propagate, logger.handlers = before[0], before[2]
        logger.setLevel(before[1])
