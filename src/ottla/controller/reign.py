"""One reign of the controller: from an election won to the first sign that another one was.

Guards: every change is a transaction that carries a check of the controller's epoch, and brokers hear of it only after it is
durable; the check that fails ends the reign. A change too large for one transaction is cut where a new controller would go on.
After a change of which nobody knows whether it happened, the world is read again before the next one. Life: `take_over` reads
the world, elects where leaders are dead and tells everybody everything; then events come, one at a time (`events`), and each
is decided by the pure modules (`state`, `alteration`, `reassignment`, `deletion`), written, and told through the `outbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from ottla.controller import deletion, reassignment, state, telling
from ottla.controller.channels import Stop
from ottla.controller.outbox import Errors, Outbox
from ottla.controller.reassignment import Assignment
from ottla.controller.topic_rules import new_id
from ottla.controller.world import Living, read_brokers, read_world
from ottla.metadata import znodes
from ottla.metadata.image import BrokerImage
from ottla.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    NoNode,
    Operation,
    Set,
    Store,
    StoreError,
    StoreUnavailable,
    in_pieces,
)
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.metrics import ControllerCounters
from ottla.model import NO_LEADER, Error, KafkaError, TopicPartition

log = logging.getLogger("ottla.controller")

UncleanAllowed = Callable[[Mapping[str, str]], bool]


class Reign:
    """What this controller knows and does in one epoch."""

    def __init__(
        self,
        store: Store,
        epoch: int,
        epoch_version: int,
        outbox: Outbox,
        unclean_allowed: UncleanAllowed,
        random: Random,
        counters: ControllerCounters,
    ) -> None:
        self.store = store
        self.epoch = epoch
        self.outbox = outbox
        self.random = random
        self.state = state.ClusterState(epoch)
        self.announced = False
        """Whether the brokers have been told the world."""
        self.over = False
        self.unsure = True
        """Whether the store may hold something else than our own view."""
        self.doubted: Callable[[], None] = lambda: None
        """Told when that begins: the world is to be read again soon, also if nobody wants anything."""
        self._epoch_version = epoch_version
        self._unclean_allowed = unclean_allowed
        self._counters = counters
        self._dropping: dict[TopicPartition, set[int]] = {}
        """Replicas that a reassignment took away, and whose brokers have not said yet that their data is gone."""
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}

    # ---- beginning and end -----------------------------------------------------------------------------------------------

    async def take_over(self) -> None:
        """Read the world, give every partition a live leader, tell everybody everything, go on with what was begun."""
        self.unsure = True
        try:
            await self._take_over()
        except (StoreError, StoreUnavailable):
            self.doubt()
            raise

    async def _take_over(self) -> None:
        if (node := await self.store.get(znodes.CONTROLLER_EPOCH)) is None or node.version != self._epoch_version:
            raise self._lost()
        before = self.state
        living = await read_brokers(self.store)
        while not await self._take_notice(living):
            living = await read_brokers(self.store)
        self.state = now = await read_world(self.store, self.epoch, living)
        same = {
            one for one, broker in now.brokers.items() if one in before.brokers and before.brokers[one].epoch == broker.epoch
        }
        now.shutting_down = before.shutting_down & same
        now.offline = {broker: lost for broker, lost in before.offline.items() if broker in same}
        self._dropping.clear()
        await self._give_ids()
        self.outbox.members(now.brokers)
        writes = await self._settled(list(now.partitions()))
        await self.write(writes)
        self.announced = True
        telling.tell_everything(now, self.outbox, new=_new(writes))
        self.unsure = False
        await self._clear_marks()
        for parent in (znodes.ISR_CHANGES, znodes.LOG_DIR_EVENTS):
            await self._clear([f"{parent}/{name}" for name in await self.store.children(parent)])  # all of it was just read
        self._delete_replicas(now.deleting)
        await self.go_on([TopicPartition(t.name, p) for t in now.topics.values() for p in {*t.adding, *t.removing}])

    async def _give_ids(self) -> None:
        """Topics of a time before topic ids get one."""
        nameless = [topic for name, topic in self.state.topics.items() if not any(topic.topic_id)]
        if nameless:
            await self.write((), after=[replace(topic, topic_id=new_id(self.random)) for topic in nameless])

    async def _clear_marks(self) -> None:
        """A mark whose topic is gone: its deletion was all but finished."""
        marks = await self.store.children(znodes.DELETE_TOPICS)
        ghosts = [name for name in marks if name not in self.state.topics]
        if ghosts:
            await self.commit([Delete(f"{znodes.DELETE_TOPICS}/{name}") for name in ghosts])

    async def be_sure(self) -> None:
        """Decide only as the controller, and only on what the store really holds."""
        if self.over:
            raise KafkaError(Error.NOT_CONTROLLER)
        if self.unsure:
            await self.take_over()

    def end(self) -> None:
        """Decide and say nothing more."""
        self.over = True
        self.outbox.close()
        for waiters in self._awaited.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(KafkaError(Error.NOT_CONTROLLER))
        self._awaited.clear()

    def _lost(self) -> KafkaError:
        if not self.over:
            self.outbox.deposed()
        return KafkaError(Error.NOT_CONTROLLER, "Another controller has taken over.")

    # ---- writing ---------------------------------------------------------------------------------------------------------

    async def commit(self, operations: Sequence[Operation]) -> list[int]:
        """One transaction, good only while this controller's epoch is the current one."""
        if self.over:
            raise KafkaError(Error.NOT_CONTROLLER)
        try:
            return (await self.store.commit([Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *operations]))[1:]
        except (BadVersion, NoNode) as problem:
            if problem.path == znodes.CONTROLLER_EPOCH:
                raise self._lost() from None
            raise
        except StoreUnavailable:
            self.doubt()
            raise

    def doubt(self) -> None:
        """Our view may be wrong."""
        self.unsure = True
        self.doubted()

    async def write(
        self,
        writes: Sequence[state.WriteState],
        before: Sequence[Operation] = (),
        after: Sequence[TopicNode] = (),
    ) -> None:
        """Partition states, with operations before them and topics' nodes after them: durable first, then in our own view."""
        operations: list[Operation] = list(before)
        for write in writes:
            path = znodes.partition_state_path(*write.tp)
            data = write.node.encode()
            operations.append(Create(path, data) if write.version is None else Set(path, data, write.version))
        operations += [Set(topic.path, topic.encode(), self.state.topic_versions[topic.name]) for topic in after]
        versions: list[int] = []
        try:
            for piece in in_pieces(operations):
                versions += await self.commit(piece)
        except Exception as problem:
            if versions or isinstance(problem, BadVersion):
                self.doubt()
            raise
        states, topics = versions[len(before) : len(before) + len(writes)], versions[len(before) + len(writes) :]
        for write, version in zip(writes, states, strict=True):
            self._count(write)
            self.state.apply(write, version)
        for topic, version in zip(after, topics, strict=True):
            self.state.topics[topic.name] = topic
            self.state.topic_versions[topic.name] = version

    def _count(self, write: state.WriteState) -> None:
        """How often leaders change, and how often somebody leads who was not in sync."""
        before = self.state.states.get(write.tp)
        if before is not None and write.node.leader not in (before.leader, NO_LEADER):
            self._counters.leader_elections += 1
            self._counters.unclean_elections += write.node.leader not in before.isr

    async def _settled(self, partitions: Collection[TopicPartition]) -> list[state.WriteState]:
        """What must change for these partitions; an unclean election only where the topic's settings allow it."""
        unclean = set()
        for name in state.wanting_unclean(self.state, partitions):
            node = await self.store.get(f"{znodes.TOPIC_CONFIGS}/{name}")
            if self._unclean_allowed(znodes.decode_config(node.data) if node is not None else {}):
                unclean.add(name)
        return state.settled(self.state, partitions, unclean)

    async def settle(self, partitions: Collection[TopicPartition]) -> None:
        """Bring these partitions in order, and tell who is concerned."""
        writes = await self._settled(partitions)
        await self.write(writes)
        self.tell([write.tp for write in writes], new=_new(writes))
        await self.go_on([write.tp for write in writes])

    def tell(
        self,
        partitions: Iterable[TopicPartition],
        *,
        new: Collection[TopicPartition] = (),
        added: Collection[TopicPartition] = (),
        but: int | None = None,
    ) -> None:
        """Roles to the brokers (`but` one) that hold these partitions, metadata to all. `new` have no data anywhere, `added`
        none on the brokers that a reassignment adds."""
        telling.tell(self.state, self.outbox, partitions, new, added, but)

    def tell_metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """Metadata to all: leaders and followers know already."""
        telling.tell_metadata(self.state, self.outbox, partitions)

    # ---- who lives -------------------------------------------------------------------------------------------------------

    async def members_changed(self) -> None:
        """Brokers registered, left, or are back in a new life, which is a failure and then a return."""
        living = await read_brokers(self.store)
        now, before = living.brokers, dict(self.state.brokers)
        gone = {one for one, broker in before.items() if one not in now or now[one].epoch != broker.epoch}
        if gone:
            await self._brokers_failed(gone)
        came = {one: broker for one, broker in now.items() if one not in before or one in gone}
        moved = {one: broker for one, broker in now.items() if one not in came and before[one] != broker}
        if not await self._take_notice(living):
            await self.members_changed()
        elif came or moved:
            await self._brokers_came(came, moved)

    async def _take_notice(self, living: Living) -> bool:
        """Write down that these lives are known, before anything is decided on that ground; False if others are there now."""
        try:
            if living.notice:
                await self.commit(living.notice)
        except (BadVersion, NoNode):
            return False
        return True

    async def _brokers_failed(self, gone: Collection[int]) -> None:
        log.warning("Broker %s failed or left", ", ".join(map(str, sorted(gone))))
        affected = self.state.partitions_on(gone)
        self.state.lose(gone)
        self.outbox.members(self.state.brokers)
        writes = await self._settled(affected)
        await self.write(writes)
        self.tell([write.tp for write in writes])
        if not writes:
            self.outbox.metadata(())
        await self.go_on([write.tp for write in writes])
        await self._dropped({broker: list(self._dropping) for broker in gone})

    async def _brokers_came(self, came: Mapping[int, BrokerImage], moved: Mapping[int, BrokerImage]) -> None:
        if came:
            log.info("Broker %s joined", ", ".join(map(str, came)))
        self.state.brokers = dict(sorted({**self.state.brokers, **came, **moved}.items()))
        self.outbox.members(self.state.brokers)
        self.outbox.metadata((), self.state.brokers.keys() - came.keys())
        telling.tell_everything(self.state, self.outbox, came)
        for broker in came:
            self.outbox.stop(broker, deletion.stops(self.state, self.state.deleting, broker))
        await self.settle(self.state.leaderless())

    async def suspect(self, broker_id: int, broker_epoch: int) -> None:
        """Nobody listens at a broker's address: it goes now, not when its session ends."""
        path = f"{znodes.BROKER_IDS}/{broker_id}"
        node = await self.store.get(path)
        if node is None or node.created != broker_epoch or node.ours:
            return
        log.warning("Broker %d does not listen any more: its registration is removed", broker_id)
        with contextlib.suppress(NoNode, BadVersion):
            await self.commit([Delete(path, node.version)])
        await self.members_changed()

    # ---- what brokers tell -----------------------------------------------------------------------------------------------

    async def roles_refused(self, broker: BrokerImage, errors: Errors) -> None:
        """A broker could not take on some roles; what lies on a failed disk is led by others."""
        for error in sorted(set(errors.values())):
            refused = [tp for tp in errors if errors[tp] is error]
            log.error(
                "Broker %d could not take on its role in %d partitions, such as %s: %s",
                broker.id, len(refused), refused[0], error.name,
            )  # fmt: skip
        now = self.state.brokers.get(broker.id)
        lost = {tp for tp, error in errors.items() if error is Error.KAFKA_STORAGE_ERROR and self.state.knows(tp)}
        if now is not None and now.epoch == broker.epoch and lost:
            self.state.offline.setdefault(broker.id, set()).update(lost)
            await self.settle(lost)

    async def replicas_stopped(self, broker: BrokerImage, stops: Sequence[Stop], errors: Errors) -> None:
        """A broker gave replicas up: a deletion, or a reassignment, goes on."""
        for tp, error in errors.items():
            log.error(
                "Broker %d could not give up %s: %s; it is asked again when it is started again", broker.id, tp, error.name
            )
        done = [stop.tp for stop in stops if stop.delete and stop.tp not in errors]
        finished = deletion.deleted(self.state, broker.id, done)
        if finished:
            await self._finish_deletions(finished)
        await self._dropped({broker.id: done})

    async def isr_changed(self) -> None:
        """Leaders of an older kind wrote ISRs themselves and say so."""
        notices, contents = await self._notices(znodes.ISR_CHANGES)
        touched = {TopicPartition(*one) for data in contents for one in znodes.decode_isr_change(data)}
        changed: list[TopicPartition] = []
        for tp in sorted(touched):
            node = await self.store.get(znodes.partition_state_path(*tp)) if self.state.knows(tp) else None
            if node is not None and node.version != self.state.state_versions.get(tp):
                self.state.apply(state.WriteState(tp, PartitionStateNode.decode(node.data), None), node.version)
                changed.append(tp)
        self.tell_metadata(changed)
        await self._clear(notices)
        await self.go_on(changed)

    async def directories_failed(self) -> None:
        """Brokers say that a disk of theirs failed: told their roles again, they answer which they cannot take on."""
        notices, contents = await self._notices(znodes.LOG_DIR_EVENTS)
        for broker in {znodes.decode_log_dir_event(data) for data in contents}:
            telling.tell_roles(self.state, self.outbox, broker)
        await self._clear(notices)

    async def _notices(self, parent: str) -> tuple[list[str], list[bytes]]:
        paths = [f"{parent}/{name}" for name in await self.store.children(parent)]
        nodes = [await self.store.get(path) for path in paths]
        return paths, [node.data for node in nodes if node is not None]

    async def _clear(self, paths: Sequence[str]) -> None:
        if paths:
            with contextlib.suppress(NoNode):  # the same notice, cleared by an earlier controller
                await self.commit([Delete(path) for path in paths])

    # ---- what goes on over several events --------------------------------------------------------------------------------

    async def go_on(self, partitions: Sequence[TopicPartition]) -> None:
        """Reassignments among these partitions make their next step, if what they waited for is there."""
        writes: list[state.WriteState] = []
        edits: dict[str, dict[int, Assignment]] = {}
        moving = [tp for tp in partitions if self._moves(tp)]
        for tp in moving:
            step = reassignment.switched(self.assignment(tp), self.state.states[tp], self.state.may_lead(tp), self.epoch)
            if step is not None:
                edits.setdefault(tp.topic, {})[tp.partition] = step[0]
                writes.append(state.WriteState(tp, step[1], self.state.state_versions[tp]))
        if writes:
            await self.write(writes, after=self.edited(edits))
            log.info("Reassigned %d partitions, such as %s", len(writes), writes[0].tp)
            self.tell([write.tp for write in writes])
        await self.drop(moving)

    def _moves(self, tp: TopicPartition) -> bool:
        topic = self.state.topics[tp.topic]
        moves = tp.partition in topic.adding or tp.partition in topic.removing
        return moves and tp in self.state.states and tp.topic not in self.state.deleting

    def assignment(self, tp: TopicPartition) -> Assignment:
        return reassignment.assignment_of(self.state.topics[tp.topic], tp.partition)

    def edited(self, edits: Mapping[str, Mapping[int, Assignment]]) -> list[TopicNode]:
        """Topics' nodes with other assignments."""
        return [reassignment.with_assignments(self.state.topics[name], changed) for name, changed in edits.items()]

    async def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Replicas that left these partitions delete their data; who is away is not waited for."""
        stops: dict[int, list[Stop]] = {}
        for tp in partitions:
            left = self.assignment(tp).left
            if left and self._dropping.get(tp) != set(left):
                self._dropping[tp] = set(left)
                for broker in left:
                    stops.setdefault(broker, []).append(Stop(tp, self.state.states[tp].leader_epoch, delete=True))
        for broker, theirs in stops.items():
            self.outbox.stop(broker, theirs)
        away = stops.keys() - self.state.brokers.keys()
        await self._dropped({broker: [stop.tp for stop in stops[broker]] for broker in away})

    async def _dropped(self, done: Mapping[int, Sequence[TopicPartition]]) -> None:
        """Brokers have no data any more of partitions that they left: the last of them ends the reassignment."""
        edits: dict[str, dict[int, Assignment]] = {}
        for broker, partitions in done.items():
            for tp in partitions:
                waiting = self._dropping.get(tp)
                if waiting is None:
                    continue
                waiting.discard(broker)
                if not waiting:
                    del self._dropping[tp]
                    edits.setdefault(tp.topic, {})[tp.partition] = reassignment.forgotten(self.assignment(tp))
        if edits:
            await self.write((), after=self.edited(edits))
            self.tell_metadata([TopicPartition(name, number) for name, changed in edits.items() for number in changed])

    def begin_deletion(self, name: str) -> asyncio.Future[None]:
        """A topic that was marked goes: clients first, then the data, at last the name. Done when it is forgotten."""
        deletion.mark(self.state, name)
        for partition in self.state.topics[name].partitions:
            self._dropping.pop(TopicPartition(name, partition), None)
        self.outbox.metadata([self.state.image_of_deleted(name)])
        self._delete_replicas([name])
        return self.deletion_of(name)

    def deletion_of(self, name: str) -> asyncio.Future[None]:
        """Done when a topic that is being deleted is forgotten."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting any more
        self._awaited.setdefault(name, []).append(waiter)
        return waiter

    def _delete_replicas(self, names: Iterable[str]) -> None:
        for broker in self.state.brokers:
            self.outbox.stop(broker, deletion.stops(self.state, names, broker))

    async def _finish_deletions(self, names: Sequence[str]) -> None:
        settings = frozenset(await self.store.children(znodes.TOPIC_CONFIGS))
        for name in names:
            operations: list[Operation] = [Delete(f"{znodes.DELETE_TOPICS}/{name}"), Delete(self.state.topics[name].path)]
            if name in settings:
                operations.append(Delete(f"{znodes.TOPIC_CONFIGS}/{name}"))
            waiters = self._awaited.pop(name, [])
            try:
                await self.commit(operations)
            except (StoreError, KafkaError) as problem:
                self.doubt()
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(problem)
                raise
            self.state.forget(name)
            log.info("Deleted topic %s", name)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _new(writes: Iterable[state.WriteState]) -> set[TopicPartition]:
    """Those that had no state before: there is no data of them anywhere."""
    return {write.tp for write in writes if write.version is None}
