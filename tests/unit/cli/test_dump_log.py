"""`ottla dump-log`: what it shows of sound files and of broken ones, as text and as JSON, and how it follows a log.

The lines are Apache Kafka's, as its own tool prints them for such bytes: `tests/disk/test_dump_log_same_facts.py` asks it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack, pack_into
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli import dump_indexes, dump_segments, main
from ottla.cli.dump_entries import Entry, Row
from ottla.cli.dump_indexes import OFFSET_ENTRY, IndexFile, dump_offset_index
from ottla.cli.dump_log import Dump, command
from ottla.cli.dump_output import NON_CONSECUTIVE, Findings, Shown, TextOutput, java_text
from ottla.cli.dump_segments import LogView
from ottla.records.batch import ControlType, Record, TimestampType, build, end_transaction_marker, read_header
from ottla.records.codecs import Codec
from ottla.records.legacy import write_messages
from ottla.storage import snapshots
from ottla.storage.producers import Producer, SentBatch
from ottla.wire.apis import group_records, transaction_records
from ottla.wire.schema import encode_versioned

NOW = 1_700_000_000_000
NAME = "00000000000000000000"


def record(offset: int, key: bytes | None = b"k", value: bytes | None = b"v") -> Record:
    return Record(offset, NOW + offset, key, value)


def batch(offset: int, count: int = 2, **options: Any) -> bytes:
    return build([record(offset + n) for n in range(count)], base_offset=offset, **options)


def write(directory: Path, *parts: bytes, suffix: str = ".log", name: str = NAME) -> Path:
    path = directory / f"{name}{suffix}"
    path.write_bytes(b"".join(parts))
    return path


def dump(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def shown(path: Path, *options: str) -> list[str]:
    """What is printed for one sound .log, without the two lines before it."""
    result = dump(*options, "--files", path)
    assert result.exit_code == 0, result.output
    lines: list[str] = result.stdout.split("\n")
    assert lines[:2] == [f"Dumping {path}", "Log starting offset: 0"]
    assert lines[-1] == ""
    return lines[2:-1]


def objects(*arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump("--format", "json", *arguments).stdout.splitlines()]


# Sound files


def test_a_batch_and_its_records(tmp_path: Path) -> None:
    first = [Record(8, NOW + 8, b"k", b"v", (("h", b"x"), ("a,b", None))), Record(9, NOW + 9, None, None)]
    data = build(first, base_offset=8, producer_id=7, producer_epoch=2, base_sequence=2**31 - 1, leader_epoch=3)
    path = write(tmp_path, data)
    crc = read_header(data).crc
    head = (
        "baseOffset: 8 lastOffset: 9 count: 2 baseSequence: 2147483647 lastSequence: 0 producerId: 7 producerEpoch: 2 "
        "partitionLeaderEpoch: 3 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty position: 0 "
        f"CreateTime: 1700000000009 size: {len(data)} magic: 2 compresscodec: none crc: {crc} isvalid: true"
    )
    one = "| offset: 8 CreateTime: 1700000000008 keySize: 1 valueSize: 1 sequence: 2147483647 headerKeys: [h,a,b]"
    two = "| offset: 9 CreateTime: 1700000000009 keySize: -1 valueSize: -1 sequence: 0 headerKeys: []"
    assert shown(path) == [head]
    assert shown(path, "--deep-iteration") == [head, one, two]
    assert shown(path, "--print-data-log") == [head, one + " key: k payload: v", two]
    assert shown(path, "--print-data-log", "--skip-record-metadata") == [head, "| key: k payload: v", ""]
    assert shown(path, "--value-decoder-class") == [head, one + " key: k payload: v", two]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(tmp_path: Path, codec: Codec) -> None:
    lines = shown(write(tmp_path, batch(0, 3, codec=codec)), "--print-data-log")
    assert f" compresscodec: {codec.label} " in lines[0]
    assert [line.split(" headerKeys: [] ")[1] for line in lines[1:]] == ["key: k payload: v"] * 3


def test_old_formats(tmp_path: Path) -> None:
    pair = [record(4), record(5, None, None)]
    old = write_messages(pair, 0) + write_messages(
        [record(6), record(7)], 1, codec=Codec.GZIP, timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    lines = shown(write(tmp_path, old), "--print-data-log")
    assert lines[:4] == [
        "offset: 4 position: 0 NoTimestampType: -1 size: 28 magic: 0 compresscodec: none crc: 535615242 isvalid: true",
        "| offset: 4 NoTimestampType: -1 keySize: 1 valueSize: 1 isValid: true crc: 535615242} key: k payload: v",
        "offset: 5 position: 28 NoTimestampType: -1 size: 26 magic: 0 compresscodec: none crc: 2817288195 isvalid: true",
        "| offset: 5 NoTimestampType: -1 keySize: -1 valueSize: -1 isValid: true crc: 2817288195}",
    ]
    assert lines[4].startswith("offset: 7 position: 54 LogAppendTime: 1700000000007 size: ")
    assert [line.partition(" keySize")[0] for line in lines[5:]] == [
        "| offset: 6 LogAppendTime: 1700000000007",
        "| offset: 7 LogAppendTime: 1700000000007",
    ]


def test_control_records(tmp_path: Path) -> None:
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=2, coordinator_epoch=5, timestamp=NOW, base_offset=0
    )
    other = build([Record(1, NOW, pack(">hh", 0, 99), b"\0\0")], base_offset=1, control=True)
    lines = shown(write(tmp_path, marker, other), "--print-data-log")
    assert " isTransactional: true isControl: true " in lines[0]
    assert lines[1].endswith(" headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 5")
    assert lines[3].endswith(" headerKeys: [] controlType: UNKNOWN(99)")


def test_a_part_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0), batch(2))
    size = len(batch(0))
    assert [line.split()[1] for line in shown(path, "--max-bytes", str(2 * size))] == ["0", "2"]
    assert [line.split()[1] for line in shown(path, "--max-bytes", str(2 * size - 1))] == ["0"]


def test_gaps_are_told_at_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0, 1), batch(3, 1), batch(4, 1), batch(9, 1))
    result = dump("--deep-iteration", "--files", path)
    assert result.exit_code == 0
    assert result.stderr == f"Non-consecutive offsets in {path}\n  4 is followed by 9\n  0 is followed by 3\n"
    assert dump("--files", path).stderr == ""


def test_many_findings_keep_their_order() -> None:
    findings = Findings()
    for number in range(20_000):
        findings.add(NON_CONSECUTIVE, "/a", number, number + 2)
    lines = list(findings.lines())
    assert lines[0] == "Non-consecutive offsets in /a"
    assert lines[1:] == [f"  {number} is followed by {number + 2}" for number in reversed(range(20_000))]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"abc", "abc"),
        ("é€😀".encode(), "é€😀"),
        (b"\xff\xfe\x80a", "���a"),
        (b"\xe2\x82", "�"),
        (b"\xed\xa0\x80", "�"),  # half a surrogate pair: one sign in Java
        (b"a\xed\xb0\x80b\xff", "a�b�"),
    ],
)
def test_bytes_that_are_no_text_are_shown_as_java_does(data: bytes, text: str) -> None:
    assert java_text(data) == text


def test_a_terminal_gets_no_codes_and_a_file_gets_all_bytes() -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    data = batch(0, 1)
    entry = Entry(0, read_header(data), memoryview(data))
    for stream, expected in ((Terminal(), b"\\x1b[2J\\x0a"), (io.BytesIO(), b"\x1b[2J\n")):
        output = TextOutput(stream)
        output.record(entry, Row(0, NOW, -1, 5, None, b""), None, (None, Shown("\x1b[2J\n", None)))
        output.flush()
        assert stream.getvalue() == (
            b"| offset: 0 CreateTime: %d keySize: -1 valueSize: 5 sequence: -1 headerKeys: [] payload: %s\n" % (NOW, expected)
        )


# Damage


def patched(data: bytes, layout: str, at: int, value: int) -> bytes:
    changed = bytearray(data)
    pack_into(layout, changed, at, value)
    return bytes(changed)


def zipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[75] ^= 0xFF
    return bytes(changed)


@pytest.mark.parametrize(
    ("broken", "records", "words"),
    [
        (patched(batch(0), ">i", 57, 3), 2, "Incorrect declared batch size, premature EOF reached"),
        (patched(batch(0), ">i", 57, 1), 1, "Incorrect declared batch size, records still remaining in file"),
        (patched(batch(0), ">i", 57, -1), 0, "Found invalid record count -1 in magic v2 batch"),
        (patched(batch(0), ">h", 21, 7), 0, "Unknown compression type id: 7"),
        (patched(batch(0), ">b", len(batch(0)) - 1, 1), 1, "Found invalid record structure at byte 9 of 18 in the records"),
        (zipped(batch(0, 9, codec=Codec.GZIP)), 0, "Failed to decompress record stream: gzip data cannot be unpacked"),
        (
            build([Record(0, NOW, b"\0", b"")], control=True),
            1,
            "Invalid value size found for end control record key. Must have at least 4 bytes, but found only 1",
        ),
        (
            build([Record(0, NOW, bytes(4), b"")], control=True),
            1,
            "Invalid value size found for end transaction marker. Must have at least 6 bytes, but found only 0",
        ),
        (patched(batch(0)[:40], ">i", 8, 28), 0, "Found a batch of 40 bytes, smaller than its header (61)"),
        (patched(write_messages([record(0)], 0), ">i", 18, 99), 0, "Found a key or value of 99 bytes where 6 are left"),
        (patched(write_messages([record(0)], 1), ">b", 17, 5), 0, "Unknown compression type id: 5"),
    ],
)
def test_damage_inside_a_batch_ends_that_batch(tmp_path: Path, broken: bytes, records: int, words: str) -> None:
    path = write(tmp_path, broken, batch(100))
    result = dump("--print-data-log", "--files", path)
    assert result.exit_code == 1
    complaint = result.stderr.splitlines()[0]
    assert complaint.startswith(words), complaint
    assert complaint.endswith(f"(the batch at offset 0, position 0 of {path})")
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert [line.split()[2] for line in lines] == [*map(str, range(records)), "100", "101"]


def test_a_checksum_that_is_wrong_is_told_in_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, patched(batch(0), ">I", 17, 1), batch(2), patched(write_messages([record(4)], 1), ">I", 12, 1))
    assert [line.rpartition(" ")[2] for line in shown(path)] == ["false", "true", "false"]
    assert "isValid: false crc: 1}" in shown(path, "--deep-iteration")[-1]


@pytest.mark.parametrize("length", [0, 5, 13, -1])
def test_a_length_that_cannot_be_ends_the_file_but_not_the_dump(tmp_path: Path, length: int) -> None:
    path = write(tmp_path, batch(0), patched(batch(2), ">i", 8, length))
    other = write(tmp_path, batch(7), name="00000000000000000007")
    result = dump("--files", f"{path},{other}")
    assert result.exit_code == 1
    assert result.stderr == f"Found record size {length} smaller than minimum record overhead (14) in file {path}.\n"
    assert [line.split()[1] for line in result.stdout.splitlines() if "baseOffset" in line] == ["0", "7"]


@pytest.mark.parametrize("kept", [1, 17, 40, 70])
def test_what_is_left_at_the_end(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, batch(0), batch(2)[:kept])
    assert shown(path)[1:] == [f"Found {kept} invalid bytes at the end of {NAME}.log"]
    assert objects("--files", path)[1:] == [
        {"type": "invalidBytes", "file": str(path), "position": len(batch(0)), "count": kept}
    ]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (f"{NAME}.log", 1, "ottla dump-log: {path} does not exist"),
        (f"{NAME}.index", 1, "ottla dump-log: {stem}.log does not exist"),
        (f"{NAME}.timeindex", 1, "ottla dump-log: {stem}.log does not exist"),
        (f"{NAME}.snapshot", 1, "ottla dump-log: {path} does not exist"),
        (f"{NAME}.txnindex", 0, "ottla dump-log: {path} does not exist"),  # most segments have none
        (f"{NAME}.checkpoint", 1, "ottla dump-log: {path}: snapshots of KRaft's metadata are not supported"),
        (f"{NAME}.log.deleted", 0, "Ignoring unknown file {path}"),
        ("no-suffix", 0, "Ignoring unknown file {path}"),
        ("name.log", 1, "{path}: its name must begin with an offset, as in 00000000000000000000.log"),
    ],
)
def test_files_that_are_not_there(tmp_path: Path, name: str, code: int, words: str) -> None:
    path = tmp_path / name
    result = dump("--files", path)
    assert result.exit_code == code
    assert result.stderr == words.format(path=path, stem=tmp_path / NAME) + "\n"
    assert result.stdout.startswith(f"Dumping {path}\n")


def test_a_directory_and_a_file_without_permission_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / f"{NAME}.log"
    path.mkdir()
    result = dump("--files", path)
    assert (result.exit_code, result.stderr) == (1, f"ottla dump-log: {path} cannot be read: Is a directory\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--files'"),
        (["--files", "a", "--max-bytes", "x"], "Invalid value for '--max-bytes': 'x' is not a valid number of bytes"),
        (
            ["--files", "a", "--cluster-metadata-decoder"],
            "the decoders for KRaft's metadata and for remote log metadata are not",
        ),
        (["--files", "a.index", "--follow"], "--follow needs a .log file as the last of --files, not a.index"),
        (["--files", "a.log", "--follow", "--max-bytes", "5"], "--follow and --max-bytes do not go together"),
        (["--files", "a", "--key-decoder-class", "com.example.Mine"], "com.example.Mine is not a decoder: allowed are"),
        (["--files", "a", "--value-decoder-class", "no_such:f"], "no_such:f cannot be loaded: ModuleNotFoundError: "),
        (["--files", "a", "--value-decoder-class", "json:f"], "json:f cannot be loaded: AttributeError: "),
        (["--files", "a", "--value-decoder-class", "sys:path"], "sys:path is not a function"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], words: str) -> None:
    result = dump(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"ottla dump-log: {words}")
    assert result.stderr.count("\n") == 1


# Decoders


@pytest.mark.parametrize(
    ("decoder", "data", "text", "said"),
    [
        ("org.apache.kafka.tools.api.StringDecoder", b"abc", "abc", {"payload": "abc"}),
        ("kafka.serializer.StringDecoder", b"\xff", "�", {"payloadBase64": "/w=="}),
        ("kafka.serializer.DefaultDecoder", b"\x00\xff", "00ff", {"payload": "00ff"}),
        ("org.apache.kafka.tools.api.IntegerDecoder", pack(">i", -7), "-7", {"payload": -7}),
        ("kafka.serializer.LongDecoder", pack(">q", 1 << 40), "1099511627776", {"payload": 1 << 40}),
        ("binascii:hexlify", b"a", "b'61'", {"payload": "61"}),
        ("json:loads", b'{"a": 1}', "{'a': 1}", {"payload": {"a": 1}}),
        ("builtins:frozenset", b"", "frozenset()", {"payload": "frozenset()"}),
    ],
)
def test_decoders(tmp_path: Path, decoder: str, data: bytes, text: str, said: dict[str, object]) -> None:
    path = write(tmp_path, build([record(0, None, data)]))
    assert shown(path, "--skip-record-metadata", "--value-decoder-class", decoder)[1] == f"| payload: {text}"
    assert objects("--files", path, "--skip-record-metadata", "--value-decoder-class", decoder)[1] == {
        "type": "record",
        "file": str(path),
        "offset": 0,
        **said,
    }


def test_a_function_beside_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_decoder.py").write_text("def upper(data): return data.decode().upper()\n")
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, batch(0, 1))
    lines = shown(path, "--skip-record-metadata", "--value-decoder-class", "my_own_decoder:upper")
    assert lines[1] == "| key: k payload: V"


@pytest.mark.parametrize("decoder", ["kafka.serializer.LongDecoder", "json:loads"])
def test_a_decoder_that_fails_is_told_in_its_place(tmp_path: Path, decoder: str) -> None:
    path = write(tmp_path, batch(0, 2))
    lines = shown(path, "--skip-record-metadata", "--value-decoder-class", decoder)
    assert [line.partition(".")[0] for line in lines[1:]] == [
        f"| key: k payload: Error at offset {offset}, skipping" for offset in (0, 1)
    ]


OFFSET_KEY = encode_versioned(group_records.OffsetCommitKey(group="g", topic="t", partition=3), 1)
OFFSET_SHOWN = '{"type":"1","data":{"group":"g","topic":"t","partition":3}}'


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            OFFSET_KEY,
            encode_versioned(group_records.OffsetCommitValue(offset=5, metadata="é", commit_timestamp=NOW), 3),
            f"key: {OFFSET_SHOWN} payload: "
            f'{{"version":"3","data":{{"offset":5,"leaderEpoch":-1,"metadata":"é","commitTimestamp":{NOW}}}}}',
        ),
        (OFFSET_KEY, None, f"key: {OFFSET_SHOWN} payload: <DELETE>"),
        (b"\0\x63", b"", "key: Unknown record type 99 at offset 0, skipping."),
        (b"\0", b"", "key: Error at offset 0, skipping. Could not read version from key's buffer."),
        (OFFSET_KEY, b"", "key: Error at offset 0, skipping. Could not read version from value's buffer."),
        (
            OFFSET_KEY,
            b"\0\x20",
            "key: Error at offset 0, skipping. Could not read record with version 32 from value's buffer due to: "
            "OffsetCommitValue is known in versions 0-4, not 32.",
        ),
        (
            None,
            b"v",
            "key: Failed to decode message at offset 0 using offset topic decoder (message had a missing key)",
        ),
    ],
)
def test_the_offsets_decoder(tmp_path: Path, key: bytes | None, value: bytes | None, line: str) -> None:
    path = write(tmp_path, build([record(0, key, value)]))
    assert shown(path, "--offsets-decoder", "--skip-record-metadata")[1] == f"| {line}"


def transaction(status: int, version: int = 0) -> bytes:
    value = transaction_records.TransactionLogValue(
        producer_id=4,
        producer_epoch=2,
        transaction_timeout_ms=60_000,
        transaction_status=status,
        transaction_partitions=[transaction_records.TransactionPartitions(topic="b", partition_ids=[2, 1])],
        transaction_last_update_timestamp_ms=NOW,
        transaction_start_timestamp_ms=NOW,
    )
    return encode_versioned(value, version)


TRANSACTION_KEY = encode_versioned(transaction_records.TransactionLogKey(transactional_id="tx"), 0)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            TRANSACTION_KEY,
            transaction(1),
            "key: transaction_metadata::transactionalId=tx payload: producerId:4,producerEpoch:2,state=Ongoing,"
            f"partitions=[b-2,b-1],txnLastUpdateTimestamp={NOW},txnTimeoutMs=60000",
        ),
        (TRANSACTION_KEY, None, "key: transaction_metadata::transactionalId=tx payload: <DELETE>"),
        (b"\0\5abc", b"", "key: unknown::version=5"),
        (
            TRANSACTION_KEY,
            transaction(77),
            "key: Error at offset 0, skipping. Unknown transaction state id 77 from the transaction status message",
        ),
        (
            TRANSACTION_KEY,
            b"\0\7",
            "key: Error at offset 0, skipping. Unknown version 7 from the transaction log message value",
        ),
        (None, b"v", "key: Error at offset 0, skipping. A transaction log record without a key"),
    ],
)
def test_the_transaction_log_decoder(tmp_path: Path, key: bytes | None, value: bytes | None, line: str) -> None:
    path = write(tmp_path, build([record(0, key, value)]))
    assert shown(path, "--transaction-log-decoder", "--skip-record-metadata")[1] == f"| {line}"


# Indexes, aborted transactions, snapshots


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Five batches of two records; batch n begins at n * 79 bytes and ends with offset 2n + 1."""
    assert len(batch(0)) == 79
    write(tmp_path, *(batch(2 * n) for n in range(5)))
    write(tmp_path, pack(">ii", 3, 79) + pack(">ii", 7, 237), suffix=".index")
    return tmp_path


