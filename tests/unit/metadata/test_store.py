"""What a store promises, held against both: all or nothing, versions, watches, sessions; what was answered is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ottla.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Store,
    StoreError,
    in_pieces,
    parents,
)

if TYPE_CHECKING:
    from .conftest import Stores


async def everything(store: Store) -> dict[str, Node]:
    return await store.subtree("")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread, or another process, brings about."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


def test_create_makes_parents_and_set_counts_versions(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        assert await store.commit([Create("/a/b/c", b"1")]) == [0]
        assert await store.get("/a/b") == Node(b"", 0)
        assert await store.get("/a/b/c") == Node(b"1", 0)
        assert await store.commit([Set("/a/b/c", b"2"), Set("/a/b/c", b"3")]) == [1, 2]
        assert await store.get("/a/b/c") == Node(b"3", 2)
        assert await store.children("/a") == ["b"]
        assert await store.children("/nowhere") == []
        assert await store.get("/nowhere") is None

    stores.story(steps)


def test_parents_that_are_partly_there(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        await store.commit([Create("/t/0/state")])
        await store.commit([Create(f"/t/{n}/state") for n in range(1, 9)])
        await store.commit([Create("/u", b"u"), *(Create(f"/u/p/{n}/state", b"s") for n in range(3))])
        assert await store.children("/t") == [str(n) for n in range(9)]
        assert set(await store.subtree("/u")) == {"/u/p"} | {f"/u/p/{n}{end}" for n in range(3) for end in ("", "/state")}
        assert (await store.subtree("/u"))["/u/p/2/state"] == Node(b"s", 0)
        wanted = [f"/u/p/{n % 4}/state" for n in range(1501)]  # more than one request to ZooKeeper takes
        assert await store.nodes(wanted) == [Node(b"s", 0) if n % 4 < 3 else None for n in range(1501)]
        assert await store.nodes([]) == []

    stores.story(steps)


def test_delete_takes_all_that_is_below(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        await store.commit([Create("/a/b/c"), Create("/a/b/d"), Create("/a/bb")])
        assert await store.commit([Delete("/a/b")]) == [0]
        assert set(await everything(store)) == {"/a", "/a/bb"}
        await store.commit([Create("/a/b/c", b"again")])
        assert await store.get("/a/b/c") == Node(b"again", 0)

    stores.story(steps)


FAILING: list[tuple[list[Operation], type[StoreError], str]] = [
    ([Create("/x"), Create("/a")], NodeExists, "/a"),
    ([Set("/a", b"changed"), Create("/new"), Set("/none", b"")], NoNode, "/none"),
    ([Delete("/a"), Set("/a", b"")], NoNode, "/a"),
    ([Create("/x"), Set("/a", b"", version=7)], BadVersion, "/a"),
    ([Create("/x"), Check("/a", 7)], BadVersion, "/a"),
    ([Create("/x"), Check("/none", 0)], NoNode, "/none"),
    ([Set("/a", b"1"), Check("/a", 1), Delete("/a", version=0)], BadVersion, "/a"),
    ([Delete("/none")], NoNode, "/none"),
    ([Create("/x"), Create("/x")], NodeExists, "/x"),
    ([Create("/deep/er/x"), Check("/a", 7)], BadVersion, "/a"),
]


@pytest.mark.parametrize(("operations", "error", "path"), FAILING)
def test_all_or_nothing(stores: Stores, operations: list[Operation], error: type[StoreError], path: str) -> None:
    told: list[str] = []

    async def steps(store: Store) -> None:
        await store.commit([Create("/a", b"kept"), Create("/a/child", b"too")])
        before = await everything(store)
        await store.watch("", told.append)
        with pytest.raises(error) as refusal:
            await store.commit(operations)
        assert refusal.value.path == path
        assert await everything(store) == before
        await store.commit([Create("/afterwards")])
        await until(lambda: "/afterwards" in told)
        assert set(told) - {""} == {"/afterwards"}

    async def again(store: Store) -> None:
        assert await everything(store) == {"/a": Node(b"kept", 0), "/a/child": Node(b"too", 0), "/afterwards": Node(b"", 0)}

    stores.story(steps, again)


def test_a_transaction_sees_its_own_writes(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        versions = await store.commit(
            [Create("/a"), Set("/a", b"x", version=0), Check("/a", 1), Delete("/a", version=1), Create("/a", b"new")]
        )
        assert versions[1] == 1
        assert len(versions) == 5
        assert await store.get("/a") == Node(b"new", 0)

    stores.story(steps)


def test_what_was_answered_is_there_after_a_reopen(stores: Stores) -> None:
    async def write(store: Store) -> None:
        await store.commit([Create("/a/b", b"1"), Create("/gone", b"x")])
        await store.commit([Set("/a/b", b"2")])
        await store.commit([Delete("/gone")])

    async def read(store: Store) -> None:
        assert await everything(store) == {"/a": Node(b"", 0), "/a/b": Node(b"2", 1)}
        assert await store.commit([Set("/a/b", b"3", version=1)]) == [2]

    stores.story(write, read)


def test_ephemeral_nodes_go_when_their_session_is_closed(stores: Stores) -> None:
    async def first(store: Store) -> None:
        await store.commit([Create("/ids/1", b"me", ephemeral=True), Create("/ids/kept", b"")])
        await store.commit([Set("/ids/1", b"still me")])
        assert await store.children("/ids") == ["1", "kept"]

    async def second(store: Store) -> None:
        assert await store.children("/ids") == ["kept"]
        await store.commit([Create("/ids/1", b"me again", ephemeral=True)])

    stores.story(first, second)


def test_sequential_nodes_are_numbered(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        await store.commit([Create("/changes")])
        for number in range(3):
            await store.commit([Create("/changes/change_", b"%d" % number, sequential=True)])
        await store.commit(
            [Create("/changes/change_", b"3", sequential=True), Create("/changes/change_", b"4", sequential=True)]
        )
        names = await store.children("/changes")
        assert names == [f"change_{number:010d}" for number in range(5)]
        assert await store.get(f"/changes/{names[4]}") == Node(b"4", 0)

    stores.story(steps)


def test_watchers_are_told_paths_after_the_commit(stores: Stores) -> None:
    seen: list[tuple[str, str]] = []

    async def steps(store: Store) -> None:
        await store.watch("/config/topics", lambda path: seen.append(("topics", path)))
        await store.watch("/config", lambda path: seen.append(("all", path)))
        await store.commit([Create("/config/topics/a"), Create("/config/topicsother"), Create("/elsewhere")])
        await until(lambda: {("topics", "/config/topics/a"), ("all", "/config/topicsother")} <= set(seen))
        assert ("topics", "/config/topicsother") not in seen
        assert not any(path == "/elsewhere" for _, path in seen)
        seen.clear()
        await store.commit([Set("/config/topics/a", b"changed")])
        await until(lambda: ("topics", "/config/topics/a") in seen)
        seen.clear()
        await store.commit([Delete("/config/topics")])
        await until(lambda: ("topics", "/config/topics/a") in seen)  # a node that went with its parent is told too
        seen.clear()
        await store.commit([Create("/config/topics/a", b"again")])
        await until(lambda: ("topics", "/config/topics/a") in seen)

    stores.story(steps)


def test_a_watcher_may_read_what_it_was_told_of(stores: Stores) -> None:
    found: list[Node | None] = []

    async def steps(store: Store) -> None:
        tasks = []

        async def read(path: str) -> None:
            found.append(await store.get(path))

        await store.watch("/a", lambda path: tasks.append(asyncio.ensure_future(read(path))))
        await store.commit([Create("/a", b"1")])
        await until(lambda: bool(tasks))
        await asyncio.gather(*tasks)
        assert found == [Node(b"1", 0)]

    stores.story(steps)


def test_two_writers_never_both_win(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        await store.commit([Create("/counter", b"0")])

        async def add() -> None:
            while True:
                node = await store.get("/counter")
                assert node is not None
                await asyncio.sleep(0)
                try:
                    await store.commit([Set("/counter", b"%d" % (int(node.data) + 1), node.version)])
                    return
                except BadVersion:
                    continue

        await asyncio.gather(*(add() for _ in range(20)))
        assert await store.get("/counter") == Node(b"20", 20)

    stores.story(steps)


def test_many_create_below_the_same_new_parent(stores: Stores) -> None:
    async def steps(store: Store) -> None:
        await asyncio.gather(*(store.commit([Create(f"/new/parent/{number}")]) for number in range(8)))
        assert await store.children("/new/parent") == [str(number) for number in range(8)]

    stores.story(steps)


def test_thousands_of_nodes(stores: Stores) -> None:
    """A topic of five thousand partitions: in pieces where one transaction would be too large, and gone again by one delete."""
    name = "t" * 100

    async def steps(store: Store) -> None:
        operations: list[Operation] = [Create(f"/topics/{name}", b"x" * 100_000)]
        operations += [Create(f"/topics/{name}/partitions/{n}/state", b"s" * 80) for n in range(5000)]
        for piece in in_pieces(operations):
            await store.commit(piece)
        assert len(await store.children(f"/topics/{name}/partitions")) == 5000
        await store.commit([Create("/epoch"), Create("/mark")])
        with pytest.raises(BadVersion):
            await store.commit([Check("/epoch", 3), Delete(f"/topics/{name}")])
        assert len(await store.children(f"/topics/{name}/partitions")) == 5000
        await store.commit([Check("/epoch", 0), Delete("/mark"), Delete(f"/topics/{name}")])
        assert set(await everything(store)) == {"/topics", "/epoch"}

    stores.story(steps)


def test_pieces() -> None:
    operations: list[Operation] = [Create(f"/{n}", b"x" * 100) for n in range(10)]
    assert list(in_pieces(operations)) == [operations]
    small = list(in_pieces(operations, limit=500))
    assert [one for piece in small for one in piece] == operations
    assert all(1 <= len(piece) <= 2 for piece in small)
    assert list(in_pieces(operations[:1], limit=1)) == [operations[:1]], "what is too large alone goes alone"
    assert list(in_pieces([])) == []


@pytest.mark.parametrize(("path", "above"), [("/a", []), ("/a/b/c", ["/a", "/a/b"])])
def test_parents(path: str, above: list[str]) -> None:
    assert parents(path) == above
