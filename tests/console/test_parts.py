"""The parts of the console that need no cluster: history, plans of resets, filters, the tail's window, segments, payloads."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import ottla.console
from ottla.client.decoding import SCHEMA
from ottla.console.asking import BadRequest
from ottla.console.disks import dirty_share
from ottla.console.history import History
from ottla.console.payloads import shown
from ottla.console.resets import Ends, Step, plan, target_of
from ottla.console.searching import COLUMNS, Filter
from ottla.console.segments import directories, segments
from ottla.console.tailing import Window
from ottla.model import TopicPartition
from ottla.storage.checkpoints import CLEANER_POINTS, MetaProperties, offsets_table, write_meta_properties

TP = TopicPartition("t", 0)
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function")


def test_history_keeps_so_many_points_of_so_many_lines() -> None:
    history = History(points=3, lines=2)
    history.add(1000, {("a",): 1, ("b",): 2, ("one too many",): 3})
    history.add(2000, {("a",): 4})
    assert history.times() == [1000, 2000]
    assert (history.line(("a",)), history.line(("b",))) == ([1, 4], [2, None])
    assert history.line(("one too many",)) == [None, None]
    for now in (3000, 4000, 5000):
        history.add(now, {("a",): 5})
    assert history.times() == [3000, 4000, 5000]
    assert history.keys() == [("a",)]  # the other was not fed for a whole round
    assert (history.line(("a",), 2), history.newest(("a",)), history.newest(("b",))) == ([5, 5], 5, None)


@pytest.mark.parametrize(
    ("strategy", "value", "now", "expected"),
    [
        ("earliest", 0, 50, [Step(TP, 50, 10)]),
        ("latest", 0, 50, [Step(TP, 50, 100)]),
        ("offset", 70, None, [Step(TP, None, 70)]),
        ("offset", 5, 50, [Step(TP, 50, 10)]),  # the log begins later
        ("shift", -20, 50, [Step(TP, 50, 30)]),
        ("shift", 500, 50, [Step(TP, 50, 100)]),  # and ends before that
        ("shift", 5, None, []),  # from nowhere there is no shift
        ("time", 1, 50, [Step(TP, 50, 44)]),
        ("ago", 1, 50, [Step(TP, 50, 44)]),
    ],
)
def test_plan_of_a_reset(strategy: str, value: int, now: int | None, expected: list[Step]) -> None:
    committed = {} if now is None else {TP: now}
    assert plan([TP], committed, {TP: Ends(10, 100)}, target_of(strategy, value, {TP: 44})) == expected


def test_a_time_after_the_last_record_is_the_end() -> None:
    assert plan([TP], {}, {TP: Ends(10, 100)}, target_of("time", 1, {TP: -1})) == [Step(TP, None, 100)]


def batch(*rows: tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]) -> pa.RecordBatch:
    """Records with key, value and headers, at offsets from 0 on."""
    columns = {
        "key": [row[0] for row in rows],
        "value": [row[1] for row in rows],
        "partition": [0] * len(rows),
        "offset": list(range(len(rows))),
        "timestamp": [offset * 1000 for offset in range(len(rows))],
        "timestampType": [0] * len(rows),
        "headers": [None if row[2] is None else [{"key": key, "value": value} for key, value in row[2]] for row in rows],
    }
    arrays = [pa.array(columns[name], SCHEMA.field(name).type) for name in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in COLUMNS]))


ROWS = batch(
    (b"Anna", b'{"city": "Praha"}', None),
    (None, b"\xff\x00 praha \x00", []),
    (b"b", None, [("trace", b"1"), ("City", b"Brno")]),
    (b"", b"", [("empty", None)]),
    (b"a.c", b"ac", None),
)


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (Filter(), [0, 1, 2, 3, 4]),
        (Filter("praha"), [0, 1]),
        (Filter("Praha", ignore_case=False), [0]),
        (Filter("city"), [0, 2]),
        (Filter("city", fields=("headers",)), [2]),
        (Filter("brno", fields=("key", "value")), []),
        (Filter("A", fields=("key",)), [0, 4]),
        (Filter("a.c", mode="exact"), [4]),
        (Filter("ANNA", mode="exact"), [0]),
        (Filter("ANNA", mode="exact", ignore_case=False), []),
        (Filter("^a.*[ac]$", mode="regex"), [0, 4]),
    ],
)
def test_filter(wanted: Filter, offsets: list[int]) -> None:
    wanted.check()
    assert wanted.of(ROWS).column("offset").to_pylist() == offsets


@pytest.mark.parametrize("wanted", [Filter("(", mode="regex"), Filter("x", mode="like"), Filter("x", fields=("topic",))])
def test_what_cannot_be_searched_for(wanted: Filter) -> None:
    with pytest.raises(BadRequest):
        wanted.check()


def test_the_tail_shows_the_newest_and_counts_the_rest() -> None:
    window = Window(3)
    for _ in range(4):
        window.add(10, ROWS)
    news = window.take()
    assert [row["offset"] for row in news["rows"]] == [2, 3, 4]
    assert (news["read"], news["skipped"]) == (40, 17)
    assert window.take() == {"rows": [], "read": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("data", "limit", "expected"),
    [
        (None, None, None),
        (b"", None, {"size": 0, "text": ""}),
        ("größe".encode(), None, {"size": 7, "text": "größe"}),
        (b"\xff\x00", None, {"size": 2, "base64": "/wA="}),
        ("aaaö".encode(), 4, {"size": 5, "cut": True, "text": "aaa"}),  # cut within a character
        (b"\xff\xff\xff\xff\xff\xff", 5, {"size": 6, "cut": True, "base64": "//////8="}),
    ],
)
def test_payloads(data: bytes | None, limit: int | None, expected: object) -> None:
    assert shown(data, limit) == expected


def test_segments_of_a_log_on_this_machine(tmp_path: Path) -> None:
    write_meta_properties(str(tmp_path), MetaProperties(4, "cluster"), 0)
    (tmp_path / CLEANER_POINTS).write_bytes(offsets_table({TP: 20}))
    place = tmp_path / "t-0"
    place.mkdir()
    for base, size in ((0, 100), (10, 50), (20, 30), (30, 7)):
        (place / f"{base:020}.log").write_bytes(bytes(size))
    (place / f"{0:020}.timeindex").write_bytes(struct.pack(">qi", 5000, 3) + struct.pack(">qi", 7000, 9))
    (place / f"{30:020}.timeindex").write_bytes(struct.pack(">qi", 9000, 1) + bytes(12 * 1000))  # room for more
    (place / f"{40:020}.log.deleted").write_bytes(b"gone soon")
    (directory,) = directories([str(tmp_path), "/no/such/place"])
    assert directory.broker == 4
    found = segments(directory, TP)
    assert [(one.base_offset, one.size, one.dirty, one.active) for one in found] == [
        (0, 100, False, False), (10, 50, False, False), (20, 30, True, False), (30, 7, False, True),
    ]  # fmt: skip
    assert (found[0].newest_ms, found[3].newest_ms) == (7000, 9000)
    assert found[1].newest_ms == os.stat(place / f"{10:020}.log").st_mtime_ns // 1_000_000
    assert dirty_share(found) == 30 / 180
    assert segments(directory, TopicPartition("other", 0)) == []


def test_no_text_can_become_markup() -> None:
    """Whatever a cluster says goes through text nodes: nothing in the page's scripts parses markup or runs text."""
    files = list((Path(ottla.console.__file__).parent / "static").rglob("*.js"))
    assert len(files) > 10
    for file in files:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function", file.read_text()
        )


@pytest.mark.parametrize(
    ("module", "absent"),
    [("ottla.console.serving", "pyarrow"), ("ottla.console.worker", "starlette"), ("ottla.console.jobs", "starlette")],
)
def test_what_one_process_needs_is_not_loaded_by_the_other(module: str, absent: str) -> None:
    program = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