@pytest.mark.parametrize(
    ("entries", "lines", "found"),
    [
        ([(3, 79), (7, 237)], ["offset: 3 position: 79", "offset: 7 position: 237"], []),
        ([(3, 79), (0, 0), (0, 0)], ["offset: 3 position: 79"], []),  # the tail of an active segment's
        (
            [(4, 79), (8, 237)],
            ["offset: 4 position: 79", "offset: 8 position: 237"],
            ["Mismatches in :{path}", "  Index offset: 8, log offset: 7", "  Index offset: 4, log offset: 3"],
        ),
        (
            [(3, 80)],
            [],
            ["No whole batch of at most 5242880 bytes is at position 80 of {log}, to which {path} points for offset 3"],
        ),
        ([(3, 999)], [], ["Slice from position 999 exceeds end position of {log} (395 bytes)"]),
        ([(3, -1)], [], ["Invalid position: -1 in read from {log} (395 bytes)"]),
    ],
)
def test_an_offset_index(segment: Path, entries: list[tuple[int, int]], lines: list[str], found: list[str]) -> None:
    path = write(segment, *(pack(">ii", *entry) for entry in entries), suffix=".index")
    expected = [line.format(path=path, log=segment / f"{NAME}.log") for line in found]
    result = dump("--files", path)
    assert result.stdout.splitlines() == [f"Dumping {path}", *lines]
    assert result.stderr.splitlines() == expected
    assert result.exit_code == (1 if found and not found[0].startswith("Mismatches") else 0)
    quiet = dump("--verify-index-only", "--files", path)
    assert quiet.stdout.splitlines() == [f"Dumping {path}"]
    assert quiet.stderr.splitlines() == expected


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([(NOW + 3, 3), (NOW + 7, 7)], []),
        ([(NOW + 3, 3), (0, 0)], []),
        ([(NOW + 4, 3)], ["Found timestamp mismatch in :{path}", f"  Index timestamp: {NOW + 4}, log timestamp: {NOW + 3}"]),
        (
            [(NOW + 7, 7), (NOW + 3, 3)],
            [
                "Found out of order timestamp in :{path}",
                f"  Index timestamp: {NOW + 3}, Previously indexed timestamp: {NOW + 7}",
            ],
        ),
        (
            [(NOW + 4, 4), (NOW + 99, 99)],
            [
                "The following indexed offsets are not found in the log.",
                "Indexed offset: 4, found log offset: 5",
                "Indexed offset: 99, found log offset: -1",
            ],
        ),
    ],
)
def test_a_time_index(segment: Path, entries: list[tuple[int, int]], found: list[str]) -> None:
    path = write(segment, *(pack(">qi", *entry) for entry in entries), suffix=".timeindex")
    result = dump("--files", path)
    kept = [entry for entry in entries if entry != (0, 0)]
    assert result.stdout.splitlines() == [f"Dumping {path}", *(f"timestamp: {time} offset: {at}" for time, at in kept)]
    assert result.stderr.splitlines() == [line.format(path=path) for line in found]
    assert result.exit_code == 0
    assert [(entry["timestamp"], entry["offset"]) for entry in objects("--files", path)] == kept


