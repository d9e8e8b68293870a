"""Watching subtrees of ZooKeeper, whose own watches are for one node, fire once, and die with the connection.

Guards: a change below a watched prefix is told after it happened, whoever made it, also if it happened while we were away:
each watched tree is mirrored (only which incarnation and version of each node was seen), and after a reconnect the mirror is
compared with what is there. Events are handled one after the other, in ZooKeeper's order, and none while a tree begins to be
watched: a watch fires once, so one that fired while nobody knew its tree would leave us deaf there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kazoo.protocol.states import EventType, WatchedEvent

from ottla.metadata.store import StoreUnavailable, Watcher

log = logging.getLogger("ottla.metadata")

_RETRY_AFTER = 1.0
_EVERYTHING = ""

Seen = tuple[int, int]
"""The transaction that made a node, and its version: differs after every write, and after a node was made anew."""


class Reads(Protocol):
    """The two reads that set watches: paths are of our tree, `fired` is called in a thread of kazoo's."""

    def watch_node(self, path: str, fired: Callable[[WatchedEvent], None]) -> Awaitable[Any]:
        """What ZooKeeper knows about a node (None: it is not there)."""
        ...

    def watch_children(self, path: str, fired: Callable[[WatchedEvent], None]) -> Awaitable[list[str] | None]:
        """The names below a node (None: it is not there)."""
        ...


class Tree:
    """One watched prefix."""

    def __init__(self, prefix: str, watcher: Watcher, reads: Reads, fired: Callable[[WatchedEvent], None]) -> None:
        self.prefix = prefix
        self._watcher: Watcher | None = None
        self._told = watcher
        self._reads = reads
        self._fired = fired
        self._seen: dict[str, Seen] = {}
        self._children: dict[str, set[str]] = {}

    def holds(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self.prefix + "/")

    async def begin(self) -> None:
        """Set the watches; what is there already is not told."""
        await self.look(self.prefix)
        self._watcher = self._told

    async def look_again(self) -> None:
        """Compare with what is there, and set all watches anew."""
        await self.look(self.prefix, anew=True)

    async def look(self, path: str, anew: bool = False) -> None:
        """See whether a node changed, and what is below it. Known children are looked at only if all is to be seen `anew`."""
        stat = await self._reads.watch_node(path, self._fired)
        if stat is None:
            self.gone(path)
            return
        seen = (stat.czxid, stat.version)
        if self._seen.get(path) != seen:
            self._seen[path] = seen
            self._children.setdefault(path.rpartition("/")[0], set()).add(path)
            self._tell(path)
        await self.look_below(path, anew)

    async def look_below(self, path: str, anew: bool = False) -> None:
        """See which nodes are directly below another."""
        names = await self._reads.watch_children(path, self._fired)
        if names is None:
            self.gone(path)
            return
        children = {f"{path}/{name}" for name in names}
        for known in self._children.get(path, set()) - children:
            self.gone(known)
        new = sorted(child for child in children if anew or child not in self._seen)
        await asyncio.gather(*(self.look(child, anew) for child in new))

    def gone(self, path: str) -> None:
        """A node is not there any more, nor is anything below it."""
        for child in sorted(self._children.pop(path, ())):
            self.gone(child)
        if self._seen.pop(path, None) is not None:
            self._children.get(path.rpartition("/")[0], set()).discard(path)
            self._tell(path)

    def _tell(self, path: str) -> None:
        if self._watcher is not None:
            self._watcher(path)


class Watches:
    """All watched trees of a store, and the one task that follows them."""

    def __init__(self, reads: Reads, path_of: Callable[[str], str]) -> None:
        self._reads = reads
        self._path_of = path_of
        self._loop = asyncio.get_running_loop()
        self._trees: list[Tree] = []
        self._events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def add(self, prefix: str, watcher: Watcher) -> None:
        """Watch a subtree; begins before this returns."""
        tree = Tree(prefix, watcher, self._reads, self._fired)
        async with self._turn:
            await tree.begin()
            self._trees.append(tree)
        if self._task is None:
            self._task = asyncio.ensure_future(self._follow())

    def connected_again(self) -> None:
        """The connection had been lost, and all watches with it."""
        self._events.put_nowait((EventType.NONE, _EVERYTHING))

    async def stop(self) -> None:
        """Follow nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _fired(self, event: WatchedEvent) -> None:
        """In kazoo's thread. A lost connection fires all watches with a NONE: `connected_again` stands for all of those."""
        if event.type != EventType.NONE:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (event.type, self._path_of(event.path)))

    async def _follow(self) -> None:
        while True:
            kind, path = await self._events.get()
            while True:
                try:
                    async with self._turn:
                        await self._handle(kind, path)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_AFTER)
                except Exception:
                    log.exception("A change at %s could not be followed", path or "/")
                    break

    async def _handle(self, kind: str, path: str) -> None:
        for tree in self._trees:
            if kind == EventType.NONE:
                await tree.look_again()
            elif not tree.holds(path):
                continue
            elif kind == EventType.CHILD:
                await tree.look_below(path)
            elif kind == EventType.DELETED and path != tree.prefix:
                tree.gone(path)
                await tree.look_below(path.rpartition("/")[0])  # it may have been made anew while nobody watched its parent
            else:
                await tree.look(path)
