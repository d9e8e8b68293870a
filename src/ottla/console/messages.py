"""Messages of a topic: search, follow, look at one, send one. Arrow is loaded by the first of them, not before."""

from __future__ import annotations

import base64
import secrets
import threading
from collections import OrderedDict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ottla.client.internal_topics import OffsetsRecords, TransactionRecords, decoder_of
from ottla.console import state
from ottla.console.answers import BadRequest, Body, number, status_of
from ottla.console.payloads import given, row
from ottla.console.streams import Say, stream
from ottla.model import KafkaError, TopicPartition
from ottla.wire.schema import Malformed

if TYPE_CHECKING:
    from ottla.console.searching import Filter, Spans

_STARTS = ("newest", "oldest", "offset", "time")
_MOST_HITS = 1_000
_RESUMES = 64


class Left(NamedTuple):
    """What a search has not looked at, and what of it the page has already."""

    spans: Spans
    backwards: bool
    told: frozenset[tuple[int, int]]


class Resumes:
    """Where searches stopped that found enough: a page that wants more comes back with a name for it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Left] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, left: Left) -> str | None:
        """A name for what is left; None where nothing is."""
        if all(span.first >= span.last for span in left.spans.values()):
            return None
        name = secrets.token_urlsafe(9)
        with self._lock:
            self._kept[name] = left
            while len(self._kept) > _RESUMES:
                self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> Left:
        with self._lock:
            if name not in self._kept:
                raise BadRequest("That search is too long ago to go on with: begin it again.")
            return self._kept[name]


_resumes = Resumes()


async def search(request: Request) -> Response:
    """Hits and progress as events; the last one says how to go on."""
    console, asked = state.of(request), request.query_params
    topic = request.path_params["topic"]
    wanted = await _prepare(asked)
    if isinstance(wanted, Response):
        return wanted

    def work(say: Say) -> None:
        from ottla.console import searching  # noqa: PLC0415 - with Arrow

        start, isolation = asked.get("from", "newest"), _isolation(asked.get("isolation"))
        if asked.get("resume"):
            spans, backwards, told = _resumes.get(asked["resume"])
        else:
            backwards, told = start == "newest", frozenset()
            spans = searching.all_of(console.cluster, topic, _partitions(asked.get("partitions", "")), isolation)
            if start == "offset":
                spans = searching.from_offset(spans, number("offset", asked.get("at"), 0))
            elif start == "time":
                spans = searching.from_time(console.cluster, spans, number("time", asked.get("at"), 0))
            elif start not in _STARTS:
                raise BadRequest(f"from is not valid: allowed are {', '.join(_STARTS)}.")
        limit = number("limit", asked.get("limit", 100), 1, _MOST_HITS)
        one = searching.Search(console.cluster, spans, wanted, limit, _decoding(topic, say), isolation, told)
        try:
            if any(span.last > span.first for span in spans.values()):
                one.backwards() if backwards else one.forwards()
        finally:
            searching.give_back()
        left = Left(one.left, backwards, frozenset(one.told))
        say("done", {"found": one.found, "resume": _resumes.keep(left) if one.found >= limit else None})

    return stream(work)


async def follow(request: Request) -> Response:
    """What is written from now on, as events."""
    console, asked = state.of(request), request.query_params
    topic = request.path_params["topic"]
    wanted = await _prepare(asked)
    if isinstance(wanted, Response):
        return wanted

    def work(say: Say) -> None:
        from ottla.console.searching import give_back  # noqa: PLC0415 - with Arrow
        from ottla.console.tailing import follow  # noqa: PLC0415

        partitions = _partitions(asked.get("partitions", ""))
        try:
            follow(console.cluster, topic, partitions, wanted, _decoding(topic, say), _isolation(asked.get("isolation")))
        finally:
            give_back()

    return stream(work)


async def _prepare(asked: Any) -> Filter | Response:
    """The filter of a request; problems are told before the stream begins."""

    def prepare() -> Filter:
        try:
            from ottla.console.searching import FIELDS, Filter  # noqa: PLC0415 - with Arrow
        except ImportError:
            raise BadRequest('Messages need pyarrow: pip install "ottla[console]"', HTTPStatus.NOT_IMPLEMENTED) from None
        fields = tuple(filter(None, asked.get("in", "").split(","))) or FIELDS
        wanted = Filter(asked.get("q", ""), fields, asked.get("mode", "contains"), asked.get("case") != "exact")
        wanted.check()
        return wanted

    try:
        return await run_in_threadpool(prepare)
    except BadRequest as problem:
        return JSONResponse({"error": str(problem)}, problem.status)
    except KafkaError as problem:
        return JSONResponse({"error": str(problem)}, status_of(problem))


def _partitions(text: str) -> list[int] | None:
    """`3` or `0,4-7`; nothing means all."""
    found: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        wanted = range(number("partition", first, 0, 1 << 30), number("partition", last if dash else first, 0, 1 << 30) + 1)
        if len(found) + len(wanted) > 100_000:
            raise BadRequest("So many partitions are not there.")
        found += wanted
    return sorted(set(found)) or None


def _isolation(text: str | None) -> str:
    return "read_committed" if text == "read_committed" else "read_uncommitted"


# ---- internal topics -----------------------------------------------------------------------------------------------------


def _decoding(topic: str, say: Say) -> Say:
    """Records of internal topics are told of with what they mean; lists are cut, but these are short."""
    decoder = decoder_of(topic)
    if decoder is None:
        return say

    def with_meaning(kind: str, data: Any) -> None:
        for one in data.get("rows", ()):
            one["decoded"] = decoded(decoder, one)
        say(kind, data)

    return with_meaning


def decoded(decoder: OffsetsRecords | TransactionRecords, shown: dict[str, Any]) -> dict[str, Any] | None:
    """The meaning of a record as `payloads.row` shows it; None where it has none or was cut."""
    key, value = _bytes(shown["key"]), _bytes(shown["value"])
    if key is None or (shown["value"] is not None and value is None):
        return None
    try:
        kind, fields = decoder.key(key)
        meaning: dict[str, Any] = {"key": {"type": kind, **fields}, "value": None}
        if value is not None:
            version, content = decoder.value(kind, value)
            meaning["value"] = {"version": version, **content}
        return meaning
    except Malformed as problem:
        return {"error": str(problem)}


def _bytes(shown: dict[str, Any] | None) -> bytes | None:
    if shown is None or shown.get("cut"):
        return None
    return shown["text"].encode() if "text" in shown else base64.b64decode(shown["base64"])


# ---- one message ---------------------------------------------------------------------------------------------------------


def one(request: Request) -> object:
    """A message whole."""
    from ottla.console.searching import one_record  # noqa: PLC0415 - with Arrow

    topic = request.path_params["topic"]
    tp = TopicPartition(topic, number("partition", request.path_params["partition"], 0))
    offset = number("offset", request.path_params["offset"], 0)
    record = one_record(state.of(request).cluster, tp, offset)
    if record is None:
        raise BadRequest(
            f"There is no message at offset {offset} of {tp}: compacted, aborted or a marker.", HTTPStatus.NOT_FOUND
        )
    shown = row(record, None)
    decoder = decoder_of(topic)
    return {**shown, "decoded": decoded(decoder, shown)} if decoder is not None else shown


def send(request: Request, body: Body) -> object:
    """Write one message; where it came to stand."""
    from ottla.client.writing import write  # noqa: PLC0415 - with Arrow
    from ottla.console.searching import written  # noqa: PLC0415

    topic = request.path_params["topic"]
    partition = body.number("partition", 0, 1 << 30) if body.has("partition") else None
    headers = [(one.text("name"), given(one.part("value"), "header")) for one in body.items("headers")]
    table = written(given(body.part("key"), "key"), given(body.part("value"), "value"), partition, headers)
    console = state.of(request)
    if partition is not None and partition not in console.cluster.topic(topic, fresh=True).partitions:
        raise BadRequest(f"Partition {partition} of topic {topic} does not exist.")
    ((tp, place),) = write(topic, table, cluster=console.cluster).items()
    return {"partition": tp.partition, "offset": place.first}
