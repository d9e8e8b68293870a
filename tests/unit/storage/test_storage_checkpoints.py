"""The text files beside the logs, against what Apache Kafka 3.9.1 writes."""

from __future__ import annotations

import os

import pytest

from ottla.model import TopicPartition
from ottla.storage import checkpoints
from ottla.storage.checkpoints import MalformedCheckpoint, MetaProperties
from ottla.storage.epochs import LeaderEpochs


def test_offset_checkpoints(tmp_path):
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    assert checkpoints.read_offsets(path) == {}
    offsets = {TopicPartition("a", 0): 5, TopicPartition("__b.c", 12): 2**40}
    checkpoints.write_atomically(path, checkpoints.offsets_table(offsets))
    with open(path) as file:
        assert file.read() == "0\n2\na 0 5\n__b.c 12 1099511627776\n"
    assert checkpoints.read_offsets(path) == offsets
    assert os.listdir(tmp_path) == ["recovery-point-offset-checkpoint"]


@pytest.mark.parametrize("text", ["1\n0\n", "0\n2\na 0 5\n", "0\n1\na 5\n", "x\n", "0\n1\na 0 five\n"])
def test_a_malformed_checkpoint_is_named(tmp_path, text):
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(MalformedCheckpoint, match=str(path)):
        checkpoints.read_offsets(str(path))


def test_an_empty_checkpoint_is_empty(tmp_path):  # Apache Kafka leaves such a cleaner-offset-checkpoint
    (tmp_path / "c").write_text("")
    assert checkpoints.read_offsets(str(tmp_path / "c")) == {}


def test_meta_properties(tmp_path):
    assert checkpoints.read_meta_properties(str(tmp_path)) is None
    kafka = "#\n#Mon Nov 16 08:36:14 UTC 2026\nbroker.id=1\nversion=0\ncluster.id=yJoC5t6GSEOcaB39PpRoNQ\n"
    (tmp_path / "meta.properties").write_text(kafka)
    meta = checkpoints.read_meta_properties(str(tmp_path))
    assert meta == MetaProperties(1, "yJoC5t6GSEOcaB39PpRoNQ")
    checkpoints.write_meta_properties(str(tmp_path), meta, 1794818174000)
    assert (tmp_path / "meta.properties").read_text() == kafka
    with_id = meta._replace(directory_id="AAAAAAAAAAAAAAAAAAAAAQ")
    checkpoints.write_meta_properties(str(tmp_path), with_id, 0)
    assert checkpoints.read_meta_properties(str(tmp_path)) == with_id


@pytest.mark.parametrize(
    "text", ["version=1\nnode.id=1\ncluster.id=x\n", "version=0\ncluster.id=x\n", "version=0\nbroker.id=a\ncluster.id=x\n"]
)
def test_meta_properties_of_another_kind(tmp_path, text):
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(MalformedCheckpoint, match=r"meta\.properties"):
        checkpoints.read_meta_properties(str(tmp_path))


def test_partition_metadata(tmp_path):
    assert checkpoints.read_topic_id(str(tmp_path)) is None
    uuid = checkpoints.decode_uuid("UXevd__iQJqSvbkj7Ye0ag")
    checkpoints.write_topic_id(str(tmp_path), uuid)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: UXevd__iQJqSvbkj7Ye0ag"
    assert checkpoints.read_topic_id(str(tmp_path)) == uuid


def test_the_clean_mark_is_taken_once(tmp_path):
    checkpoints.write_clean_shutdown(str(tmp_path))
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    assert checkpoints.take_clean_shutdown(str(tmp_path))
    assert not checkpoints.take_clean_shutdown(str(tmp_path))


@pytest.fixture
def epochs(tmp_path):
    found = LeaderEpochs(str(tmp_path))
    for epoch, start in [(2, 10), (4, 20), (7, 50)]:
        found.assign(epoch, start)
    return found


def test_leader_epochs_on_disk(tmp_path, epochs):
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n2 10\n4 20\n7 50\n"
    assert LeaderEpochs(str(tmp_path)).entries == epochs.entries


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (4, (4, 50)), (5, (4, 50)), (7, (7, 80)), (8, (-1, -1))],
)
def test_where_an_epoch_ends(epochs, epoch, answer):
    assert epochs.end_offset_for(epoch, 80) == answer


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (19, 2), (20, 4), (50, 7), (999, 7)])
def test_the_epoch_of_an_offset(epochs, offset, epoch):
    assert epochs.epoch_for(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "start", "entries"),
    [
        (7, 60, ((2, 10), (4, 20), (7, 50))),  # known
        (8, 80, ((2, 10), (4, 20), (7, 50), (8, 80))),
        (8, 50, ((2, 10), (4, 20), (8, 50))),  # nothing was written under 7
        (5, 60, ((2, 10), (4, 20), (5, 60))),  # the log took another way
        (9, 15, ((2, 10), (9, 15))),
        (-1, 90, ((2, 10), (4, 20), (7, 50))),
    ],
)
def test_assigning_epochs(epochs, epoch, start, entries):
    epochs.assign(epoch, start)
    assert epochs.entries == entries
    assert epochs.latest == entries[-1][0]


@pytest.mark.parametrize(
    ("end", "entries"), [(51, ((2, 10), (4, 20), (7, 50))), (50, ((2, 10), (4, 20))), (20, ((2, 10),)), (10, ()), (0, ())]
)
def test_truncating_epochs_from_the_end(epochs, end, entries):
    epochs.truncate_from_end(end)
    assert epochs.entries == entries


@pytest.mark.parametrize(
    ("start", "entries"),
    [(5, ((2, 10), (4, 20), (7, 50))), (15, ((2, 15), (4, 20), (7, 50))), (20, ((4, 20), (7, 50))), (90, ((7, 90),))],
)
def test_truncating_epochs_from_the_start(epochs, start, entries):
    epochs.truncate_from_start(start)
    assert epochs.entries == entries
