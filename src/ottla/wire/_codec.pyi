from collections.abc import Callable, Mapping
from typing import Any

from ottla.wire.primitives import Buffer

KINDS: dict[str, int]

class Plan:
    def __init__(
        self,
        cls: type | None,
        where: str,
        flexible: bool,
        ops: list[tuple[str, int, bool, int, int]],
        children: list[Plan],
        absent: list[tuple[str, Any]],
        made: list[tuple[str, type]],
        read_tagged: list[tuple[int | None, str, Callable[[Any], Any]]],
        write_tagged: list[tuple[int | None, str, Any, Callable[[Any], bool], Callable[[Any], bytes]]],
    ) -> None: ...
    def decode(self, buf: Buffer, pos: int = 0) -> tuple[Any, int]: ...
    def encode(self, message: Any) -> bytes: ...
    def parts(self, message: Any) -> list[Any]: ...

def plain_header(buf: Buffer, versions: Mapping[int, tuple[int, int]]) -> tuple[int, int, int, str, int] | None: ...