_CORRUPT_INDEX = "Corrupt index found, index file {path} has non-zero size but the last"
_CORRUPT_TIME_INDEX = "Corrupt time index found, time index file ({path}) has non-zero size but the last"


@pytest.mark.parametrize(
    ("suffix", "content", "words"),
    [
        (".index", pack(">ii", 3, 79), None),
        (".index", b"", None),
        (".index", pack(">ii", -3, 79), f"{_CORRUPT_INDEX} offset is -3 which is less than the base offset 0"),
        (".index", bytes(11), "Index file {path} is corrupt, found 11 bytes which is neither positive nor a multiple of 8"),
        (".timeindex", pack(">qi", 5, 3), None),
        (".timeindex", b"", None),
        (
            ".timeindex",
            pack(">qiqi", 5, 3, 4, 4),
            f"{_CORRUPT_TIME_INDEX} timestamp is 4 which is less than the first timestamp 5",
        ),
        (".timeindex", pack(">qi", 5, -3), f"{_CORRUPT_TIME_INDEX} offset is -3 which is less than the first offset 0"),
        (
            ".timeindex",
            bytes(13),
            "Time index file {path} is corrupt, found 13 bytes which is neither positive nor a multiple of 12",
        ),
    ],
)
def test_sanity(segment: Path, suffix: str, content: bytes, words: str | None) -> None:
    path = write(segment, content, suffix=suffix)
    result = dump("--index-sanity-check", "--files", path)
    passed = f"{path} is empty." if suffix == ".index" and not content else f"{path} passed sanity check."
    assert result.stdout.splitlines()[1:] == ([] if words else [passed])
    assert result.stderr.splitlines() == ([words.format(path=path)] if words else [])
    assert result.exit_code == (1 if words else 0)


