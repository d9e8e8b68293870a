"""Counting and the text format: by table, and read by Prometheus' own parser."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.metrics import BUCKETS, Durations
from ottla.monitoring.text import COUNTER, HISTOGRAM, family, head, histogram


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (0.9e-6, 0),
        (1e-6, 1),
        (3.5e-6, 2),
        (0.001, 10),
        (0.0011, 11),
        (8.0, 23),
        (9.0, 24),
        (1e9, BUCKETS - 1),
        (-1.0, 0),
    ],
)
def test_a_duration_falls_into_its_bucket(seconds, bucket):
    durations = Durations()
    durations.add(seconds)
    assert durations.counts.index(1) == bucket
    assert sum(durations.counts) == 1


def test_a_histogram_adds_its_parts_up():
    quick, slow = Durations(), Durations()
    for seconds in (0.000_010, 0.000_020):
        quick.add(seconds)
    slow.add(0.5)
    text = head("t", HISTOGRAM, "Time.") + histogram("t", [quick, slow], 3, request="Produce")
    (found,) = text_string_to_metric_families(text)
    buckets = {one.labels["le"]: one.value for one in found.samples if one.name == "t_bucket"}
    assert [buckets[bound] for bound in ("0.016", "0.032", "262.144", "524.288", "+Inf")] == [4, 5, 5, 6, 6]
    others = {one.name: one.value for one in found.samples if one.name != "t_bucket"}
    assert others["t_count"] == 6
    assert others["t_sum"] == pytest.approx(500.03)


@pytest.mark.parametrize("name", ["plain", 'a "quoted" one', "back\\slash", "two\nlines", "ümläut"])
def test_names_that_others_chose(name):
    (found,) = text_string_to_metric_families(family("bytes_total", COUNTER, "Bytes.", [({"topic": name}, 5)]))
    assert found.samples[0].labels == {"topic": name}
    assert found.samples[0].value == 5
