"""The answer to Produce that is made by hand: byte for byte the table's, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model import Error
from ottla.wire.apis.produce import ProduceResponse
from ottla.wire.plain_produce import FLEXIBLE, Produced, all_written, as_table

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(min_size=1, max_size=249)
VERSIONS = range(ProduceResponse.min_version, ProduceResponse.max_version + 1)


def written(index: int, base_offset: int, log_append_time: int, log_start_offset: int) -> Produced:
    one = Produced(index)
    one.written(base_offset, log_append_time, log_start_offset)
    return one


results = st.lists(st.builds(written, int32, int64, int64, int64), max_size=4)


@given(st.lists(st.tuples(names, results), max_size=4), st.sampled_from(VERSIONS))
def test_it_says_what_the_table_says(topics: list[tuple[str, list[Produced]]], version: int) -> None:
    body = all_written(topics, version)
    if version < 5:
        assert body is None
    else:
        assert body == ProduceResponse.encoders[version](as_table(topics))


@pytest.mark.parametrize("version", [5, 8, 9, 11])
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 300])
def test_lengths_of_one_byte_and_of_two(version: int, count: int) -> None:
    topics = [(f"t{number}" * 60, [written(number, 1, 2, 3)] * count) for number in range(count)]
    assert all_written(topics, version) == ProduceResponse.encoders[version](as_table(topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_is_told_by_the_table(version: int) -> None:
    refused = written(1, 5, 6, 7)
    refused.refused(Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "Written, but then too few replicas were in sync.")
    topics = [("a", [written(0, 1, 2, 3)]), ("b", [written(0, 1, 2, 3), refused])]
    assert all_written(topics, version) is None
    told = ProduceResponse.decoders[version](ProduceResponse.encoders[version](as_table(topics)), 0)[0]
    assert [[one.error_code for one in topic.partition_responses] for topic in told.responses] == [[0], [0, 20]]
    assert told.responses[1].partition_responses[1].base_offset == -1
    message = told.responses[1].partition_responses[1].error_message
    assert message == (refused.message if version >= 8 else None)


def test_the_first_version_with_tags_is_the_tables() -> None:
    assert FLEXIBLE == 9