@pytest.mark.parametrize(("offset", "position"), [(100, 0), (102, 0), (103, 79), (106, 79), (107, 237), (999, 237)])
@pytest.mark.parametrize("tail", [0, 1000])
def test_where_to_look_for_an_offset(tmp_path: Path, offset: int, position: int, tail: int) -> None:
    """Also in the index of an active segment: without that, each look-up would begin at the start of the log."""
    content = pack(">iiii", 3, 79, 7, 237) + bytes(8 * tail)
    index = IndexFile(str(write(tmp_path, content, suffix=".index", name="00000000000000000100")), OFFSET_ENTRY)
    try:
        assert index.position_of(offset) == position
    finally:
        index.close()


def test_aborted_transactions(tmp_path: Path) -> None:
    one = pack(">hqqqq", 0, 7, 5, 9, 10)
    path = write(tmp_path, one, one[:-1], suffix=".txnindex")
    result = dump("--files", path)
    assert result.stdout.splitlines()[1:] == ["version: 0 producerId: 7 firstOffset: 5 lastOffset: 9 lastStableOffset: 10"]
    assert result.exit_code == 0
    assert objects("--files", path)[0]["lastStableOffset"] == 10
    write(tmp_path, pack(">h", 2) + one[2:], suffix=".txnindex")
    result = dump("--files", path)
    assert result.exit_code == 1
    assert result.stderr.startswith("Unexpected aborted transaction version 2 in transaction index")


