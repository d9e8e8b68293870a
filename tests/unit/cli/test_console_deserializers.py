from __future__ import annotations

import pytest

from ottla.cli.console_deserializers import Undecodable, find_deserializer, java_double


@pytest.mark.parametrize(("number", "text"), [
    (0.0, "0.0"), (-0.0, "-0.0"), (100.0, "100.0"), (0.001, "0.001"), (1e-4, "1.0E-4"), (1e7, "1.0E7"),
    (9999999.5, "9999999.5"), (-1.25e-9, "-1.25E-9"), (float("inf"), "Infinity"), (float("nan"), "NaN"),
])  # fmt: skip
def test_numbers_as_java_prints_them(number: float, text: str) -> None:
    assert java_double(number) == text


def test_deserializers() -> None:
    for name in ("LongDeserializer", "org.apache.kafka.common.serialization.LongDeserializer"):
        found = find_deserializer(name)
        assert found is not None
        assert found(b"\0" * 7 + b"\5") == b"5"
    assert find_deserializer("org.example.Mine") is None
    long = find_deserializer("LongDeserializer")
    assert long is not None
    with pytest.raises(Undecodable, match="Size of data received by LongDeserializer is not 8"):
        long(b"5")
