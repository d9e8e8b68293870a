"""The small text files beside the logs, in Kafka's own layouts.

Guards: a reader never sees half a file. Each is written whole to `NAME.tmp`, brought to the disk, and renamed over the
old one; then the directory is brought to the disk too. A file that cannot be understood is an error with its path,
never a guess.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from ottla.model import TopicPartition

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_POINTS: Final = "cleaner-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"

_VERSION: Final = 0


class MalformedCheckpoint(ValueError):
    """A file beside the logs that says something else than its layout allows."""


class MetaProperties(NamedTuple):
    """Who a data directory belongs to. `directory_id` is kept if it is there (Kafka 3.7 and later may write it)."""

    broker_id: int
    cluster_id: str
    directory_id: str | None = None


def write_atomically(path: str, content: bytes, *, sync: bool = True) -> None:
    """Replace the file at `path` whole. Blocks for the disk if `sync`: safe in a thread."""
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if sync:
        sync_directory(os.path.dirname(path))


def sync_file(path: str) -> None:
    """Bring a file to the disk. Blocks: safe in a thread."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """Bring the names in a directory to the disk. Blocks: safe in a thread."""
    sync_file(path)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(f"{path}: {error}") from None


def _rows(path: str, columns: int) -> list[list[str]]:
    """The rows of a checkpoint: a version line, a line with their count, then one row a line. Absent or empty: none."""
    text = _read(path)
    if not text:
        return []
    lines = text.splitlines()
    try:
        version, expected = int(lines[0]), int(lines[1])
    except (IndexError, ValueError):
        raise MalformedCheckpoint(f"{path}: no version and count at its head") from None
    if version != _VERSION:
        raise MalformedCheckpoint(f"{path}: version {version} is not known")
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(rows) != expected or any(len(row) != columns for row in rows):
        raise MalformedCheckpoint(f"{path}: {expected} rows of {columns} columns expected")
    return rows


def _table(rows: Iterable[str], count: int) -> bytes:
    return "".join([f"{_VERSION}\n{count}\n", *rows]).encode()


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """One of the offset checkpoints of a data directory."""
    try:
        return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in _rows(path, 3)}
    except ValueError as error:
        raise MalformedCheckpoint(f"{path}: {error}") from None


def offsets_table(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The bytes of an offset checkpoint."""
    return _table((f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items()), len(offsets))


def read_epochs(path: str) -> list[tuple[int, int]]:
    """(leader epoch, its first offset), oldest first."""
    try:
        return [(int(epoch), int(start)) for epoch, start in _rows(path, 2)]
    except ValueError as error:
        raise MalformedCheckpoint(f"{path}: {error}") from None


def write_epochs(path: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Write a partition's leader epochs, without waiting for the disk."""
    rows = [f"{epoch} {start}\n" for epoch, start in epochs]
    write_atomically(path, _table(rows, len(rows)), sync=False)


def read_meta_properties(directory: str) -> MetaProperties | None:
    """Whose the data directory is; None for a fresh one."""
    path = os.path.join(directory, META_PROPERTIES)
    text = _read(path)
    if text is None:
        return None
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith(("#", "!")))
    values = {key.strip(): value.strip().replace("\\", "") for key, value in pairs}
    if values.get("version") != "0":
        raise MalformedCheckpoint(f"{path}: version {values.get('version')} is not that of a ZooKeeper-mode broker (0)")
    try:
        return MetaProperties(int(values["broker.id"]), values["cluster.id"], values.get("directory.id"))
    except KeyError as missing:
        raise MalformedCheckpoint(f"{path}: {missing} is missing") from None
    except ValueError as error:
        raise MalformedCheckpoint(f"{path}: {error}") from None


def write_meta_properties(directory: str, meta: MetaProperties, now_ms: int) -> None:
    """Mark a data directory as this broker's. Blocks."""
    date = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    lines = ["#", f"#{date}", f"broker.id={meta.broker_id}", "version=0", f"cluster.id={meta.cluster_id}"]
    if meta.directory_id is not None:
        lines.append(f"directory.id={meta.directory_id}")
    write_atomically(os.path.join(directory, META_PROPERTIES), ("\n".join(lines) + "\n").encode())


def encode_uuid(uuid: bytes) -> str:
    """Kafka's text form of a 16-byte id: url-safe base64, no padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """The 16 bytes of an id in Kafka's text form."""
    uuid = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is not a 16-byte id")
    return uuid


def read_topic_id(directory: str) -> bytes | None:
    """The topic id of a partition's directory; None if it has none yet, or lost it with the power before it was flushed."""
    path = os.path.join(directory, PARTITION_METADATA)
    text = _read(path)
    if not text:
        return None
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if values["version"] != "0":
            raise MalformedCheckpoint(f"{path}: version {values['version']} is not known")
        return decode_uuid(values["topic_id"])
    except (KeyError, ValueError) as error:
        raise MalformedCheckpoint(f"{path}: {error}") from None


def write_topic_id(directory: str, topic_id: bytes, *, sync: bool = True) -> None:
    """Name the topic that a partition's directory belongs to."""
    content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()
    write_atomically(os.path.join(directory, PARTITION_METADATA), content, sync=sync)


def write_clean_shutdown(directory: str, broker_epoch: int = -1) -> None:
    """Leave the mark that nothing needs recovery. Blocks."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(os.path.join(directory, CLEAN_SHUTDOWN), content.encode())


def take_clean_shutdown(directory: str) -> bool:
    """Whether the last stop was clean. The mark is taken away: the next stop has to earn it again."""
    try:
        os.unlink(os.path.join(directory, CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return False
    return True