def producers() -> list[Producer]:
    sent, silent = Producer(9, 1), Producer(3, 1)
    sent.batches.append(SentBatch(1, 149, 4, NOW))
    sent.last_timestamp, sent.transaction_start = NOW, 15
    return [sent, silent]


def test_a_snapshot(tmp_path: Path) -> None:
    path = write(tmp_path, snapshots.encode(producers()), suffix=".snapshot")
    assert dump("--files", path).stdout.splitlines()[1:] == [
        "producerId: 9 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[15] "
        f"lastTimestamp: {NOW} firstSequence: 2147483645 lastSequence: 1 lastOffset: 149 offsetDelta: 4 timestamp: {NOW}",
        "producerId: 3 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty lastTimestamp: -1 ",
    ]
    assert [entry["currentTxnFirstOffset"] for entry in objects("--files", path)] == [15, None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:5], "Snapshot failed schema validation: "),
        (lambda data: data[:-1], "Snapshot failed schema validation: "),
        (lambda data: b"\0\2" + data[2:], "Snapshot contained an unknown file version 2"),
        (lambda data: data[:-1] + b"\1", "Snapshot is corrupt (CRC is no longer valid). Stored crc: "),
    ],
)
def test_a_snapshot_that_is_broken(tmp_path: Path, change: Callable[[bytes], bytes], words: str) -> None:
    result = dump("--files", write(tmp_path, change(snapshots.encode(producers())), suffix=".snapshot"))
    assert result.exit_code == 1
    assert result.stderr.startswith(words)
    assert result.stderr.count("\n") == 1


