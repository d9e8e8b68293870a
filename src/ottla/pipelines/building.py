"""A pipeline out of entries: every key with its kind, so that files in YAML and in Python are read by the same table. Pure.

Guards: a key that is not known, a value of the wrong kind and a name that cannot be used are found before anything starts, all
of them at once, and each message begins with file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ottla.pipelines.spec import Creation, Decode, Entry, Pipeline, Place, Problem, Sink, Source, Step, Watermark

TEXT_FORMATS = ("json", "csv")
DECODE_FORMATS = (*TEXT_FORMATS, "avro", "protobuf")
BAD = ("fail", "column", "dead-letter")
TOMBSTONES = ("bad", "keep", "drop")
MODES = ("append", "update", "complete")
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DURATION = re.compile(r"\d+\s*(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)

_KEYS = {
    "pipeline": ("name", "cluster", "spark"),
    "source": ("topic", "topics", "pattern", "format", "path", "schema", "stream", "start", "headers", "decode", "watermark",
               "options"),
    "step": ("sql", "needs"),
    "sink": ("from", "topic", "key", "exactly_once", "create", "format", "path", "mode", "trigger", "batches", "partition_by",
             "options"),
}  # fmt: skip
_DECODE_KEYS = ("format", "schema", "descriptor", "message", "schema_registry", "bad", "dead_letter", "tombstones", "options")
_NOT_FOR = {
    "json": ("descriptor", "message", "schema_registry"),
    "csv": ("descriptor", "message", "schema_registry"),
    "avro": ("descriptor", "message", "options"),
    "protobuf": ("schema", "options"),
}


class _Fields:
    """The keys of an entry, or of a mapping in it: each is taken with its kind, and what is wrong is written down."""

    def __init__(self, entry: Entry, allowed: tuple[str, ...], problems: list[Problem], *path: str) -> None:
        self._entry, self._path, self._problems = entry, path, problems
        given: Any = entry.given
        for part in path:
            given = given[part]
        self._given: Mapping[str, Any] = given
        what = f"{entry.kind} {entry.name}" if not path else f"{path[-1]} of {entry.kind} {entry.name}"
        for key in self._given:
            if key not in allowed:
                self.refuse(f"{what} has no key {key!r}: allowed are {', '.join(allowed)}", key)

    def refuse(self, message: str, *keys: str) -> None:
        self._problems.append(Problem(self._entry.at(*self._path, *keys), message))

    def place(self, key: str) -> Place:
        return self._entry.at(*self._path, key)

    def has(self, key: str) -> bool:
        return self._given.get(key) is not None

    def text(self, key: str) -> str | None:
        value = self._given.get(key)
        if value is None or isinstance(value, str):
            return value or None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        self.refuse(f"{key} is to be text", key)
        return None

    def document(self, key: str) -> str | None:
        """Text, or what stands for JSON: in YAML and in Python JSON may be written as it is."""
        value = self._given.get(key)
        return json.dumps(value) if isinstance(value, Mapping | list) else self.text(key)

    def choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key) or default
        if value not in allowed:
            self.refuse(f"{key} {value!r} is not valid: allowed is {', '.join(allowed)}", key)
            return default
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._given.get(key, default)
        if isinstance(value, bool):
            return value
        self.refuse(f"{key} is to be true or false", key)
        return default

    def duration(self, key: str) -> str | None:
        value = self.text(key)
        if value is not None and _DURATION.fullmatch(value) is None:
            self.refuse(f"{key} {value!r} is not valid: write a time such as 10 seconds or 5 minutes", key)
            return None
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._given.get(key)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(isinstance(one, str) and one for one in values):
            self.refuse(f"{key} is to be a list of names", key)
            return ()
        return tuple(values)

    def mapping(self, key: str) -> dict[str, str]:
        value = self._given.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.refuse(f"{key} is to hold names and values", key)
            return {}
        return {str(name): str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}

    def inner(self, key: str, allowed: tuple[str, ...], example: str) -> _Fields | None:
        value = self._given.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(f"{key} is to be written like {example}", key)
            return None
        return _Fields(self._entry, allowed, self._problems, *self._path, key)


def build(entries: Iterable[Entry], default_name: str) -> tuple[Pipeline, list[Problem]]:
    """The pipeline that entries declare, as far as they can be understood, and what cannot."""
    problems: list[Problem] = []
    name, place, cluster, conf = default_name, Place(default_name, 1), dict[str, str](), dict[str, str]()
    sources: dict[str, Source] = {}
    steps: dict[str, Step] = {}
    sinks: dict[str, Sink] = {}
    where: dict[tuple[bool, str], Place] = {}
    for entry in entries:
        fields = _Fields(entry, _KEYS[entry.kind], problems)
        if entry.kind == "pipeline":
            name, place = fields.text("name") or name, entry.place
            if _NAME.fullmatch(name) is None:
                fields.refuse(f"name {name!r} is not valid: use letters, digits, _, - and .", "name")
            cluster |= _cluster(entry, fields)
            conf |= fields.mapping("spark")
            continue
        if place.file == default_name:
            place = entry.place
        is_sink = entry.kind == "sink"
        if (_NAME if is_sink else _VIEW).fullmatch(entry.name) is None:
            more = ", - and ." if is_sink else ": SQL has to be able to name it"
            fields.refuse(f"the name of {entry.kind} {entry.name} is not valid, use letters, digits and _{more}")
        if (is_sink, entry.name) in where:
            fields.refuse(f"{entry.kind} {entry.name} has a name that is taken at {where[is_sink, entry.name]}")
            continue
        where[is_sink, entry.name] = entry.place
        if entry.kind == "source":
            sources[entry.name] = _source(entry, fields)
        elif entry.kind == "step":
            steps[entry.name] = _step(entry, fields)
        else:
            sinks[entry.name] = _sink(entry, fields)
    if not sinks:
        problems.append(Problem(place, f"pipeline {name} has no sink: nothing would run"))
    return Pipeline(name, place, cluster, conf, sources, steps, sinks), problems


def _cluster(entry: Entry, fields: _Fields) -> dict[str, str]:
    if isinstance(entry.given.get("cluster"), Mapping):
        return fields.mapping("cluster")
    address = fields.text("cluster")
    return {} if address is None else {"bootstrap.servers": address}


def _source(entry: Entry, fields: _Fields) -> Source:
    ways = [key for key in ("topic", "topics", "pattern", "format") if fields.has(key)]
    ways += ["a function"] if entry.function is not None else []
    if len(ways) != 1:
        found = " and ".join(ways) or "none of them"
        fields.refuse(f"source {entry.name} needs one of topic, topics, pattern and format: there is {found}")
    topics = (*fields.texts("topic"), *fields.texts("topics"))
    source = Source(
        entry.name,
        entry.place,
        topics=topics,
        pattern=fields.text("pattern"),
        format=fields.text("format"),
        path=fields.text("path"),
        schema=fields.text("schema"),
        stream=fields.flag("stream", True),
        start=fields.text("start") or "earliest",
        headers=fields.flag("headers", False),
        decode=_decode(fields),
        watermark=_watermark(fields),
        options=fields.mapping("options"),
        function=entry.function,
    )
    if source.decode is not None and not source.is_topic and ways:
        fields.refuse("decode is for topics: other formats have columns of their own", "decode")
    if source.decode is not None and not source.stream and source.decode.bad == "dead-letter":
        fields.refuse("bad dead-letter is for streams: a source that is read whole would send them again", "decode", "bad")
    return source


def _decode(fields: _Fields) -> Decode | None:
    inner = fields.inner("decode", _DECODE_KEYS, "{format: json, schema: id BIGINT}")
    if inner is None:
        return None
    kind = inner.text("format") or ""
    if kind not in DECODE_FORMATS:
        inner.refuse(f"format {kind!r} of decode is not valid: allowed is {', '.join(DECODE_FORMATS)}", "format")
    for key in _NOT_FOR.get(kind, ()):
        if inner.has(key):
            inner.refuse(f"{key} is not for {kind}: leave it out", key)
    bad, dead_letter = inner.choice("bad", "fail", BAD), inner.text("dead_letter")
    if bad == "dead-letter" and dead_letter is None:
        inner.refuse("bad dead-letter needs dead_letter: the topic that bad records go to", "bad")
    if bad != "dead-letter" and dead_letter is not None:
        inner.refuse("dead_letter is used with bad: dead-letter only", "dead_letter")
    found = Decode(
        kind,
        inner.document("schema") if kind == "avro" else inner.text("schema"),
        bad,
        dead_letter,
        inner.choice("tombstones", "bad", TOMBSTONES),
        inner.mapping("options"),
        inner.text("descriptor"),
        inner.text("message"),
        _registry(inner),
        inner.place("descriptor" if kind == "protobuf" else "schema"),
    )
    if kind == "csv" and found.schema is None:
        inner.refuse("csv needs a schema: values have no names of their own", "format")
    if kind == "avro" and found.schema is None and found.registry is None:
        inner.refuse("avro needs schema (a file or JSON), schema_registry, or both", "format")
    if kind == "protobuf" and found.descriptor is None and found.registry is None:
        inner.refuse("protobuf needs descriptor (a file of protoc's) and message, schema_registry, or both", "format")
    if found.descriptor is not None and found.message is None and kind == "protobuf":
        inner.refuse("descriptor needs message: the name of the message in it, with its package", "descriptor")
    return found


def _registry(fields: _Fields) -> str | None:
    """The address of a schema registry; it may hold a password, so that messages do not repeat it."""
    given = fields.text("schema_registry")
    try:
        parts = urlsplit(given or "")
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if given is not None and not valid:
        fields.refuse("schema_registry is to be written like http://host:8081 or https://user:password@host", "schema_registry")
        return None
    return given


def _watermark(fields: _Fields) -> Watermark | None:
    example = "{column: at, delay: 10 minutes}"
    inner = fields.inner("watermark", ("column", "delay"), example)
    if inner is None:
        return None
    column, delay = inner.text("column"), inner.duration("delay")
    if column is None or delay is None:
        fields.refuse(f"watermark is to be written like {example}", "watermark")
        return None
    return Watermark(column, delay)


def _step(entry: Entry, fields: _Fields) -> Step:
    sql = fields.text("sql")
    if (sql is None) == (entry.function is None):
        fields.refuse(f"step {entry.name} needs sql, or a function that returns a DataFrame")
    needs = entry.needs if entry.function is not None else fields.texts("needs") if fields.has("needs") else None
    return Step(entry.name, entry.place, sql, entry.at("sql"), entry.function, needs)


def _sink(entry: Entry, fields: _Fields) -> Sink:
    ways = [key for key in ("topic", "format") if fields.has(key)]
    if len(ways) != 1:
        found = " and ".join(ways) or "none of them"
        fields.refuse(f"sink {entry.name} needs one of topic and format: there is {found}")
    for key in ("key", "exactly_once", "create"):
        if fields.has(key) and not fields.has("topic"):
            fields.refuse(f"{key} is for topics", key)
    if fields.has("batches") and fields.has("topic"):
        fields.refuse("batches is for formats that have no writer for streams, and topics have one", "batches")
    create = fields.inner("create", ("partitions", "config"), "{partitions: 4}")
    made = None
    if create is not None:
        partitions = create.text("partitions") or "-1"
        if not re.fullmatch(r"-1|[1-9]\d*", partitions):
            create.refuse(f"partitions {partitions!r} is not valid: allowed is a number of at least 1", "partitions")
            partitions = "-1"
        made = Creation(int(partitions), create.mapping("config"))
    return Sink(
        entry.name,
        entry.place,
        input=fields.text("from") or entry.name,
        topic=fields.text("topic"),
        key=fields.text("key"),
        exactly_once=fields.flag("exactly_once", True),
        create=made,
        format=fields.text("format"),
        path=fields.text("path"),
        mode=fields.choice("mode", "append", MODES),
        trigger=fields.duration("trigger"),
        batches=fields.flag("batches", False),
        partition_by=fields.texts("partition_by"),
        options=fields.mapping("options"),
    )
