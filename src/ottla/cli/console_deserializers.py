"""Bytes to text as Apache Kafka's stock deserializers show them on the console.

Guards: numbers look as Java prints them, and data of another size than the type has is refused in Apache's words.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from ottla.cli.dump_output import java_text

Deserializer = Callable[[bytes], bytes]
_PACKAGE: Final = "org.apache.kafka.common.serialization."


class Undecodable(Exception):
    """The data are not what the deserializer is for."""


def find_deserializer(name: str) -> Deserializer | None:
    """By its class name, with the package or without; None where it is none of the stock ones."""
    return _BY_NAME.get(name.removeprefix(_PACKAGE))


def known() -> str:
    return ", ".join(_BY_NAME)


def _number(name: str, code: str, shown: Callable[[float], str] = str) -> Deserializer:
    packed = struct.Struct(">" + code)

    def deserialize(data: bytes) -> bytes:
        if len(data) != packed.size:
            raise Undecodable(f"Size of data received by {name} is not {packed.size}")
        return shown(packed.unpack(data)[0]).encode()

    return deserialize


def _boolean(data: bytes) -> bytes:
    if len(data) != 1:
        raise Undecodable("Size of data received by BooleanDeserializer is not 1")
    if data[0] > 1:
        raise Undecodable(f"Unexpected byte received by BooleanDeserializer: {data[0]}")
    return b"true" if data[0] else b"false"


def _void(data: bytes) -> bytes:
    raise Undecodable("Data should be null for a VoidDeserializer.")


def _uuid(data: bytes) -> bytes:
    try:
        return str(uuid.UUID(data.decode())).encode()
    except ValueError:
        raise Undecodable("Error parsing data into UUID") from None


def _escaped(data: bytes) -> bytes:
    """As Apache's `Bytes` shows itself: printable signs, others in hexadecimal."""
    return "".join(chr(one) if 0x20 <= one < 0x7F and one != 0x5C else f"\\x{one:02X}" for one in data).encode()


def java_double(number: float) -> str:
    """A double as Java writes it: the shortest digits, an exponent outside of a thousandth and ten millions."""
    return _java_float(number, repr(number))


def java_float(number: float) -> str:
    """The same for a number of 32 bits: fewer digits tell it from its neighbours."""
    packed = struct.pack(">f", number)
    digits = next(
        (text for text in (f"{number:.{most}e}" for most in range(9)) if struct.pack(">f", float(text)) == packed), repr(number)
    )
    return _java_float(number, digits)


def _java_float(number: float, digits: str) -> str:
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    negative, figures, exponent = Decimal(digits).normalize().as_tuple()
    sign, plain = "-" if negative else "", "".join(map(str, figures))
    assert isinstance(exponent, int)
    power = len(plain) + exponent - 1
    if number == 0:
        return f"{sign}0.0"
    if not 1e-3 <= abs(number) < 1e7:
        return f"{sign}{plain[0]}.{plain[1:] or '0'}E{power}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{plain}"
    return f"{sign}{plain[: power + 1].ljust(power + 1, '0')}.{plain[power + 1 :] or '0'}"


_BY_NAME: Final[dict[str, Deserializer]] = {
    "StringDeserializer": lambda data: java_text(data).encode(errors="replace"),
    "ByteArrayDeserializer": bytes,
    "ByteBufferDeserializer": bytes,
    "BytesDeserializer": _escaped,
    "BooleanDeserializer": _boolean,
    "ShortDeserializer": _number("ShortDeserializer", "h"),
    "IntegerDeserializer": _number("IntegerDeserializer", "i"),
    "LongDeserializer": _number("LongDeserializer", "q"),
    "FloatDeserializer": _number("FloatDeserializer", "f", java_float),
    "DoubleDeserializer": _number("DoubleDeserializer", "d", java_double),
    "UUIDDeserializer": _uuid,
    "VoidDeserializer": _void,
}