# JSON


def test_json_says_what_the_lines_say(tmp_path: Path) -> None:
    headers = (("h", b"x"), ("n", None), ("b", b"\xff"))
    data = build([Record(0, NOW, b"k\n", b"\xff", headers)], codec=Codec.ZSTD)
    path = write(tmp_path, data, write_messages([record(1)], 1))
    found = objects("--print-data-log", "--files", path)
    assert found[0] == {
        "type": "batch",
        "file": str(path),
        "baseOffset": 0,
        "lastOffset": 0,
        "count": 1,
        "baseSequence": -1,
        "lastSequence": -1,
        "producerId": -1,
        "producerEpoch": -1,
        "partitionLeaderEpoch": -1,
        "isTransactional": False,
        "isControl": False,
        "deleteHorizonMs": None,
        "position": 0,
        "timestampType": "CreateTime",
        "maxTimestamp": NOW,
        "size": len(data),
        "magic": 2,
        "compressCodec": "zstd",
        "crc": read_header(data).crc,
        "isValid": True,
    }
    assert found[1] == {
        "type": "record",
        "file": str(path),
        "offset": 0,
        "timestampType": "CreateTime",
        "timestamp": NOW,
        "keySize": 2,
        "valueSize": 1,
        "sequence": -1,
        "headerKeys": ["h", "n", "b"],
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}, {"key": "b", "valueBase64": "/w=="}],
        "key": "k\n",
        "payloadBase64": "/w==",
    }
    assert (found[2]["offset"], found[2]["magic"], found[3]["isValid"]) == (1, 1, True)
    assert not {"headers", "key", "payload", "payloadBase64"} & set(objects("--deep-iteration", "--files", path)[1])


