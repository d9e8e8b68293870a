"""Whatever happens to a transaction, all its partitions see one end of it, and the one that its producer was told.

Two producers fight for one transactional id while appends wait or fail, markers are refused, time passes, and the coordinator
is killed and started again. A transaction is known by the time at which it began, which the log keeps.
"""

import asyncio
import contextlib

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from ottla.coordinator import transaction_format, transaction_state
from ottla.coordinator.transaction_state import PREPARED, Status
from ottla.model import Error, KafkaError, TopicPartition
from unit.coordinator.bank_kit import Bank, done

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
TIMEOUT_MS = 50


class Ledger(Bank):
    """Notes which transaction each marker ends: the one whose end is the last word of the log."""

    def __init__(self):
        super().__init__()
        self.ends = {}
        """Transaction -> partition -> whether committed, of every marker."""

    def last_word(self):
        latest = None
        for key, value in self.journal.rows():
            latest = transaction_format.decode(key, value).value
        return latest

    def _send(self, marker, partitions):
        before = len(self.markers)
        results = super()._send(marker, partitions)
        said = self.last_word()
        for partition, *_, committed in self.markers[before:]:
            self.ends.setdefault(said.started_ms, {}).setdefault(partition, set()).add(committed)
        return results


class Transactions(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.loop = asyncio.new_event_loop()
        self.bank = self.run(self._bank())
        self.producers = [None, None]
        self.open = [None, None]
        """The transaction that a producer was told has begun."""
        self.told = {}
        """Transaction -> the ends that a producer was told."""
        self.spans = {}
        """Transaction -> the partitions that a producer was told are in it."""

    async def _bank(self):
        bank = Ledger()
        await bank.coordinator.partition_of("x")
        return bank

    def run(self, work):
        return self.loop.run_until_complete(work)

    def start(self, work):
        """Begin an operation; it may have to wait for the log."""
        self.bank.clock.advance_ms(1)  # each transaction begins at a time of its own

        async def begin():
            self.latest = asyncio.ensure_future(self._shielded(work))
            await self.bank.settle()

        self.run(begin())

    @staticmethod
    async def _shielded(work):
        with contextlib.suppress(KafkaError):
            await work

    # What producers do

    @rule(who=st.sampled_from([0, 1]), knows=st.booleans())
    def init(self, who, knows):
        async def work():
            expected = self.producers[who] if knows else None
            self.producers[who] = await self.bank.coordinator.init_producer("x", TIMEOUT_MS, expected)
            self.open[who] = None

        self.start(work())

    @precondition(lambda self: any(self.producers))
    @rule(who=st.sampled_from([0, 1]), partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add(self, who, partitions):
        async def work():
            await done(self.bank.coordinator.add_partitions("x", self.producers[who], partitions))
            began = self.bank.last_word().started_ms
            self.open[who] = began
            self.spans.setdefault(began, set()).update(partitions)

        if self.producers[who]:
            self.start(work())

    @precondition(lambda self: any(self.producers))
    @rule(who=st.sampled_from([0, 1]), commit=st.booleans())
    def end(self, who, commit):
        async def work():
            transaction = self.open[who]
            await done(self.bank.coordinator.end("x", self.producers[who], commit=commit))
            if transaction is not None:
                self.told.setdefault(transaction, set()).add(commit)

        if self.producers[who]:
            self.start(work())

    @precondition(lambda self: any(self.producers))
    @rule(who=st.sampled_from([0, 1]), partition=st.sampled_from(PARTITIONS))
    def write(self, who, partition):
        """A record may enter a partition only while the log says that the transaction is open and spans it."""
        if self.producers[who]:
            try:
                self.bank.coordinator.verify("x", self.producers[who], partition)
            except KafkaError:
                return
            said = self.bank.last_word()
            assert said.status is Status.ONGOING
            assert partition in said.partitions
            assert said.identity == self.producers[who]

    # What the world does

    @rule()
    def hold_appends(self):
        self.bank.journal.gate.clear()

    @rule()
    def let_appends_through(self):
        self.bank.journal.gate.set()
        self.run(self.bank.settle())

    @rule()
    def refuse_an_append(self):
        self.bank.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)

    @rule(partitions=st.sampled_from([PARTITIONS, PARTITIONS[:1], PARTITIONS[1:]]), times=st.integers(1, 3))
    def refuse_markers(self, partitions, times):
        for partition in partitions:
            self.bank.refuse[partition] = [Error.NOT_LEADER_OR_FOLLOWER] * times

    @rule()
    def pauses_are_over(self):
        self.run(self.bank.go_on())

    @rule(milliseconds=st.sampled_from([1, TIMEOUT_MS + 1]))
    def time_passes(self, milliseconds):
        self.bank.clock.advance_ms(milliseconds)
        self.start(self.bank.coordinator.abort_timed_out())

    @rule()
    def kill(self):
        async def work():
            everything = asyncio.all_tasks() - {asyncio.current_task()}
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            self.bank.journal.refuse = None
            await self.bank.restart()
            await self.bank.settle()

        self.run(work())

    # What must hold

    @invariant()
    def one_end_of_each_transaction(self):
        if not hasattr(self, "bank"):
            return
        for began in self.bank.ends.keys() | self.told.keys():
            ends = set().union(*self.bank.ends.get(began, {}).values(), self.told.get(began, ()))
            assert len(ends) == 1, f"both ends: the producer was told {self.told.get(began)}, {self.bank.ends.get(began)}"

    def teardown(self):
        if not hasattr(self, "bank"):
            return
        self.bank.journal.gate.set()
        self.bank.refuse.clear()
        self.kill()
        for _ in range(5):
            self.run(self.bank.go_on())
        self.one_end_of_each_transaction()
        for began, ends in self.told.items():
            for partition in self.spans[began]:
                assert self.bank.ends.get(began, {}).get(partition) == ends, f"{partition} never heard of {began}'s end"
        said = self.bank.last_word()
        assert said is None or said.status not in PREPARED, "a transaction was left half ended"
        self.kill()
        self.loop.close()


THOROUGH = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_all_partitions_see_the_same_end():
    run_state_machine_as_test(Transactions, settings=THOROUGH)


def test_a_coordinator_that_forgets_that_it_decided_is_caught(monkeypatch):
    """The planted bug: a transaction whose end is prepared may be ended the other way."""
    end = transaction_state.end

    def forgetful(current, speaker, *, commit, now_ms):
        if current.status in PREPARED:
            current = current._replace(status=Status.ONGOING)
        return end(current, speaker, commit=commit, now_ms=now_ms)

    monkeypatch.setattr(transaction_state, "end", forgetful)
    quick = settings(THOROUGH, max_examples=5000, stateful_step_count=60, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match="both ends"):
        run_state_machine_as_test(Transactions, settings=quick)
