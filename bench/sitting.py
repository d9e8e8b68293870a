"""The brokers of one sitting: both up and warmed up, taking turns in every scenario, so that the machine's moods meet both.

While one is measured the other idles; what that costs is measured first, and in the report. Guards: a scenario that fails on
one broker is noted and goes on with the other; a broker that died is started again, and warmed up again, for what comes next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench import client, compaction, coordinators, spark
from bench.brokers import KAFKA_LARGE_HEAP, BrokerError
from bench.figures import Samples, Subject
from bench.machine import cpu_seconds
from bench.scenarios import Bench, Maker, ScenarioError, Sizes

_IDLE_S = 3.0
_WARM_THEMSELVES = {"transactions", "groups", "compaction", "client", "spark"}


def _nothing(_bench: Bench) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Scenario:
    """What both brokers go through, and how often."""

    once: Callable[[Bench], None]
    rounds: Callable[[Sizes], int] = lambda _sizes: 1
    before: Callable[[Bench], None] = _nothing
    after: Callable[[Bench], None] = _nothing


SCENARIOS: Mapping[str, Scenario] = {
    "load": Scenario(Bench.measured_round, lambda sizes: sizes.rounds, after=Bench.memory),
    "connections": Scenario(Bench.connections),
    "cold-reader": Scenario(Bench.cold_reader),
    "transactions": Scenario(
        coordinators.transactions, lambda sizes: sizes.coordinator_rounds, before=coordinators.warm_up_transactions
    ),
    "groups": Scenario(coordinators.groups, lambda sizes: sizes.coordinator_rounds, before=coordinators.warm_up_groups),
    "partitions": Scenario(Bench.partitions),
    "compaction": Scenario(
        compaction.beside_a_producer,
        lambda sizes: sizes.compaction_rounds,
        before=compaction.warm_up,
        after=compaction.large_logs,
    ),
    "client": Scenario(client.client, lambda sizes: sizes.client_rounds),
    "spark": Scenario(spark.spark),
}


@dataclass(frozen=True, slots=True)
class Seats:
    """Which scenarios share their brokers, and what is special about those."""

    names: tuple[str, ...]
    heap: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


# A thousand partitions need more heap than anything else, and the cleaner has settings of its own: they get brokers of their
# own, for the sake of other memory figures.
SITTINGS = (
    Seats(("load", "connections", "cold-reader", "transactions", "groups")),
    Seats(("partitions",), heap=KAFKA_LARGE_HEAP),
    Seats(("compaction",), settings=compaction.BROKER_SETTINGS),
    Seats(("client",)),
    Seats(("spark",)),
)


class Sitting:
    """Some scenarios on brokers that are up at the same time."""

    def __init__(
        self, makers: Mapping[Subject, Maker], seats: Seats, sizes: Sizes, samples: Samples, say: Callable[[str], None]
    ) -> None:
        self._makers = makers
        self._seats = seats
        self._sizes = sizes
        self._samples = samples
        self._say = say
        self._benches: dict[Subject, Bench] = {}

    def run(self, names: list[str]) -> None:
        """Start and warm up all brokers, and go through the scenarios."""
        with ExitStack() as stack:
            records = bool(set(names) - _WARM_THEMSELVES)
            for subject in self._makers:
                self._seat(stack, subject, cold="load" in names, warm=records)
            if "load" in names:
                self._idle()
            for name in names:
                failed = self._scenario(name)
                for subject in failed:
                    if not self._benches[subject].broker.answers():
                        self._note(f"{subject.value} did not answer any more after {name}: started again")
                        self._seat(stack, subject, cold=False, warm=records)

    def _seat(self, stack: ExitStack, subject: Subject, *, cold: bool, warm: bool) -> None:
        place = self._makers[subject].place(self._seats.settings, self._seats.heap)
        try:
            broker = stack.enter_context(place.started())
        except BrokerError as problem:
            self._benches.pop(subject, None)
            self._note(f"{subject.value} did not start: {problem}")
            return
        bench = self._benches[subject] = Bench(broker, subject, self._sizes, self._samples, self._say)
        try:
            if cold and subject is Subject.APACHE:
                bench.cold_round()
            if warm:
                bench.warm_up()
        except ScenarioError as problem:
            self._note(f"{subject.value} was not warmed up to the end: {problem}")

    def _idle(self) -> None:
        """What the brokers cost that stand by."""
        time.sleep(1)
        before = {subject: cpu_seconds(bench.broker.pid) for subject, bench in self._benches.items()}
        time.sleep(_IDLE_S)
        for subject, bench in self._benches.items():
            bench.add("idle", (cpu_seconds(bench.broker.pid) - before[subject]) / _IDLE_S * 1000)

    def _scenario(self, name: str) -> list[Subject]:
        """All rounds of one scenario, in turns; the brokers that it failed on."""
        scenario = SCENARIOS[name]
        failed: list[Subject] = []

        def each(step: Callable[[Bench], None]) -> None:
            for subject, bench in self._benches.items():
                if subject in failed:
                    continue
                try:
                    step(bench)
                except ScenarioError as problem:  # the other scenarios still have something to say
                    self._note(f"{subject.value}, {name}: not measured to its end: {problem}")
                    failed.append(subject)

        self._say(name)
        each(scenario.before)
        for _ in range(scenario.rounds(self._sizes)):
            each(scenario.once)
        each(scenario.after)
        return failed

    def _note(self, words: str) -> None:
        self._samples.note(words)
        self._say(f"  {words}")


def sit(
    makers: Mapping[Subject, Maker], wanted: tuple[str, ...], sizes: Sizes, samples: Samples, say: Callable[[str], None]
) -> None:
    """Every sitting that has a wanted scenario."""
    for seats in SITTINGS:
        chosen = [name for name in seats.names if name in wanted]
        if chosen:
            Sitting(makers, seats, sizes, samples, say).run(chosen)
