"""Options: what they mean, and what is refused in which words."""

from __future__ import annotations

import datetime
import re

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan
from pyspark.sql.types import StringType, StructField, StructType

from ottla.client import InvalidSetting, TopicPartition
from ottla.client.admin.offsets import EARLIEST, LATEST
from ottla.spark.filters import Narrowed, narrow
from ottla.spark.offsets import OffsetRange
from ottla.spark.options import End, Offsets, Selection, Times, columns_of, sink_options, source_options
from ottla.spark.writer import StreamWriter

ADDRESS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
TOPIC = {**ADDRESS, "subscribe": "t"}


def test_what_options_mean() -> None:
    options = source_options(
        {**ADDRESS, "assign": '{"t":[0,2]}', "startingoffsets": '{"t":{"0":5,"2":-2}}', "maxoffsetspertrigger": "7",
         "failondataloss": "false", "kafka.isolation.level": "read_committed"}, streaming=True,
    )  # fmt: skip
    assert options.selection == Selection(partitions=(TopicPartition("t", 0), TopicPartition("t", 2)))
    assert options.start == Offsets({TopicPartition("t", 0): 5, TopicPartition("t", 2): EARLIEST})
    assert (options.max_offsets, options.fail_on_data_loss, options.isolation) == (7, False, "read_committed")
    assert source_options(TOPIC, streaming=True).start == End(LATEST)
    batch = source_options({**TOPIC, "startingTimestamp": "12", "startingOffsets": "earliest"}, streaming=False)
    assert (batch.start, batch.end) == (Times(every=12), End(LATEST))
    assert source_options({**TOPIC, "maxTriggerDelay": "30s"}, streaming=True).max_trigger_delay_ms == 30_000
    assert columns_of({"columns": "VALUE, offset"}) == ("value", "offset")
    assert columns_of({"includeHeaders": "true"})[-1] == "headers"


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"subscribe": "t"}, False, "Option kafka.bootstrap.servers is missing"),
        (ADDRESS, False, "Set one of the options subscribe, subscribePattern and assign: there is none of them"),
        ({**TOPIC, "assign": "{}"}, False, "there is subscribe and assign"),
        ({**ADDRESS, "subscribePattern": "("}, False, "is not a regular expression"),
        ({**ADDRESS, "assign": "[1]"}, False, "Option assign names no partitions: write it like"),
        ({**TOPIC, "startingOffsets": "latest"}, False, "Option startingOffsets: latest is not allowed"),
        ({**TOPIC, "startingOffsets": '{"t":{"0":-1}}'}, False, "Option startingOffsets: latest is not allowed"),
        ({**TOPIC, "endingOffsets": '{"t":{"0":-2}}'}, False, "Option endingOffsets: earliest is not allowed"),
        ({**TOPIC, "endingOffsets": "latest"}, True, "Option endingOffsets is not for streams"),
        ({**TOPIC, "startingOffsets": "soon"}, True, "Option startingOffsets is not JSON: write it like"),
        ({**TOPIC, "maxOffsetsPerTrigger": "0"}, True, "Option maxOffsetsPerTrigger: '0' is not valid"),
        ({**TOPIC, "failOnDataLoss": "maybe"}, True, "Option failOnDataLoss: 'maybe' is not valid"),
        ({**TOPIC, "columns": "payload"}, True, "there is no column payload"),
        ({**TOPIC, "kafka.auto.offset.reset": "latest"}, True, "set startingOffsets instead"),
        ({**TOPIC, "kafka.security.protocol": "NONE"}, True, "Setting security.protocol"),
    ],
)
def test_what_is_refused(options: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        source_options(options, streaming=streaming)


def test_the_sink_needs_acks() -> None:
    with pytest.raises(InvalidSetting, match="exactlyOnce needs all"):
        sink_options({**ADDRESS, "exactlyOnce": "true", "kafka.acks": "1"})


def test_the_name_of_a_batch() -> None:
    with pytest.raises(InvalidSetting, match="batchName needs option transactionalId"):
        sink_options({**ADDRESS, "batchName": "b"})
    options = sink_options({**ADDRESS, "topic": "t", "transactionalId": "x", "batchName": "b"})
    with pytest.raises(InvalidSetting, match="batchName is for batches"):
        StreamWriter(options, StructType([StructField("value", StringType())]))


NOON = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("filters", "wanted", "cut"),
    [
        ([], [0, 1, 2, 3], (0, 100)),
        ([EqualTo(("partition",), 2)], [2], (0, 100)),
        ([In(("partition",), (1, 3)), GreaterThan(("partition",), 1)], [3], (0, 100)),
        ([GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 9)], [0, 1, 2, 3], (5, 9)),
        ([EqualTo(("offset",), 7)], [0, 1, 2, 3], (7, 8)),
        ([EqualTo(("topic",), "u")], [], (0, 100)),
        ([LessThan(("timestamp",), NOON)], [0, 1, 2, 3], (0, 100)),  # producers choose timestamps: no bound from above
        ([IsNotNull(("value",))], [0, 1, 2, 3], (0, 100)),
        ([GreaterThan(("offset",), 200)], [0, 1, 2, 3], (201, 201)),  # nothing is left
    ],
)
def test_filters(filters: list[Filter], wanted: list[int], cut: tuple[int, int]) -> None:
    left = narrow(filters)
    assert [number for number in range(4) if left.wants(TopicPartition("t", number))] == wanted
    assert left.cut(OffsetRange(TopicPartition("t", 0), 0, 100), 0)[1:] == cut


def test_a_time_from_below() -> None:
    left: Narrowed = narrow([GreaterThanOrEqual(("timestamp",), NOON)])
    assert left.from_time_ms == int(NOON.timestamp() * 1000)
    assert left.cut(OffsetRange(TopicPartition("t", 0), 0, 100), 30)[1:] == (30, 100)


@pytest.mark.parametrize(
    ("selection", "meant"),
    [
        (Selection(topics=("t", "u")), ["t-0", "t-1"]),
        (Selection(pattern="t.*"), ["t-0", "t-1", "tt-0"]),
        (Selection(partitions=(TopicPartition("t", 1),)), ["t-1"]),
    ],
)
def test_which_partitions_are_meant(selection: Selection, meant: list[str]) -> None:
    known = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("tt", 0), TopicPartition("at", 0)]
    assert [str(tp) for tp in known if selection.names(tp)] == meant
