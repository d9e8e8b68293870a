"""The operator of a simulated cluster: a few times in a run, replicas move, leaders go home, and topics come and go.

None of that may cost a record, whatever fails meanwhile. Like every client, the operator never gives up: what it began is asked
for until the controller has answered. While a machine that lost data could still do harm (`Faults.guarding`) it begins nothing:
whoever takes replicas away then takes data away. At the end nothing may be left of what it did (`unfinished`).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from ottla.model import BrokerUnavailable, Error, KafkaError, TopicPartition
from ottla.testing.sim.clients import PASSING, Admin, error_of
from ottla.testing.sim.cluster import Cluster
from ottla.wire.apis.reassignment import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.apis.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.wire.schema import Request, Response

EVERY = 4.0
"""Virtual seconds between two actions, on average."""
_FEWEST_REPLICAS = 2
_LOOK_EVERY = 0.1
_FINE = frozenset({Error.NONE, Error.ELECTION_NOT_NEEDED, Error.PREFERRED_LEADER_NOT_AVAILABLE})
_NOT_NOW = PASSING | {Error.INVALID_REPLICA_ASSIGNMENT, Error.NO_REASSIGNMENT_IN_PROGRESS}


class Operator(Admin):
    """Works on the partitions that clients use, and on topics of its own."""

    def __init__(self, cluster: Cluster, name: str, random: Random, guarding: Callable[[], bool]) -> None:
        super().__init__(cluster, name, random)
        self.counts: Counter[str] = Counter()
        self._guarding = guarding
        self._made: list[str] = []
        self._deleted: list[str] = []

    async def work(self, partitions: Sequence[TopicPartition], until: float) -> None:
        """Do something from time to time."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / EVERY))
            if self.now >= until:
                return
            while self._guarding() and self.now < until:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(_LOOK_EVERY)
            action = self.random.choice(("reassign", "reassign", "call off", "elect", "create", "delete"))
            self.counts[action] += 1
            self.cluster.note("operator", action)
            if action == "reassign":
                await self._reassign(self.random.choice(partitions), self._target())
            elif action == "call off":
                await self._reassign(self.random.choice(partitions), None)
            elif action == "elect":
                await self._insist(lambda: ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, _elections)
            elif action == "create" or not self._made:
                await self._create()
            else:
                await self._delete(self._made.pop())

    def _target(self) -> list[int]:
        brokers = sorted(self.cluster.machines)
        return self.random.sample(brokers, self.random.randint(min(_FEWEST_REPLICAS, len(brokers)), min(3, len(brokers))))

    async def _reassign(self, tp: TopicPartition, replicas: list[int] | None) -> None:
        """Where a broker of the target is away this is refused, and that is the end of it."""
        topic = ReassignableTopic(
            name=tp.topic, partitions=[ReassignablePartition(partition_index=tp.partition, replicas=replicas)]
        )
        await self._insist(
            lambda: AlterPartitionReassignmentsRequest(topics=[topic]), AlterPartitionReassignmentsResponse, _reassigned
        )

    async def _create(self) -> None:
        name = f"passing-{len(self._made) + len(self._deleted)}"
        await self.create_topic(name, self.random.randint(1, 2), min(len(self.cluster.machines), 2))
        self._made.append(name)

    async def _delete(self, name: str) -> None:
        self._deleted.append(name)
        await self._insist(
            lambda: DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=5000), DeleteTopicsResponse, _deleted
        )

    async def _insist(self, make: Callable[[], Request], kind: type[Response], errors: Callable[[Any], Iterator[int]]) -> None:
        """Ask the controller until it has answered, one way or the other."""
        while True:
            await self.refresh([])
            try:
                answer = await self.ask(self.controller if self.controller >= 0 else None, make(), kind)
            except BrokerUnavailable:
                await self.back_off()
                continue
            told = {error_of(code) for code in errors(answer)}
            if told & {Error.NOT_CONTROLLER, Error.REQUEST_TIMED_OUT}:
                await self.back_off()
                continue
            if strange := told - _FINE - _NOT_NOW:
                raise KafkaError(min(strange), f"{kind.__name__}: {answer}")
            return

    def unfinished(self) -> Iterator[str]:
        """What was begun and is not done: replicas on their way, and what is left of deleted topics."""
        tree = self.cluster.keeper.tree
        for name in tree.children("/brokers/topics"):
            node = tree.get(f"/brokers/topics/{name}", -1)
            told = json.loads(node.data) if node is not None and node.data else {}
            if told.get("adding_replicas") or told.get("removing_replicas"):
                yield f"{name} is still being reassigned: {told}"
            if name in self._deleted:
                yield f"{name} was deleted, and is there"
        for number, machine in self.cluster.machines.items():
            logs = machine.broker._logs if machine.broker is not None else None
            for tp in logs.logs if logs is not None else ():
                if tp.topic in self._deleted:
                    yield f"{tp} was deleted, and broker {number} has it"


def _elections(answer: ElectLeadersResponse) -> Iterator[int]:
    yield answer.error_code
    for topic in answer.replica_election_results:
        yield from (one.error_code for one in topic.partition_result)


def _reassigned(answer: AlterPartitionReassignmentsResponse) -> Iterator[int]:
    yield answer.error_code
    for topic in answer.responses:
        yield from (one.error_code for one in topic.partitions)


def _deleted(answer: DeleteTopicsResponse) -> Iterator[int]:
    return (one.error_code for one in answer.responses)
