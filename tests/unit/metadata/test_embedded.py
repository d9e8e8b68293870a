"""The embedded store beyond what every store promises: crashes, the disk, and a file that is none of ours."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata.embedded import EmbeddedStore, UnusableStore
from ottla.metadata.store import Create, Node, Set


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def test_ephemeral_nodes_of_a_process_that_crashed_are_gone(tmp_path: Path) -> None:
    file = str(tmp_path / "store.db")

    async def first() -> EmbeddedStore:
        store = EmbeddedStore(file, inline)
        await store.commit([Create("/ids/1", b"me", ephemeral=True), Create("/ids/kept", b"")])
        return store

    async def second() -> None:
        store = EmbeddedStore(file, inline)
        assert await store.children("/ids") == ["kept"]
        await store.commit([Create("/ids/1", b"me again", ephemeral=True)])
        await store.close()

    left_open = asyncio.run(first())
    asyncio.run(second())
    del left_open


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
