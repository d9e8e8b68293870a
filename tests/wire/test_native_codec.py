"""The native codec against the generated Python: the same objects, the same bytes, the same refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from test_wire_malformed import CASES, valid_bytes

from ottla.wire.apis.fetch import FetchResponse
from ottla.wire.apis.groups import HeartbeatRequest
from ottla.wire.apis.produce import ProduceRequest
from ottla.wire.decoder import compile_decoder
from ottla.wire.encoder import compile_encoder, compile_parts_encoder
from ottla.wire.native import NATIVE
from ottla.wire.schema import Malformed

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native codec is not built here")


def outcome(decode: Callable[..., Any], buffer: bytes) -> Any:
    try:
        return decode(buffer, 0)
    except Malformed:
        return Malformed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-v{case[1]}")
def test_both_say_the_same(case: Any) -> None:
    cls, version, _ = case
    layout = cls, version, version >= cls.flexible
    twin_decode, twin_encode, twin_parts = compile_decoder(*layout), compile_encoder(*layout), compile_parts_encoder(*layout)
    rng = random.Random(f"{cls.name} {version}")
    for seed in range(4):
        whole = valid_bytes(case, seed)
        message, end = cls.decoder(version)(whole, 0)
        assert (message, end) == twin_decode(whole, 0)
        assert cls.encoder(version)(message) == twin_encode(message) == whole
        assert cls.parts_encoder(version)(message) == twin_parts(message)
        for _ in range(30):
            changed = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                if changed:
                    changed[rng.randrange(len(changed))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            assert outcome(cls.decoder(version), bytes(changed)) == outcome(twin_decode, bytes(changed))


@pytest.mark.parametrize(
    ("message", "version", "problem"),
    [
        (HeartbeatRequest(group_id=None), 4, TypeError),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="g", generation_id=1 << 31), 0, Exception),
        (HeartbeatRequest(group_id="g" * 40_000), 0, ValueError),
        (ProduceRequest(topic_data=["no struct"]), 9, TypeError),  # type: ignore[list-item]
        (FetchResponse(responses=5), 12, TypeError),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_said_is_refused(message: Any, version: int, problem: type[Exception]) -> None:
    with pytest.raises(problem):
        type(message).encoder(version)(message)


def test_an_object_that_is_not_complete_is_refused() -> None:
    with pytest.raises(AttributeError):
        HeartbeatRequest.encoder(0)(object.__new__(HeartbeatRequest))
