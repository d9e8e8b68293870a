"""Thousands of fuzzed requests over every API and version that is served: an answer that can be read, or a close with one line.

By seed: a failure names the seed and the number of the request. The long form has 10,000 requests (OTTLA_SOAK=1).
"""

from __future__ import annotations

import os
import random
import struct
from dataclasses import dataclass, field

import pytest

from ottla.wire.apis.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.frame import decode_response
from ottla.wire.schema import Malformed, Request
from robustness import fuzz
from robustness.health import Patient
from robustness.raw import FENCE, Hung, RawClient, fence

SOAK = bool(os.environ.get("OTTLA_SOAK"))
COUNT = 10_000 if SOAK else 2_000
WARM_UP = 1_000
# Requests that may rightly wait for others (a rebalance, data) get this long before we hang up on them.
PATIENCE = 0.05
MAY_WAIT = {1, 11, 14}  # Fetch, JoinGroup, SyncGroup
GROWS_MB = 16


@dataclass
class Tally:
    answered: int = 0
    silent: int = 0
    abandoned: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)


def create_topics(patient: Patient) -> None:
    wanted = [
        CreatableTopic(name="fuzz", num_partitions=4, replication_factor=1),
        CreatableTopic(
            name="lz4",
            num_partitions=4,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="compression.type", value="lz4")],
        ),
        CreatableTopic(
            name="old",
            num_partitions=4,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
        ),
    ]
    with patient.connect() as client:
        client.ask(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 5)


def storm(patient: Patient, seed: int, count: int) -> Tally:
    """`count` requests, one after the other over one connection as long as it lasts."""
    cases = fuzz.served()
    tally = Tally()
    client: RawClient | None = None
    for number in range(count):
        if number % 25 == 0:
            create_topics(patient)  # fuzzed requests delete them, too
        rng = random.Random(f"{seed} {number}")
        case = cases[number % len(cases)]
        data = fuzz.request(case, number, rng)
        if client is None:
            client = patient.connect()
        try:
            outcome = exchange(client, data, case, number)
        except AssertionError as problem:
            raise AssertionError(
                f"seed {seed}, request {number} ({case[0].name} v{case[1]}): {problem}\n{data.hex()}"
            ) from problem
        if outcome == "closed":
            tally.closed.append(client.port)
        tally.answered += outcome == "answered"
        tally.silent += outcome == "silent"
        if outcome == "abandoned":
            tally.abandoned.append(client.port)
        if outcome in ("closed", "abandoned"):
            client.close()
            client = None
    if client is not None:
        client.close()
    return tally


def exchange(client: RawClient, data: bytes, case: tuple[type[Request], int], number: int) -> str:
    key, version, correlation = struct.unpack_from(">hhi", data, 4)
    # The spoiling may have made it another API's request, and that of one that waits.
    client.sock.settimeout(PATIENCE if key in MAY_WAIT else 10)
    client.send(data + fence())
    outcome = "silent"
    while True:
        try:
            answer = client.read_frame()
        except Hung:
            assert key in MAY_WAIT, "neither an answer nor a close"
            return "abandoned"
        if answer is None:
            return "closed"
        answered = struct.unpack_from(">i", answer)[0]
        if answered == FENCE and not (correlation == FENCE and outcome == "silent"):
            return outcome
        assert answered == correlation, f"an answer to {answered}, expected {correlation}"
        assert outcome == "silent", "two answers to one request"
        outcome = "answered"
        if (key, version) == (case[0].api_key, case[1]):
            try:
                decode_response(case[0].response, answer, version)
            except Malformed as problem:
                raise AssertionError(f"the answer cannot be read: {problem}") from problem


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_fuzzed_requests_over_every_api_and_version(patient: Patient) -> None:
    create_topics(patient)
    storm(patient, 1, WARM_UP)  # codecs are compiled, pools are filled, the usual topics and groups are there
    with patient.unharmed(GROWS_MB):
        tally = storm(patient, 2, COUNT)
        patient.check_lines(tally.closed, tally.abandoned)
    print(
        f"\n{COUNT} fuzzed requests: {tally.answered} answered, {len(tally.closed)} closed with one line each, "
        f"{tally.silent} that wanted no answer, {len(tally.abandoned)} that waited"
    )
    assert tally.answered > COUNT // 10
    assert len(tally.closed) > COUNT // 10


def test_every_api_and_version_answers_a_sound_request(patient: Patient) -> None:
    """Random but well-formed requests are answered, and the answer can be read: nothing that is well-formed is hung up on."""
    create_topics(patient)
    for case in fuzz.served():
        for seed in range(3):
            rng = random.Random(f"sound {seed} {case[0].name} {case[1]}")
            cls, version = case
            data = fuzz.encode_request(fuzz.message(cls, version, rng), version, seed, "sound")
            with patient.connect() as client:
                outcome = exchange(client, data, case, seed)
                acks_zero = cls.name == "ProduceRequest" and outcome in ("silent", "closed")
                assert outcome in ("answered", "abandoned") or acks_zero, (
                    f"{cls.name} v{version} seed {seed}: {outcome} {data.hex()}"
                )
    patient.check()


def test_the_broker_starts_again_over_what_it_was_fed(patient: Patient) -> None:
    """Nothing that a client sent may keep a broker from its next start, after a stop or after a kill."""
    create_topics(patient)
    storm(patient, 3, 1_000)
    server = patient.server
    assert server.stop() == 0
    server.start()
    server.kill()
    server.start()
    Patient(server).check()