# Files that are being written


def test_what_is_appended_during_a_dump_is_not_called_invalid(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0))
    stream = io.BytesIO()
    output = TextOutput(stream)
    segment = dump_segments.SegmentDump(str(path), LogView(), output, Findings(), pytest.fail)
    segment.run()
    append(path, batch(2))()
    segment.finish()
    output.flush()
    assert "invalid bytes" not in stream.getvalue().decode()


def test_an_index_and_its_log_grow_during_a_dump(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has its full size from the start: new entries take the place of zeros."""
    monkeypatch.setattr(dump_indexes, "_CHUNK", 1)
    index, log = write(segment, pack(">ii", 3, 79), bytes(80), suffix=".index"), segment / f"{NAME}.log"

    class Growing(TextOutput):
        def offset_entry(self, offset: int, position: int) -> None:
            super().offset_entry(offset, position)
            if offset == 3:
                append(log, batch(10))()
                index.write_bytes(pack(">iiii", 3, 79, 11, 395) + bytes(72))

    stream, findings = io.BytesIO(), Findings()
    output = Growing(stream)
    dump_offset_index(str(index), output, findings, sanity_only=False, verify_only=False, max_message_size=1000)
    output.flush()
    assert stream.getvalue() == b"offset: 3 position: 79\noffset: 11 position: 395\n"
    assert not list(findings.lines())


# Following


class Script:
    """Waits that each do the next step; after the last one, Ctrl-C."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps: Iterator[Callable[[], object]] = iter(steps)

    def __call__(self) -> None:
        step = next(self._steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()


def followed(path: Path, *steps: Callable[[], object]) -> tuple[list[str], bool]:
    """The file and base offset lines of a dump that lives through the steps, and whether it found damage."""
    stream = io.BytesIO()
    one = Dump(TextOutput(stream), LogView(), False, False, 1)
    one.follow(str(path), Script(*steps))
    one.end()
    lines = stream.getvalue().decode().splitlines()
    kept = [line.split(" lastOffset")[0] for line in lines if not line.startswith("Log starting")]
    return [line.replace(f"Dumping {path.parent}/", "") for line in kept], one.damaged


def append(path: Path, data: bytes) -> Callable[[], object]:
    def step() -> None:
        with path.open("ab") as file:
            file.write(data)

    return step


def test_follow_shows_what_is_appended(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0))
    more = batch(4)
    lines, damaged = followed(path, append(path, batch(2)), append(path, more[:30]), append(path, more[30:]), lambda: None)
    assert lines == [f"{NAME}.log", "baseOffset: 0", "baseOffset: 2", "baseOffset: 4"]
    assert not damaged


def test_follow_goes_over_a_roll(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0))
    second, third = tmp_path / "00000000000000000004.log", tmp_path / "00000000000000000006.log"

    def roll() -> None:
        append(path, batch(2))()
        append(second, batch(4))()

    def roll_twice() -> None:
        append(third, batch(6))()
        (tmp_path / "00000000000000000008.log").write_bytes(b"")

    lines, damaged = followed(path, roll, roll_twice, append(tmp_path / "00000000000000000008.log", batch(8)))
    assert lines == [
        f"{NAME}.log",
        "baseOffset: 0",
        "baseOffset: 2",
        "00000000000000000004.log",
        "baseOffset: 4",
        "00000000000000000006.log",
        "baseOffset: 6",
        "00000000000000000008.log",
        "baseOffset: 8",
    ]
    assert not damaged


