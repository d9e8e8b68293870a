from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.offset_resets import parse_datetime, parse_duration, parse_topic, read_plans, write_plans
from ottla.cli.tool import Failure
from ottla.model import TopicPartition


@pytest.mark.parametrize(("text", "milliseconds"), [
    ("PT0S", 0),
    ("P1D", 86_400_000),
    ("P1DT2H3M4.5S", 93_784_500),
    ("-PT1M", -60_000),
    ("pt-1h", -3_600_000),
])  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1H", "PT1D"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="allowed is PnDTnHnMnS"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "milliseconds"), [
    ("1970-01-01T00:00:01.500", 1500),
    ("1970-01-01T02:00:00.000+02:00", 0),
    ("1970-01-01T00:00:00.001Z", 1),
])  # fmt: skip
def test_times(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize("text", ["1970-01-01", "yesterdayT", "1970-13-01T00:00:00.000"])
def test_no_times(text: str) -> None:
    with pytest.raises(ValueError):
        parse_datetime(text)


def test_plans(tmp_path: Path) -> None:
    plans = {"g": {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}}
    for with_group, text in ((False, "t,0,5\nt,1,7\n"), (True, "g,t,0,5\ng,t,1,7\n")):
        assert write_plans(plans, with_group=with_group) == text
        (tmp_path / "plan").write_text(text + "\n")
        assert read_plans(str(tmp_path / "plan"), ["g"]) == plans
    (tmp_path / "plan").write_text("t,0,5\nt,x,5\n")
    with pytest.raises(Failure, match="not valid in line 2: allowed is topic,partition,offset"):
        read_plans(str(tmp_path / "plan"), ["g"])
    with pytest.raises(Failure, match="cannot be read"):
        read_plans(str(tmp_path / "none"), ["g"])


def test_topics() -> None:
    assert parse_topic("t") == ("t", None)
    assert parse_topic("t:0,12") == ("t", [0, 12])
    for wrong in ("t:", ":1", "t:1:2", "t:1,x"):
        with pytest.raises(Failure):
            parse_topic(wrong)
