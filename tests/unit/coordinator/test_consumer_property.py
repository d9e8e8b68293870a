"""Random lives of a group that is now of the one protocol, now of the other: no partition ever has two owners.

What a client may read is what the coordinator told it, until it has given it up. Clients are slow: they take a while to give
up, lose answers, die without a word, start again. Brokers are, too: appends are refused, the coordinator restarts. Clients of
both protocols come and go, so that the group is upgraded and downgraded on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from ottla.coordinator import consumer_draft
from ottla.coordinator.consumer_membership import ConsumerHeartbeat, HeartbeatResult
from ottla.coordinator.consumer_reconciliation import reconcile
from ottla.coordinator.consumer_records import Current
from ottla.coordinator.membership import Join, Leaver, Sync
from ottla.coordinator.rebalance import JoinResult, SyncResult
from ottla.model import Error, KafkaError
from ottla.wire.apis.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartitions
from ottla.wire.schema import decode_versioned, encode_versioned
from unit.coordinator.conftest import World

R = TypeVar("R")
GROUP = "g"
Holding = set[tuple[str, int]]


class ConsumerClient:
    """A client of the consumer protocol. What it is told to give up it gives up later, when `catch_up` is called."""

    def __init__(self, world: World, number: int, instance: str | None) -> None:
        self.world = world
        self.id = f"consumer-{number}"
        self.instance = instance
        self.epoch = 0
        self.holds: Holding = set()
        self.told: Holding = set()

    async def act(self, *, full: bool, loses_answer: bool) -> None:
        owned: dict[bytes, set[int]] = {}
        for topic, number in self.holds:
            metadata = self.world.topics.find(topic)
            if metadata is not None:
                owned.setdefault(metadata.topic_id, set()).add(number)
        request = ConsumerHeartbeat(
            GROUP,
            self.id,
            self.epoch,
            "c",
            "/h",
            self.instance,
            rebalance_timeout_ms=20_000 if self.epoch == 0 or full else -1,
            topics=frozenset({"t", "u"}) if self.epoch == 0 or full else None,
            owned={topic_id: frozenset(numbers) for topic_id, numbers in owned.items()} if self.epoch == 0 or full else None,
        )
        try:
            result = await self.world.groups.consumer_heartbeat(request)
        except KafkaError as refusal:
            self._refused(refusal.error)
            return
        if not loses_answer:
            self._answered(result)

    def _refused(self, error: Error) -> None:
        begin_anew = {Error.FENCED_MEMBER_EPOCH, Error.UNKNOWN_MEMBER_ID, Error.GROUP_ID_NOT_FOUND, Error.FENCED_INSTANCE_ID}
        allowed = {Error.COORDINATOR_NOT_AVAILABLE, Error.UNRELEASED_INSTANCE_ID}
        assert error in begin_anew | allowed, error
        if error in begin_anew:
            self.epoch, self.holds, self.told = 0, set(), set()

    def _answered(self, result: HeartbeatResult) -> None:
        self.epoch = result.epoch
        if result.assignment is not None:
            self.told = {
                (self.world.topics.name_of(topic_id) or "", number)
                for topic_id, numbers in result.assignment.items()
                for number in numbers
            }
            self.holds |= self.told

    def catch_up(self) -> None:
        self.holds = set(self.told)

    async def leave(self) -> None:
        epoch = -1 if self.instance is None else -2
        self.epoch, self.holds, self.told = 0, set(), set()
        try:
            await self.world.groups.consumer_heartbeat(ConsumerHeartbeat(GROUP, self.id, epoch, "c", "/h", self.instance))
        except KafkaError as refusal:
            self._refused(refusal.error)


class ClassicClient:
    """A client of the classic protocol: eager, or cooperative. Its requests may wait for others, so each is a task."""

    def __init__(self, world: World, *, eager: bool) -> None:
        self.world = world
        self.eager = eager
        self.id = ""
        self.generation = -1
        self.holds: Holding = set()
        self.must_join = True
        self.joining: asyncio.Task[JoinResult] | None = None
        self.syncing: asyncio.Task[SyncResult] | None = None

    def metadata(self) -> bytes:
        subscription = ConsumerProtocolSubscription(
            topics=["t", "u"], owned_partitions=_by_topic(self.holds), generation_id=self.generation
        )
        return encode_versioned(subscription, 2)

    async def act(self, *, full: bool, loses_answer: bool) -> None:
        """Whatever is next: take an answer, ask for the next thing, or send a heartbeat."""
        if self.joining is not None or self.syncing is not None:
            await self._take_answers(loses_answer)
        elif self.must_join:
            if self.eager:
                self.holds = set()
            self.joining = asyncio.ensure_future(
                self.world.groups.join(
                    Join(GROUP, self.id, None, "c", "/h", 10_000, 20_000, "consumer", (("p", self.metadata()),), self.id == "")
                )
            )
        else:
            try:
                await self.world.groups.heartbeat(GROUP, self.id, None, self.generation)
            except KafkaError as refusal:
                self._refused(refusal.error)

    async def _take_answers(self, loses_answer: bool) -> None:
        if self.joining is not None and self.joining.done():
            joined = self.joining.result()
            self.joining = None
            if joined.error is Error.MEMBER_ID_REQUIRED:
                self.id = joined.member_id
            elif joined.error is not Error.NONE:
                self._refused(joined.error)
            elif not loses_answer:
                self.id, self.generation, self.must_join = joined.member_id, joined.generation, False
                sync = Sync(GROUP, joined.generation, self.id, None, "consumer", "p", self._assignments(joined))
                self.syncing = asyncio.ensure_future(self.world.groups.sync(sync))
        elif self.syncing is not None and self.syncing.done():
            synced = self.syncing.result()
            self.syncing = None
            if synced.error is not Error.NONE:
                self._refused(synced.error)
            elif not loses_answer:
                self._assigned(synced.assignment)
            else:
                self.must_join = True

    def _assignments(self, joined: JoinResult) -> dict[str, bytes]:
        """What a cooperative leader decides: who has something keeps it, and what nobody has goes around."""
        if joined.leader != joined.member_id:
            return {}
        parts: dict[str, Holding] = {}
        for member in joined.members:
            subscription = decode_versioned(ConsumerProtocolSubscription, member.metadata)
            parts[member.member_id] = {(t.topic, number) for t in subscription.owned_partitions for number in t.partitions}
        taken = set().union(*parts.values())
        for topic in ("t", "u"):
            metadata = self.world.topics.find(topic)
            for number in range(metadata.partitions if metadata else 0):
                if (topic, number) not in taken:
                    min(parts.values(), key=len).add((topic, number))
        return {
            member_id: encode_versioned(ConsumerProtocolAssignment(assigned_partitions=_by_topic(held)), 2)
            for member_id, held in parts.items()
        }

    def _assigned(self, assignment: bytes) -> None:
        read = decode_versioned(ConsumerProtocolAssignment, assignment)
        told = {(topic.topic, number) for topic in read.assigned_partitions for number in topic.partitions}
        if self.holds - told:
            self.must_join = True  # a cooperative member that gave something up joins again at once
        self.holds = told

    def _refused(self, error: Error) -> None:
        assert error in {
            Error.UNKNOWN_MEMBER_ID,
            Error.ILLEGAL_GENERATION,
            Error.REBALANCE_IN_PROGRESS,
            Error.COORDINATOR_NOT_AVAILABLE,
        }, error
        self.must_join = True
        if error is Error.UNKNOWN_MEMBER_ID:
            self.id = ""
        if error in (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION):
            self.generation, self.holds = -1, set()

    def catch_up(self) -> None:
        """It does at once what it is told."""

    async def leave(self) -> None:
        member_id, self.id, self.generation, self.holds, self.must_join = self.id, "", -1, set(), True
        self.joining = self.syncing = None
        if member_id:
            with contextlib.suppress(KafkaError):  # the log may refuse; the session timeout does the rest
                await self.world.groups.leave(GROUP, [Leaver(member_id)])


def _by_topic(holds: Holding) -> list[TopicPartitions]:
    topics = sorted({topic for topic, _ in holds})
    return [TopicPartitions(topic=topic, partitions=sorted(n for t, n in holds if t == topic)) for topic in topics]


Client = ConsumerClient | ClassicClient


class Life(RuleBasedStateMachine):
    """One group, five clients at most."""

    clients: list[Client]

    @initialize(
        eager=st.booleans(),
        policy=st.sampled_from(["bidirectional", "bidirectional", "bidirectional", "disabled"]),
        founders=st.sampled_from([[], [(True, False)] * 2, [(True, False)] * 3, [(False, False)] * 2]),
    )
    def begin(self, eager: bool, policy: str, founders: list[tuple[bool, bool]]) -> None:
        self.loop = asyncio.new_event_loop()
        self.world = self.run(self._make(policy))
        self.eager = eager
        self.clients = []
        self.count = 0
        self._start(founders)
        self._everyone_acts(8)

    @staticmethod
    async def _make(policy: str) -> World:
        world = World(consumer_migration_policy=policy, consumer_session_timeout_ms=10_000)
        await world.groups.partition_of(GROUP)
        return world

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        async def settled() -> R:
            result = await work
            if hasattr(self, "world"):
                await self.world.settle()
            return result

        return self.loop.run_until_complete(settled())

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.run_until_complete(self._send_everyone_away())
        self.loop.close()

    @staticmethod
    async def _send_everyone_away() -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(kinds=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3))
    def start(self, kinds: list[tuple[bool, bool]]) -> None:
        self._start(kinds)

    def _start(self, kinds: list[tuple[bool, bool]]) -> None:
        for classic, static in kinds:
            self.count += 1
            client: Client
            if classic:
                client = ClassicClient(self.world, eager=self.eager)
            else:
                client = ConsumerClient(self.world, self.count, f"i{self.count % 2}" if static else None)
            self.clients.append(client)
            self.run(client.act(full=True, loses_answer=False))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), full=st.booleans(), loses_answer=st.sampled_from([False, False, False, True]))
    def act(self, data: st.DataObject, full: bool, loses_answer: bool) -> None:
        self.run(data.draw(st.sampled_from(self.clients)).act(full=full, loses_answer=loses_answer))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), full=st.booleans(), catches_up=st.booleans())
    def some_act(self, data: st.DataObject, full: bool, catches_up: bool) -> None:
        for client in data.draw(st.lists(st.sampled_from(self.clients), max_size=6)):
            if catches_up:
                client.catch_up()
            self.run(client.act(full=full, loses_answer=False))

    @rule(rounds=st.integers(1, 6))
    def everyone_acts(self, rounds: int) -> None:
        self._everyone_acts(rounds)

    def _everyone_acts(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.clients:
                client.catch_up()
                self.run(client.act(full=True, loses_answer=False))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data: st.DataObject, for_good: bool) -> None:
        """A client stops, and perhaps starts again; a static one keeps its instance id."""
        client = data.draw(st.sampled_from(self.clients))
        self.run(client.leave())
        if for_good:
            self.clients.remove(client)
            return
        if isinstance(client, ConsumerClient):
            self.count += 1
            client.id = f"consumer-{self.count}"
        self.run(client.act(full=True, loses_answer=False))

    @rule(kind=st.sampled_from([ConsumerClient, ConsumerClient, ClassicClient]))
    def one_protocol_leaves(self, kind: type[Client]) -> None:
        for client in [client for client in self.clients if isinstance(client, kind)]:
            self.clients.remove(client)
            self.run(client.leave())

    @rule(what=st.sampled_from(["wait", "wait", "wait longer", "wait too long", "topic", "refusal", "restart"]))
    def something_happens(self, what: str) -> None:
        if what == "topic":
            topic = self.world.topics.find("u")
            self.world.topics.put("u", 2 if topic is None else min(topic.partitions + 1, 5))
        elif what == "refusal":
            self.world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
        elif what == "restart":
            self._restart()
        else:
            self.run(self.world.advance({"wait": 1_000, "wait longer": 5_000, "wait too long": 12_000}[what]))

    def _restart(self) -> None:
        for client in self.clients:
            if isinstance(client, ClassicClient) and (client.joining is not None or client.syncing is not None):
                client.joining = client.syncing = None  # its connection broke
                client.must_join = True
        self.run(self.world.restart())

    @invariant()
    def nothing_has_two_owners(self) -> None:
        if not hasattr(self, "world"):
            return
        shard = self.world.groups._runtime.state(0)
        assert not (GROUP in shard.groups and GROUP in shard.consumer_groups)
        group = shard.consumer_groups.get(GROUP) or shard.groups.get(GROUP)
        members = set(group.members) if group is not None else set()
        owners: dict[tuple[str, int], Client] = {}
        for client in self.clients:
            if client.id not in members:
                continue  # it was fenced, and will hear of it
            for partition in client.holds:
                assert owners.setdefault(partition, client) is client, f"{partition} has two owners"


THOROUGH = settings(
    max_examples=5_000 if os.environ.get("OTTLA_SOAK") else 150,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_partition_ever_has_two_owners() -> None:
    run_state_machine_as_test(Life, settings=THOROUGH)


def forget_owners(*step: Any) -> Current:
    """What a member shall have it gets, whoever has it now."""
    current, epoch, target, owned, _owner_of, member_id = step
    return reconcile(current, epoch, target, owned, lambda _: None, member_id)


def take_silence_for_yes(*step: Any) -> Current:
    """Who does not say what it holds is taken to hold nothing."""
    current, epoch, target, owned, owner_of, member_id = step
    return reconcile(current, epoch, target, owned or {}, owner_of, member_id)


@pytest.mark.parametrize("bug", [forget_owners, take_silence_for_yes])
def test_a_coordinator_with_a_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: Callable[..., Current]) -> None:
    monkeypatch.setattr(consumer_draft, "reconcile", bug)
    quick = settings(THOROUGH, max_examples=5_000, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match="has two owners"):
        run_state_machine_as_test(Life, settings=quick)