def test_follow_leaves_nothing_behind_at_a_roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll in the very moment in which the follower looks for one."""
    path = write(tmp_path, batch(0))
    look = dump_segments.next_segment

    def roll_and_look(current: str) -> str | None:
        if current == str(path):
            append(path, batch(2))()
            append(tmp_path / "00000000000000000004.log", batch(4))()
        return look(current)

    monkeypatch.setattr(dump_segments, "next_segment", roll_and_look)
    lines, _ = followed(path)
    assert lines == [f"{NAME}.log", "baseOffset: 0", "baseOffset: 2", "00000000000000000004.log", "baseOffset: 4"]


def test_follow_waits_in_space_that_is_only_reserved(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0), bytes(200))

    def fill() -> None:
        with path.open("r+b") as file:
            file.seek(len(batch(0)))
            file.write(batch(2))

    assert followed(path, fill, lambda: None) == ([f"{NAME}.log", "baseOffset: 0", "baseOffset: 2"], False)


def test_follow_survives_a_truncation_and_ends_with_the_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    path = write(directory, batch(0), batch(2))
    lines, damaged = followed(
        path,
        lambda: os.truncate(path, len(batch(0))),
        append(path, batch(2, 1)),
        lambda: directory.rename(tmp_path / "topic-0.deleted-delete"),
    )
    assert lines == [f"{NAME}.log", "baseOffset: 0", "baseOffset: 2", "baseOffset: 2"]
    assert damaged
    assert capsys.readouterr().err.splitlines() == [
        f"{path} was cut from {2 * len(batch(0))} to {len(batch(0))} bytes",
        f"ottla dump-log: {directory} does not exist",
    ]


def test_a_process_that_follows_ends_well_with_ctrl_c(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0))
    # A shell that runs the tests in the background has everything below it ignore Ctrl-C.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heed + "from ottla.cli.dump_log import command; command()"
    arguments = [sys.executable, "-c", code, "--follow", "--format", "json", "--files", str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["baseOffset"] == 0
        append(path, batch(2))()
        assert json.loads(process.stdout.readline())["baseOffset"] == 2
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


# The whole


def test_it_is_a_command_of_ottla(tmp_path: Path) -> None:
    assert "dump-log" in CliRunner().invoke(main, ["--help"]).stdout
    path = write(tmp_path, batch(0))
    assert CliRunner().invoke(main, ["dump-log", "--files", str(path)]).stdout == dump("--files", path).stdout


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    path = write(tmp_path, *(batch(2 * n) for n in range(2_000)))
    code = "from ottla.cli.dump_log import command; command()"
    arguments = [sys.executable, "-c", code, "--print-data-log", "--files", str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_start_up_is_light() -> None:
    code = (
        "import sys; import ottla.cli.dump_log; "
        "print([name for name in sys.modules if name in ('asyncio', 'socket', 'sqlite3', 'ottla.broker', 'ottla.config')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


SOUND = {
    ".log": batch(0)
    + batch(2, 3, codec=Codec.LZ4)
    + write_messages([record(5), record(6)], 1, codec=Codec.GZIP)
    + write_messages([record(7)], 0)
    + build([Record(8, NOW, OFFSET_KEY, transaction(1))], base_offset=8)
    + end_transaction_marker(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=1, timestamp=NOW, base_offset=9
    ),
    ".index": pack(">iiii", 1, 0, 4, 79),
    ".timeindex": pack(">qiqi", NOW + 1, 1, NOW + 4, 4),
    ".txnindex": pack(">hqqqq", 0, 1, 2, 3, 4),
    ".snapshot": snapshots.encode(producers()),
}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_the_files_hold_there_is_no_traceback(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("mutated")
    for suffix, content in SOUND.items():
        changed = bytearray(content)
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4), label=suffix):
            changed[at] = data.draw(st.integers(0, 255))
        write(directory, bytes(changed[: data.draw(st.integers(0, len(content)) | st.none())]), suffix=suffix)
    files = ",".join(str(directory / f"{NAME}{suffix}") for suffix in SOUND)
    options = data.draw(
        st.lists(
            st.sampled_from(
                [
                    "--print-data-log",
                    "--offsets-decoder",
                    "--transaction-log-decoder",
                    "--index-sanity-check",
                    "--verify-index-only",
                    "--format=json",
                    "--value-decoder-class=kafka.serializer.LongDecoder",
                ]
            ),
            unique=True,
        )
    )
    result = dump(*options, "--files", files)
    assert result.exit_code in (0, 1)
    assert "Traceback" not in result.output
    if "--format=json" in options:
        assert all(json.loads(line)["type"] for line in result.stdout.splitlines())
