"""Where the current image hangs: readers take it, the controller's word replaces it, whoever waits for a change is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.metadata.image import Image


class MetadataCache:
    """The one mutable reference to the cluster's image on this broker."""

    __slots__ = ("_waiters", "image", "swapped")

    def __init__(self) -> None:
        self.image = Image()
        self.swapped: Callable[[Image], None] = lambda _image: None
        """Told each new image."""
        self._waiters: list[tuple[Callable[[Image], bool], asyncio.Future[None]]] = []

    def swap(self, image: Image) -> None:
        """Make `image` the current one."""
        self.image = image
        still_waiting = []
        for condition, future in self._waiters:
            if future.done():
                continue
            if condition(image):
                future.set_result(None)
            else:
                still_waiting.append((condition, future))
        self._waiters = still_waiting
        self.swapped(image)

    async def wait_for(self, condition: Callable[[Image], bool], timeout: float) -> bool:
        """Wait until an image satisfies `condition`; False when the time is up."""
        if condition(self.image):
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            return False
        return True
