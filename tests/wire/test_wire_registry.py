"""Every request of Apache Kafka 3.9 in ZooKeeper mode is declared, under its key and in all its versions.

ConsumerGroupHeartbeat has version 1 of Apache Kafka 4.0 besides: librdkafka speaks no older one.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from ottla.wire.apis import FAMILIES, REQUESTS, RESPONSES, ApiKey
from ottla.wire.schema import Message

# key, name, last version, first flexible version (None: no version is); the first version is always 0.
TABLE = """
0 Produce 11 9
1 Fetch 17 12
2 ListOffsets 9 6
3 Metadata 12 9
4 LeaderAndIsr 7 4
5 StopReplica 4 2
6 UpdateMetadata 8 6
7 ControlledShutdown 3 3
8 OffsetCommit 9 8
9 OffsetFetch 9 6
10 FindCoordinator 6 3
11 JoinGroup 9 6
12 Heartbeat 4 4
13 LeaveGroup 5 4
14 SyncGroup 5 4
15 DescribeGroups 5 5
16 ListGroups 5 3
17 SaslHandshake 1 None
18 ApiVersions 4 3
19 CreateTopics 7 5
20 DeleteTopics 6 4
21 DeleteRecords 2 2
22 InitProducerId 5 2
23 OffsetForLeaderEpoch 4 4
24 AddPartitionsToTxn 5 3
25 AddOffsetsToTxn 4 3
26 EndTxn 4 3
27 WriteTxnMarkers 1 1
28 TxnOffsetCommit 4 3
29 DescribeAcls 3 2
30 CreateAcls 3 2
31 DeleteAcls 3 2
32 DescribeConfigs 4 4
33 AlterConfigs 2 2
34 AlterReplicaLogDirs 2 2
35 DescribeLogDirs 4 2
36 SaslAuthenticate 2 2
37 CreatePartitions 3 2
38 CreateDelegationToken 3 2
39 RenewDelegationToken 2 2
40 ExpireDelegationToken 2 2
41 DescribeDelegationToken 3 2
42 DeleteGroups 2 2
43 ElectLeaders 2 2
44 IncrementalAlterConfigs 1 1
45 AlterPartitionReassignments 0 0
46 ListPartitionReassignments 0 0
47 OffsetDelete 0 None
48 DescribeClientQuotas 1 1
49 AlterClientQuotas 1 1
50 DescribeUserScramCredentials 0 0
51 AlterUserScramCredentials 0 0
56 AlterPartition 3 0
57 UpdateFeatures 1 0
58 Envelope 0 0
60 DescribeCluster 1 0
61 DescribeProducers 0 0
65 DescribeTransactions 0 0
66 ListTransactions 1 0
67 AllocateProducerIds 0 0
68 ConsumerGroupHeartbeat 1 0
69 ConsumerGroupDescribe 0 0
75 DescribeTopicPartitions 0 0
"""


def test_the_table_is_complete() -> None:
    declared = []
    for key, request in REQUESTS.items():
        flexible = request.flexible if request.flexible <= request.max_version else None
        declared.append(f"{key} {request.name.removesuffix('Request')} {request.max_version} {flexible}")
        assert request.min_version == 0
    assert declared == TABLE.split("\n")[1:-1]


def test_requests_and_responses_are_paired() -> None:
    assert list(REQUESTS) == list(RESPONSES) == sorted(ApiKey)
    for key, request in REQUESTS.items():
        response = RESPONSES[key]
        assert request.response is response
        assert response.name == request.name.removesuffix("Request") + "Response"
        for attribute in ("api_key", "min_version", "max_version", "flexible"):
            assert getattr(response, attribute) == getattr(request, attribute)
        assert request.__module__ == response.__module__ == f"ottla.wire.apis.{FAMILIES[key]}"


def test_no_field_hides_what_a_class_offers() -> None:
    offered = {name for name in dir(Message) if not name.startswith("__")} | set(Message.__annotations__)
    for cls in (*REQUESTS.values(), *RESPONSES.values()):
        assert not offered & {field.name for field in cls.__fields__}


def test_unknown_keys() -> None:
    assert 52 not in REQUESTS
    assert REQUESTS.get(999) is None
    with pytest.raises(KeyError):
        RESPONSES[999]


def test_families_are_loaded_when_they_are_needed() -> None:
    """A broker that starts pays only for what it serves."""
    program = "import sys; from ottla.wire.apis import REQUESTS; REQUESTS[0]; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "ottla.wire.apis.produce" in loaded
    assert "ottla.wire.apis.acls" not in loaded
