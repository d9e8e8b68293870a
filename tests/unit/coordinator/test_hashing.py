"""The partition of a group must be the one that Java brokers compute. The numbers come from Java's own String.hashCode."""

import pytest

from ottla.coordinator.hashing import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "java"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("console-consumer-12345", 158455506),
        ("gr\u00fcn", 3185949),
        ("\U0001f600x", 54959989),  # two UTF-16 units
    ],
)
def test_hash_is_javas(text: str, java: int) -> None:
    assert java_hash(text) == java & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("text", "partition"),
    [("", 0), ("a", 47), ("hello", 22), ("console-consumer-12345", 6), ("gr\u00fcn", 49), ("\U0001f600x", 39)],
)
def test_partition_is_kafkas(text: str, partition: int) -> None:
    assert partition_for(text, 50) == partition


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("g-t-dc13afd14d4a", 1),  # negative hashes; seen on Apache Kafka 3.9.1 with 4 partitions
        ("g-t-200729ff1cd8", 3),
        ("polygenelubricants", 0),  # the smallest integer, which has no absolute value
    ],
)
def test_partition_is_kafkas_for_negative_hashes(text: str, partition: int) -> None:
    assert java_hash(text) >= 1 << 31
    assert partition_for(text, 4) == partition
