"""The embedded store keeps ZooKeeper's promises: all or nothing, versions, watches, sessions; what was answered is not lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata.embedded import EmbeddedStore, UnusableStore
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
    StoreError,
)


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def story(steps: Callable[[EmbeddedStore], Awaitable[None]], path: str = ":memory:") -> None:
    async def run() -> None:
        store = EmbeddedStore(path, inline)
        try:
            await steps(store)
        finally:
            await store.close()

    asyncio.run(run())


async def everything(store: EmbeddedStore) -> dict[str, Node]:
    return await store.subtree("")


def test_create_makes_parents_and_set_counts_versions() -> None:
    async def steps(store: EmbeddedStore) -> None:
        assert await store.commit([Create("/a/b/c", b"1")]) == [0]
        assert await store.get("/a/b") == Node(b"", 0)
        assert await store.get("/a/b/c") == Node(b"1", 0)
        assert await store.commit([Set("/a/b/c", b"2"), Set("/a/b/c", b"3")]) == [1, 2]
        assert await store.get("/a/b/c") == Node(b"3", 2)
        assert await store.children("/a") == ["b"]
        assert await store.children("/nowhere") == []
        assert await store.get("/nowhere") is None

    story(steps)


def test_delete_takes_all_that_is_below() -> None:
    async def steps(store: EmbeddedStore) -> None:
        await store.commit([Create("/a/b/c"), Create("/a/b/d"), Create("/a/bb")])
        assert await store.commit([Delete("/a/b")]) == [0]
        assert set(await everything(store)) == {"/a", "/a/bb"}
        await store.commit([Create("/a/b/c", b"again")])
        assert await store.get("/a/b/c") == Node(b"again", 0)

    story(steps)


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
]


@pytest.mark.parametrize(("operations", "error", "path"), FAILING)
def test_all_or_nothing(tmp_path: Path, operations: list[Operation], error: type[StoreError], path: str) -> None:
    file = str(tmp_path / "store.db")
    told: list[str] = []

    async def steps(store: EmbeddedStore) -> None:
        await store.commit([Create("/a", b"kept"), Create("/a/child", b"too")])
        before = await everything(store)
        store.watch("", told.append)
        with pytest.raises(error) as refusal:
            await store.commit(operations)
        assert refusal.value.path == path
        assert await everything(store) == before
        assert told == []

    async def again(store: EmbeddedStore) -> None:
        assert await everything(store) == {"/a": Node(b"kept", 0), "/a/child": Node(b"too", 0)}

    story(steps, file)
    story(again, file)


def test_a_transaction_sees_its_own_writes() -> None:
    async def steps(store: EmbeddedStore) -> None:
        versions = await store.commit(
            [Create("/a"), Set("/a", b"x", version=0), Check("/a", 1), Delete("/a", version=1), Create("/a", b"new")]
        )
        assert len(versions) == 5
        assert await store.get("/a") == Node(b"new", 0)

    story(steps)


def test_what_was_answered_is_there_after_a_reopen(tmp_path: Path) -> None:
    file = str(tmp_path / "store.db")

    async def write(store: EmbeddedStore) -> None:
        await store.commit([Create("/a/b", b"1"), Create("/gone", b"x")])
        await store.commit([Set("/a/b", b"2")])
        await store.commit([Delete("/gone")])

    async def read(store: EmbeddedStore) -> None:
        assert await everything(store) == {"/a": Node(b"", 0), "/a/b": Node(b"2", 1)}
        assert await store.commit([Set("/a/b", b"3", version=1)]) == [2]

    story(write, file)
    story(read, file)


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_ephemeral_nodes_go_with_their_session(tmp_path: Path, crash: bool) -> None:
    file = str(tmp_path / "store.db")

    async def first() -> EmbeddedStore:
        store = EmbeddedStore(file, inline)
        await store.commit([Create("/ids/1", b"me", ephemeral=True), Create("/ids/kept", b"")])
        await store.commit([Set("/ids/1", b"still me")])
        assert await store.children("/ids") == ["1", "kept"]
        if not crash:
            await store.close()
        return store

    async def second(store: EmbeddedStore) -> None:
        assert await store.children("/ids") == ["kept"]
        await store.commit([Create("/ids/1", b"me again", ephemeral=True)])

    left_open = asyncio.run(first())
    story(second, file)
    del left_open


def test_watchers_are_told_paths_after_the_commit() -> None:
    seen: list[tuple[str, str]] = []

    async def steps(store: EmbeddedStore) -> None:
        store.watch("/config/topics", lambda path: seen.append(("topics", path)))
        store.watch("/config", lambda path: seen.append(("all", path)))
        await store.commit([Create("/config/topics/a"), Create("/config/topicsother"), Create("/elsewhere")])
        assert ("topics", "/config/topics/a") in seen
        assert ("all", "/config/topicsother") in seen
        assert ("topics", "/config/topicsother") not in seen
        assert not any(path == "/elsewhere" for _, path in seen)
        seen.clear()
        await store.commit([Delete("/config/topics")])
        assert ("topics", "/config/topics/a") in seen, "a node that went with its parent is told too"

    story(steps)


def test_a_watcher_may_read_what_it_was_told_of() -> None:
    found: list[Node | None] = []

    async def steps(store: EmbeddedStore) -> None:
        tasks = []

        async def read(path: str) -> None:
            found.append(await store.get(path))

        store.watch("/a", lambda path: tasks.append(asyncio.ensure_future(read(path))))
        await store.commit([Create("/a", b"1")])
        await asyncio.gather(*tasks)
        assert found == [Node(b"1", 0)]

    story(steps)


def test_two_writers_never_both_win() -> None:
    async def steps(store: EmbeddedStore) -> None:
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

    story(steps)


def test_a_write_that_fails_on_the_disk_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(str(tmp_path / "store.db"), inline)
        await store.commit([Create("/a", b"1")])
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        store._database.execute("PRAGMA busy_timeout=10")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError):
            await store.commit([Set("/a", b"2")])
        assert await store.get("/a") == Node(b"1", 0)
        other.execute("ROLLBACK")
        other.close()
        assert await store.commit([Set("/a", b"3")]) == [1]
        await store.close()

    asyncio.run(run())


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    file.write_bytes(b"not a database at all" * 100)
    with pytest.raises(UnusableStore, match=r"store\.db: file is not a database"):
        EmbeddedStore(str(file), inline)
