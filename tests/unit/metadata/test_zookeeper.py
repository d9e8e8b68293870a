"""The ZooKeeper store beyond what every store promises: others who write, lost connections, sessions that end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import _CONNECTION_DROP, _SESSION_EXPIRED
from kazoo.protocol.states import WatchedEvent

from ottla.clock import ManualClock, SystemClock
from ottla.metadata import membership
from ottla.metadata.configs import Configs
from ottla.metadata.store import Create, Delete, Node, NodeExists, Operation, Set, StoreUnavailable, UnusableStore
from ottla.metadata.zookeeper import ZooKeeperStore
from ottla.metadata.zookeeper_session import Interrupted
from support.server import free_port

if TYPE_CHECKING:
    from .conftest import ZooKeeperStores

pytestmark = pytest.mark.java


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other threads
            await asyncio.sleep(0.005)


def provoke(store: ZooKeeperStore, what: object) -> None:
    """Let kazoo meet a dropped connection, or the end of its session, at its next step."""
    client: KazooClient = store._session._client
    client._call(what, client.handler.async_result())


def test_what_others_write_while_a_watch_begins_does_not_make_it_deaf(
    zookeeper_stores: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        other = await zookeeper_stores.open()
        told: list[str] = []
        fired = asyncio.Event()
        loop = asyncio.get_running_loop()
        watch_children = store.watch_children

        async def and_then_another_comes(path: str, tell: Callable[[WatchedEvent], None]) -> list[str] | None:
            def heard(event: WatchedEvent) -> None:
                tell(event)
                loop.call_soon_threadsafe(fired.set)

            names = await watch_children(path, heard)
            if path == "/brokers/ids" and not fired.is_set():
                await other.commit([Create("/brokers/ids/2")])
                await fired.wait()
                for _ in range(10):
                    await asyncio.sleep(0)  # whoever follows events has had its turn
            return names

        await other.commit([Create("/controller"), Create("/brokers/ids/1")])
        await store.watch("/controller", told.append)  # from here on events are followed
        monkeypatch.setattr(store, "watch_children", and_then_another_comes)
        await store.watch("/brokers/ids", told.append)
        await other.commit([Create("/brokers/ids/3")])
        await until(lambda: "/brokers/ids/3" in told)
        await other.close()

    zookeeper_stores.story(steps)


def test_what_others_write_is_told(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        other = await zookeeper_stores.open()
        told: list[str] = []
        await other.commit([Create("/config/a", b"1"), Create("/config/b/deep", b"2")])
        await store.watch("/config", told.append)
        for operations, paths in [
            ([Set("/config/a", b"2")], {"/config/a"}),
            ([Create("/config/c/x/y")], {"/config/c", "/config/c/x", "/config/c/x/y"}),
            ([Create("/config/b/deep/er")], {"/config/b/deep/er"}),
            ([Set("/config/b/deep/er", b"3")], {"/config/b/deep/er"}),
            ([Delete("/config/c")], {"/config/c", "/config/c/x", "/config/c/x/y"}),
            ([Delete("/config/a"), Create("/config/a", b"new")], {"/config/a"}),
            ([Set("/config/a", b"newer")], {"/config/a"}),
        ]:
            told.clear()
            await other.commit(operations)
            await until(lambda paths=paths: set(told) >= paths)
            assert set(told) == paths, operations
        await other.close()

    zookeeper_stores.story(steps)


@pytest.mark.parametrize(
    "anew",
    [
        [[Delete("/config/a")], [Create("/config/a", b"2")]],
        [[Set("/config/a", b"x")], [Delete("/config/a"), Create("/config/a", b"2")]],
        [[Delete("/config"), Create("/config/a", b"2")]],
    ],
    ids=["deleted and made", "changed, deleted and made", "the whole tree"],
)
def test_a_node_that_is_made_anew_is_watched_on(zookeeper_stores: ZooKeeperStores, anew: list[list[Operation]]) -> None:
    """Also if all of it happens between a notice and our look at what it means."""

    async def steps(store: ZooKeeperStore) -> None:
        other = await zookeeper_stores.open()
        told: list[str] = []
        await other.commit([Create("/config/a", b"1")])
        await store.watch("/config", told.append)
        handle, goes_on = store._watches._handle, asyncio.Event()

        async def late(kind: str, path: str) -> None:
            await goes_on.wait()
            await handle(kind, path)

        store._watches._handle = late  # type: ignore[method-assign]
        await other.commit([Create("/config/b")])
        for operations in anew:
            await other.commit(operations)
        goes_on.set()
        await until(lambda: "/config/a" in told)
        for value in (b"3", b"4"):
            await until(store._watches._events.empty)
            told.clear()
            await other.commit([Set("/config/a", value)])
            await until(lambda: "/config/a" in told)
        await other.close()

    zookeeper_stores.story(steps)


def test_what_happened_while_we_were_away_is_told(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        other = await zookeeper_stores.open()
        told: list[str] = []
        await other.commit([Create("/t/kept", b"1"), Create("/t/changed", b"1"), Create("/t/gone"), Create("/t/anew", b"1")])
        await store.watch("/t", told.append)
        watching, store._session.connected_again = store._session.connected_again, lambda: None
        provoke(store, _CONNECTION_DROP)
        await until(lambda: not store._session._connected.is_set())
        await until(store._session._connected.is_set)
        await other.commit([Set("/t/changed", b"2"), Delete("/t/gone"), Create("/t/new/below"), Delete("/t/anew")])
        await other.commit([Create("/t/anew", b"1")])
        watching()
        await until(lambda: "/t/new/below" in told and "/t/gone" in told)
        assert set(told) == {"/t/changed", "/t/gone", "/t/new", "/t/new/below", "/t/anew"}
        told.clear()
        await other.commit([Set("/t/kept", b"2")])
        await until(lambda: told == ["/t/kept"])  # and it goes on watching
        await other.close()

    zookeeper_stores.story(steps)


def test_a_new_session_is_told_and_ephemeral_nodes_are_gone(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        begun: list[Node | None] = []
        other = await zookeeper_stores.open()
        await store.commit([Create("/ids/1", b"me", ephemeral=True), Create("/kept")])
        first = await store.get("/ids/1")
        assert first is not None
        assert first.ours
        theirs = await other.get("/ids/1")
        assert theirs is not None
        assert not theirs.ours
        store.on_new_session(lambda: begun.append(None))
        provoke(store, _SESSION_EXPIRED)
        await until(lambda: bool(begun))
        await other.close()
        await store.commit([Create("/ids/1b", b"me again", ephemeral=True)])
        second = await store.get("/ids/1b")
        assert second is not None
        assert second.ours
        assert second.created > first.created
        assert len(begun) == 1

    zookeeper_stores.story(steps)


def test_reads_go_on_over_a_dropped_connection(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        await store.commit([Create("/a", b"1")])
        for _ in range(3):
            provoke(store, _CONNECTION_DROP)
            assert await store.get("/a") == Node(b"1", 0)

    zookeeper_stores.story(steps)


WRITES: list[tuple[list[Operation], list[int]]] = [
    ([Create("/new/node", b"x")], [0]),
    ([Set("/a", b"2", version=0)], [1]),
    ([Set("/a", b"2")], [1]),
    ([Delete("/b")], [0]),
    ([Create("/e", b"mine", ephemeral=True), Set("/a", b"9", version=0), Delete("/b")], [0, 1, 0]),
]


@pytest.mark.parametrize("happened", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize(("operations", "versions"), WRITES)
def test_a_commit_whose_answer_was_lost_happens_once(
    zookeeper_stores: ZooKeeperStores, operations: list[Operation], versions: list[int], happened: bool
) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        await store.commit([Create("/a", b"1"), Create("/b/below", b"1")])
        send = store._send
        attempts = 0

        async def interrupted(steps: Sequence[Any]) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                return await send(steps)
            if happened:
                await send(steps)
            raise Interrupted

        store._send = interrupted  # type: ignore[method-assign]
        assert await store.commit(operations) == versions
        assert attempts == (1 if happened else 2)
        node = await store.get("/a")
        assert node is not None
        assert node.version == sum(isinstance(one, Set) for one in operations), "written once"

    zookeeper_stores.story(steps)


def test_a_lost_answer_does_not_hide_that_somebody_else_was_faster(zookeeper_stores: ZooKeeperStores) -> None:
    async def steps(store: ZooKeeperStore) -> None:
        send = store._send

        async def interrupted(steps: Sequence[Any]) -> Any:
            store._send = send  # type: ignore[method-assign]
            other = await zookeeper_stores.open()
            await other.commit([Create("/claim", b"theirs", ephemeral=True)])
            others.append(other)
            raise Interrupted

        others: list[ZooKeeperStore] = []
        store._send = interrupted  # type: ignore[method-assign]
        with pytest.raises(NodeExists):
            await store.commit([Create("/claim", b"theirs", ephemeral=True)])
        await others[0].close()

    zookeeper_stores.story(steps)


def test_one_of_several_servers_answers_and_the_root_is_made(zookeeper_stores: ZooKeeperStores) -> None:
    async def run() -> None:
        address = f"127.0.0.1:{free_port()}, {zookeeper_stores.address}/deeper/"
        store = ZooKeeperStore(address, 6000, 10, SystemClock(), asyncio.to_thread)
        await store.open(15_000)
        await store.commit([Create("/a", b"1")])
        await store.close()

    async def look(store: ZooKeeperStore) -> None:
        assert await store.get("/deeper/a") == Node(b"1", 0)

    asyncio.run(run())
    zookeeper_stores.story(look)


def test_brokers_of_apache_kafka_are_told_of_settings(
    zookeeper_stores: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.metadata.configs._NOTICES_KEPT", 3)

    async def steps(store: ZooKeeperStore) -> None:
        await membership.prepare(store)
        configs = Configs(store)
        await configs.start()
        for number in range(5):
            await configs.set_topic("t", {"retention.ms": str(number)})
        await configs.set_broker("1", {"log.cleaner.threads": "2"})
        names = await store.children("/config/changes")
        assert names == [f"config_change_{number:010d}" for number in (3, 4, 5)], "old ones go"
        last = await store.get(f"/config/changes/{names[-1]}")
        assert last is not None
        assert last.data == b'{"version":2,"entity_path":"brokers/1"}'
        assert configs.of_topic("t") == {"retention.ms": "4"}

    zookeeper_stores.story(steps)


def test_a_closed_store_is_unavailable(zookeeper_stores: ZooKeeperStores) -> None:
    async def run() -> None:
        store = await zookeeper_stores.open()
        await store.commit([Create("/a")])
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        with pytest.raises(StoreUnavailable):
            await store.commit([Create("/b")])

    asyncio.run(run())


def test_a_commit_that_nobody_waits_for_fails_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.metadata.zookeeper_session.PATIENCE", 0.1)

    async def run() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        store = ZooKeeperStore(f"127.0.0.1:{free_port()}", 6000, 10, ManualClock(), asyncio.to_thread)
        commit = asyncio.ensure_future(store.commit([Create("/a")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - what is left ends by itself
            await asyncio.sleep(0.01)
        gc.collect()
        assert complaints == []

    asyncio.run(run())


def test_no_zookeeper_at_the_start() -> None:
    async def run() -> None:
        store = ZooKeeperStore(f"127.0.0.1:{free_port()}/x", 6000, 10, ManualClock(), asyncio.to_thread)
        with pytest.raises(UnusableStore, match=r"no ZooKeeper answers at zookeeper\.connect=127\.0\.0\.1:\d+ within 0\.3 s"):
            await store.open(300)

    asyncio.run(run())


def test_after_our_patience_every_call_fails_at_once() -> None:
    async def run() -> None:
        clock = ManualClock()
        store = ZooKeeperStore(f"127.0.0.1:{free_port()}", 6000, 10, clock, asyncio.to_thread)
        clock.advance_ms(6000)
        calls: list[Awaitable[Any]] = [
            store.get("/a"),
            store.children("/a"),
            store.subtree("/a"),
            store.commit([Create("/a")]),
            store.watch("/a", lambda _path: None),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call
        await store.close()

    asyncio.run(run())
