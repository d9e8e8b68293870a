"""Asking the controller for other ISRs: one request at a time, again until there is an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.controller.channels import Stamp
from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal, LastAsked
from ottla.replication.isr_changes import IsrChanges
from unit.replication.replication_kit import Node, state, topic, wait_until


class Controller:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.answers: list[IsrOutcome | Exception | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def __call__(self, proposals: Sequence[IsrProposal]) -> Mapping[TopicPartition, IsrOutcome]:
        self.under_way += 1
        assert self.under_way == 1, "one request at a time"
        self.asked.append([one.tp for one in proposals])
        await self.gate.wait()
        self.under_way -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return {one.tp: answer or IsrOutcome(Error.NONE, 1, one.leader_epoch, one.isr, one.version + 1) for one in proposals}


async def scene(root: Path, count: int) -> tuple[Node, Controller, IsrChanges]:
    node, controller = Node(root, 1), Controller()
    changes = IsrChanges(controller, pause=0.001, longest_pause=0.002)
    node.around.propose = changes.submit
    states = {number: state(1, 0, (1,), (1, 2), version=5) for number in range(count)}
    await node.replicas.leader_and_isr(Stamp(1, 1), [topic(states)], (1, 2), ())
    return node, controller, changes


def caught_up(node: Node, *numbers: int) -> None:
    for number in numbers:
        node.replicas.get("t", number).follower_asks(2, 0, 0, 0, -1, LastAsked(node.clock.monotonic(), 102))


async def until_in_sync(node: Node, count: int) -> None:
    await wait_until(lambda: all(node.replicas.get("t", number).state.isr == (1, 2) for number in range(count)))


def test_what_comes_together_goes_together(tmp_path: Path) -> None:
    async def run() -> None:
        node, controller, _ = await scene(tmp_path, 5)
        controller.gate.clear()
        caught_up(node, 0, 1)
        await asyncio.sleep(0.01)
        caught_up(node, 2, 3, 4)
        caught_up(node, 0)
        controller.gate.set()
        await until_in_sync(node, 5)
        assert [[tp.partition for tp in asked] for asked in controller.asked] == [[0, 1], [2, 3, 4]]
        assert node.replicas.get("t", 0).state.version == 6

    asyncio.run(run())


def test_again_until_there_is_an_answer(tmp_path: Path) -> None:
    async def run() -> None:
        node, controller, _ = await scene(tmp_path, 1)
        controller.answers = [
            KafkaError(Error.NOT_CONTROLLER),
            BrokerUnavailable("gone"),
            ValueError("a bug"),
            IsrOutcome(Error.UNKNOWN_SERVER_ERROR),
            IsrOutcome(Error.STALE_BROKER_EPOCH),
        ]
        caught_up(node, 0)
        await until_in_sync(node, 1)
        assert len(controller.asked) == 6

    asyncio.run(run())


def test_nothing_is_repeated_that_nobody_wants_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        node, controller, changes = await scene(tmp_path, 1)
        controller.answers = [KafkaError(Error.NOT_CONTROLLER)]
        controller.gate.clear()
        caught_up(node, 0)
        await asyncio.sleep(0.01)
        await node.role(state(2, 1, (1, 2), version=6))
        controller.gate.set()
        await asyncio.sleep(0.02)
        assert len(controller.asked) == 1
        await changes.stop()

    asyncio.run(run())


def test_refused_for_good(tmp_path: Path) -> None:
    async def run() -> None:
        node, controller, changes = await scene(tmp_path, 1)
        controller.answers = [IsrOutcome(Error.INELIGIBLE_REPLICA)]
        caught_up(node, 0)
        await asyncio.sleep(0.02)
        assert len(controller.asked) == 1
        caught_up(node, 0)
        await until_in_sync(node, 1)
        assert len(controller.asked) == 2
        await changes.stop()

    asyncio.run(run())
