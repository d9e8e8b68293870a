"""What a pipeline is: sources, steps and sinks with names, and where each was declared. Plain values, nothing runs here.

Files in YAML and in Python become the same `Entry`s first; `building` makes a `Pipeline` of them, `checks` looks at the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where something stands in a pipeline's files; line 0 is the file as a whole."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Problem(NamedTuple):
    """What keeps a pipeline from starting."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class Refused(Exception):
    """A pipeline that cannot start, with all that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Entry:
    """Something declared, as it was written."""

    kind: str
    name: str
    place: Place
    given: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """The line of a key, by its path; of SQL, where its text begins."""
    function: Callable[..., Any] | None = None
    needs: tuple[str, ...] = ()
    """The parameters of the function."""

    def at(self, *path: str) -> Place:
        """Where a key stands, or at least what it belongs to."""
        while path and path not in self.lines:
            path = path[:-1]
        return Place(self.place.file, self.lines.get(path, self.place.line))


@dataclass(frozen=True, slots=True)
class Decode:
    """How values become columns, and what happens to those that cannot."""

    format: str
    schema: str | None = None
    """As in CREATE TABLE, or for Avro its JSON or a file. None: inferred from the beginning of the topic, or the registry's."""
    bad: str = "fail"
    dead_letter: str | None = None
    tombstones: str = "bad"
    options: Mapping[str, str] = field(default_factory=dict)
    descriptor: str | None = None
    """A file with a FileDescriptorSet of Protobuf's."""
    message: str | None = None
    registry: str | None = None
    place: Place | None = None
    """Where the schema is named."""


class Watermark(NamedTuple):
    """How late rows may be, by which column."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from: topics, another format of Spark's, or a function."""

    name: str
    place: Place
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    format: str | None = None
    path: str | None = None
    schema: str | None = None
    stream: bool = True
    start: str = "earliest"
    headers: bool = False
    decode: Decode | None = None
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    function: Callable[..., Any] | None = None

    @property
    def is_topic(self) -> bool:
        return bool(self.topics) or self.pattern is not None


@dataclass(frozen=True, slots=True)
class Step:
    """Rows made of other rows, by SQL or by a function."""

    name: str
    place: Place
    sql: str | None = None
    sql_place: Place | None = None
    function: Callable[..., Any] | None = None
    needs: tuple[str, ...] | None = None
    """What it reads; None: SQL says it."""


class Creation(NamedTuple):
    """How a topic is made where it does not exist."""

    partitions: int = -1
    config: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go: a topic, or another format of Spark's. Each is one streaming query."""

    name: str
    place: Place
    input: str
    topic: str | None = None
    key: str | None = None
    exactly_once: bool = True
    create: Creation | None = None
    format: str | None = None
    path: str | None = None
    mode: str = "append"
    trigger: str | None = None
    batches: bool = False
    """Written batch by batch, by formats that have no writer for streams."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All of it."""

    name: str
    place: Place
    cluster: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    steps: Mapping[str, Step] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
