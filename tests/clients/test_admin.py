"""Administration through each client's own admin class: what one changes, another sees."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import confluent_kafka
import confluent_kafka.admin as ck
import kafka
import kafka.admin
import kafka.errors
import pytest
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType

from clients.adapters import BY_NAME, Out, read
from clients.conftest import Topics
from support.server import ServerProcess

STAMP = 1_600_000_000_000


@pytest.fixture(scope="module")
def python_admin(server: ServerProcess) -> Iterator[kafka.KafkaAdminClient]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
    yield admin
    admin.close()


def _code(caught: pytest.ExceptionInfo[confluent_kafka.KafkaException]) -> str:
    name: str = caught.value.args[0].name()
    return name


def _topic_config(admin: ck.AdminClient, topic: str) -> dict[str, ck.ConfigEntry]:
    resource = ck.ConfigResource(ck.ResourceType.TOPIC, topic)
    found: dict[str, ck.ConfigEntry] = admin.describe_configs([resource])[resource].result(20)
    return found


def test_create_grow_and_delete(server: ServerProcess, admin: ck.AdminClient, topic: str) -> None:
    new = ck.NewTopic(topic, 3, 1, config={"retention.ms": "12345"})
    admin.create_topics([new])[topic].result(20)
    assert len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 3
    assert _topic_config(admin, topic)["retention.ms"].value == "12345"
    admin.create_partitions([ck.NewPartitions(topic, 5)])[topic].result(20)
    assert sorted(admin.list_topics(topic, timeout=20).topics[topic].partitions) == [0, 1, 2, 3, 4]
    assert len(BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(b"v", partition=n) for n in range(5)])) == 5
    admin.delete_topics([topic])[topic].result(20)
    assert topic not in admin.list_topics(timeout=20).topics


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "config", "error"),
    [
        ("not/a/name", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("a" * 250, 1, 1, {}, "TOPIC_EXCEPTION"),
        ("fine", 0, 1, {}, "INVALID_PARTITIONS"),
        ("fine", 1, 2, {}, "INVALID_REPLICATION_FACTOR"),
        ("fine", 1, 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("fine", 1, 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
    ],
)
def test_what_cannot_be_created(
    admin: ck.AdminClient, name: str, partitions: int, replicas: int, config: dict[str, str], error: str
) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.create_topics([ck.NewTopic(name, partitions, replicas, config=config)])[name].result(20)
    assert _code(caught) == error
    assert name not in admin.list_topics(timeout=20).topics


def test_refusals_leave_things_as_they_are(admin: ck.AdminClient, topics: Topics, topic: str) -> None:
    topics.create(topic, 2)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.create_topics([ck.NewTopic(topic, 1, 1)])[topic].result(20)
    assert _code(caught) == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.create_partitions([ck.NewPartitions(topic, 2)])[topic].result(20)
    assert _code(caught) == "INVALID_PARTITIONS"
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.delete_topics([f"{topic}-not-there"])[f"{topic}-not-there"].result(20)
    assert _code(caught) == "UNKNOWN_TOPIC_OR_PART"
    assert len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 2


def test_validate_only_changes_nothing(admin: ck.AdminClient, topic: str) -> None:
    admin.create_topics([ck.NewTopic(topic, 1, 1)], validate_only=True)[topic].result(20)
    assert topic not in admin.list_topics(timeout=20).topics


def test_settings_of_a_topic_one_by_one(admin: ck.AdminClient, topics: Topics, topic: str) -> None:
    """IncrementalAlterConfigs: set, append, subtract, delete; and where each value comes from."""
    topics.create(topic, segment_bytes="1000000")

    def change(*entries: tuple[str, str | None, ck.AlterConfigOpType]) -> None:
        changes = [ck.ConfigEntry(name, value, incremental_operation=operation) for name, value, operation in entries]
        resource = ck.ConfigResource(ck.ResourceType.TOPIC, topic, incremental_configs=changes)
        admin.incremental_alter_configs([resource])[resource].result(20)

    op = ck.AlterConfigOpType
    change(("retention.ms", "60000", op.SET), ("cleanup.policy", "compact", op.APPEND))
    config = _topic_config(admin, topic)
    assert config["retention.ms"].value == "60000"
    assert config["retention.ms"].source == ck.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert config["cleanup.policy"].value == "delete,compact"
    assert config["segment.bytes"].value == "1000000"
    assert config["max.message.bytes"].value == "1048588"
    assert config["max.message.bytes"].source == ck.ConfigSource.DEFAULT_CONFIG.value
    change(("retention.ms", None, op.DELETE), ("cleanup.policy", "delete", op.SUBTRACT))
    config = _topic_config(admin, topic)
    assert config["retention.ms"].value == "604800000"
    assert config["cleanup.policy"].value == "compact"
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        change(("retention.ms", "-5", op.SET))
    assert _code(caught) == "INVALID_CONFIG"


def test_settings_of_a_topic_as_a_whole(admin: ck.AdminClient, topics: Topics, topic: str) -> None:
    """AlterConfigs: what is not named goes back to its default."""
    topics.create(topic, segment_bytes="1000000")
    resource = ck.ConfigResource(ck.ResourceType.TOPIC, topic, set_config={"retention.ms": "1000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        admin.alter_configs([resource])[resource].result(20)
    config = _topic_config(admin, topic)
    assert (config["retention.ms"].value, config["segment.bytes"].value) == ("1000", "1073741824")


def test_settings_of_the_broker(server: ServerProcess, admin: ck.AdminClient) -> None:
    broker = str(next(iter(admin.list_topics(timeout=20).brokers)))
    resource = ck.ConfigResource(ck.ResourceType.BROKER, broker)
    config = admin.describe_configs([resource])[resource].result(20)
    assert config["listeners"].value == f"PLAINTEXT://127.0.0.1:{server.port}"
    assert config["log.dirs"].value == server.directory
    assert config["offsets.topic.num.partitions"].source == ck.ConfigSource.STATIC_BROKER_CONFIG.value
    assert config["num.io.threads"].source == ck.ConfigSource.DEFAULT_CONFIG.value


def test_the_cluster(server: ServerProcess, admin: ck.AdminClient, python_admin: kafka.KafkaAdminClient) -> None:
    cluster = admin.describe_cluster().result(20)
    assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", server.port)]
    assert cluster.controller.id == cluster.nodes[0].id
    seen_by_python = python_admin.describe_cluster()
    assert seen_by_python["cluster_id"] == cluster.cluster_id
    assert seen_by_python["controller_id"] == cluster.controller.id


def test_offsets_by_time(server: ServerProcess, admin: ck.AdminClient, topics: Topics, topic: str) -> None:
    topics.create(topic)
    stamps = [STAMP + 1000, STAMP + 2000, STAMP + 9000, STAMP + 3000]  # the third is the newest, though not the last
    BY_NAME["confluent"].produce(server.bootstrap_servers, topic, [Out(b"v", timestamp=stamp) for stamp in stamps])
    expected = [
        (confluent_kafka.admin.OffsetSpec.earliest(), 0, -1),
        (confluent_kafka.admin.OffsetSpec.latest(), 4, -1),
        (confluent_kafka.admin.OffsetSpec.max_timestamp(), 2, STAMP + 9000),
        (confluent_kafka.admin.OffsetSpec.for_timestamp(STAMP), 0, STAMP + 1000),
        (confluent_kafka.admin.OffsetSpec.for_timestamp(STAMP + 1001), 1, STAMP + 2000),
        (confluent_kafka.admin.OffsetSpec.for_timestamp(STAMP + 2500), 2, STAMP + 9000),
        (confluent_kafka.admin.OffsetSpec.for_timestamp(STAMP + 9001), -1, -1),
    ]
    partition = confluent_kafka.TopicPartition(topic, 0)
    for spec, offset, timestamp in expected:
        found = admin.list_offsets({partition: spec})[partition].result(20)
        assert (found.offset, found.timestamp) == (offset, timestamp), spec


def test_records_are_deleted_up_to_an_offset(server: ServerProcess, admin: ck.AdminClient, topics: Topics, topic: str) -> None:
    topics.create(topic)
    client = BY_NAME["confluent"]
    client.produce(server.bootstrap_servers, topic, [Out(b"%d" % number) for number in range(10)])
    upto = confluent_kafka.TopicPartition(topic, 0, 4)
    assert admin.delete_records([upto])[upto].result(20).low_watermark == 4
    with client.reader(server.bootstrap_servers, [(topic, 0)], {"auto.offset.reset": "earliest"}) as reader:
        assert [record.offset for record in read(reader, 6)] == [4, 5, 6, 7, 8, 9]
    beyond = confluent_kafka.TopicPartition(topic, 0, 11)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.delete_records([beyond])[beyond].result(20)
    assert _code(caught) == "OFFSET_OUT_OF_RANGE"


def test_kafka_python_does_the_same(server: ServerProcess, python_admin: kafka.KafkaAdminClient, topic: str) -> None:
    partition = kafka.TopicPartition(topic, 0)
    made = python_admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "5000"}}})
    assert made["topics"][0]["configs"]["retention.ms"]["value"] == "5000"
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python_admin.create_topics([topic])
    python_admin.create_partitions({topic: 4})
    described = python_admin.describe_topics([topic])[0]
    assert len(described["partitions"]) == 4
    assert described["topic_id"] == made["topics"][0]["topic_id"]
    wanted = kafka.admin.ConfigResource("topic", topic, {"retention.ms": "7000", "compression.type": "lz4"})
    assert python_admin.alter_configs([wanted]) == {"topic": {topic: "OK"}}
    config = python_admin.describe_configs([kafka.admin.ConfigResource("topic", topic)])["topic"][topic]
    assert {name: entry["value"] for name, entry in config.items()} == {"retention.ms": "7000", "compression.type": "lz4"}
    BY_NAME["kafka-python"].produce(
        server.bootstrap_servers, topic, [Out(b"v", timestamp=STAMP + number, partition=0) for number in range(10)]
    )
    spec = kafka.OffsetSpec
    for wanted_spec, offset in ((spec.EARLIEST, 0), (spec.LATEST, 10), (spec.MAX_TIMESTAMP, 9), (STAMP + 3, 3)):
        assert python_admin.list_partition_offsets({partition: wanted_spec})[partition].offset == offset
    assert python_admin.delete_records({partition: 6})[partition]["low_watermark"] == 6
    assert python_admin.list_partition_offsets({partition: spec.EARLIEST})[partition].offset == 6
    (log_dir,) = python_admin.describe_log_dirs({topic: [0, 1, 2, 3]})[0]["log_dirs"]
    assert log_dir["log_dir"] == server.directory
    sizes = {one["partition_index"]: one["partition_size"] for one in log_dir["topics"][0]["partitions"]}
    assert sizes[0] > 0
    assert sizes[1] == sizes[2] == sizes[3] == 0
    python_admin.delete_topics([uuid.UUID(str(described["topic_id"]))])
    assert topic not in python_admin.list_topics()


def test_aiokafka_does_the_same(server: ServerProcess, topic: str) -> None:
    async def story() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
        await admin.start()
        try:
            made = await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "5000"})])
            assert made.topic_errors[0][1] == 0
            await admin.create_partitions({topic: NewPartitions(3)})
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 3
            await asyncio.to_thread(BY_NAME["aiokafka"].produce, server.bootstrap_servers, topic, [Out(b"v", partition=1)] * 5)
            partition = AioTopicPartition(topic, 1)
            assert await admin.delete_records({partition: RecordsToDelete(3)}) == {partition: 3}
            await admin.alter_configs([AioConfigResource(AioResourceType.TOPIC, topic, {"retention.ms": "8000"})])
            asked = AioConfigResource(AioResourceType.TOPIC, topic, {"retention.ms": None})
            (answer,) = await admin.describe_configs([asked])
            assert answer.resources[0][4][0][:2] == ("retention.ms", "8000")
            assert (await admin.describe_cluster())["controller_id"] >= 0
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(story())
