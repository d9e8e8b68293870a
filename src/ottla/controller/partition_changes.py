"""What is asked of partitions that exist: another ISR, another leader, other replicas, a broker's leave."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from ottla.controller import alteration, election, reassignment, state
from ottla.controller.channels import Stop
from ottla.controller.reassignment import Assignment
from ottla.controller.reign import Reign
from ottla.controller.state import WriteState
from ottla.metadata import znodes
from ottla.metadata.image import PartitionState
from ottla.metadata.store import BadVersion, NoNode
from ottla.metadata.znodes import PartitionStateNode
from ottla.model import UNKNOWN_EPOCH, Error, KafkaError, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal

log = logging.getLogger("ottla.controller")

Results = dict[TopicPartition, KafkaError | None]


def _check_sender(reign: Reign, broker_id: int, broker_epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH for a broker that is not registered, or whose words are from an earlier life."""
    broker = reign.state.brokers.get(broker_id)
    if broker is None or broker_epoch != broker.epoch:
        raise KafkaError(
            Error.STALE_BROKER_EPOCH,
            f"Broker {broker_id} with epoch {broker_epoch} is not registered (current epoch: {broker and broker.epoch}).",
        )


async def alter(
    reign: Reign, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
) -> dict[TopicPartition, IsrOutcome]:
    """Grant or refuse what a leader wishes; all that is granted is one transaction, and then told to all."""
    _check_sender(reign, broker_id, broker_epoch)
    outcomes: dict[TopicPartition, IsrOutcome] = {}
    writes: dict[TopicPartition, WriteState] = {}
    for proposal in proposals:
        judgement = alteration.judged(reign.state, broker_id, proposal)
        if isinstance(judgement, WriteState):
            writes[proposal.tp] = judgement
        else:
            outcomes[proposal.tp] = judgement
    outcomes |= await _write_granted(reign, writes)
    changed = [tp for tp in writes if outcomes[tp].error is Error.NONE]
    reign.tell_metadata(changed)
    await reign.go_on(changed)
    return outcomes


async def _write_granted(reign: Reign, writes: dict[TopicPartition, WriteState]) -> dict[TopicPartition, IsrOutcome]:
    """Write what was granted; a state that somebody else has written meanwhile is left out, and read."""
    outcomes: dict[TopicPartition, IsrOutcome] = {}
    left = dict(writes)
    paths = {znodes.partition_state_path(*tp): tp for tp in writes}
    while left:
        try:
            await reign.write(list(left.values()))
            break
        except (BadVersion, NoNode) as problem:
            tp = paths.get(problem.path)
            if tp is None or tp not in left:
                raise
            del left[tp]
            outcomes[tp] = IsrOutcome(Error.INVALID_UPDATE_VERSION)
    return outcomes | {tp: alteration.as_it_is(reign.state, tp) for tp in left}


async def shut_down(reign: Reign, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
    """A broker wants to leave: move away what it leads, and take it out of the ISRs; what it leads still."""
    if broker_id not in reign.state.brokers:
        raise KafkaError(Error.BROKER_NOT_AVAILABLE, f"Broker {broker_id} is not registered.")
    if broker_epoch != UNKNOWN_EPOCH:  # old brokers do not tell it
        _check_sender(reign, broker_id, broker_epoch)
    reign.state.shutting_down.add(broker_id)
    followed = {tp for tp in reign.state.partitions_on({broker_id}) if _followed_by(reign, tp, broker_id)}
    writes = state.shut_down(reign.state, broker_id)
    await reign.write(writes)
    reign.outbox.stop(broker_id, [Stop(tp, reign.state.states[tp].leader_epoch, delete=False) for tp in sorted(followed)])
    reign.tell([write.tp for write in writes if write.tp not in followed])
    reign.tell([write.tp for write in writes if write.tp in followed], but=broker_id)
    left = state.still_led(reign.state, broker_id)
    log.info(
        "Broker %d is about to leave: %d partitions moved or went on without it, it leads %d", broker_id, len(writes), len(left)
    )
    return left


def _followed_by(reign: Reign, tp: TopicPartition, broker_id: int) -> bool:
    node = reign.state.states.get(tp)
    return node is not None and node.leader != broker_id and len(reign.state.replicas(tp)) > 1


async def elect_leaders(reign: Reign, unclean: bool, partitions: Collection[TopicPartition] | None) -> Results:
    """Give partitions (None: all) their preferred leader; or, unclean, any live replica to those that have none."""
    results: Results = {}
    writes: list[WriteState] = []
    for tp in dict.fromkeys(reign.state.partitions() if partitions is None else partitions):
        if not reign.state.knows(tp) or tp not in reign.state.states:
            results[tp] = KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
            continue
        action = _to_any(reign, tp) if unclean else _to_preferred(reign, tp)
        if isinstance(action, WriteState):
            writes.append(action)
            results[tp] = None
        elif partitions is not None or action.error is not Error.ELECTION_NOT_NEEDED:
            results[tp] = action
    await reign.write(writes)
    reign.tell([write.tp for write in writes])
    return results


def _to_preferred(reign: Reign, tp: TopicPartition) -> WriteState | KafkaError:
    node, replicas = reign.state.states[tp], reign.state.replicas(tp)
    if node.leader == replicas[0]:
        return KafkaError(Error.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    leader = election.preferred(replicas, node.isr, reign.state.may_lead(tp))
    if leader is None:
        return KafkaError(
            Error.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred leader {replicas[0]} of {tp} is not in sync, or not alive."
        )
    return reign.state.changed(tp, leader, node.isr)


def _to_any(reign: Reign, tp: TopicPartition) -> WriteState | KafkaError:
    node = reign.state.states[tp]
    if reign.state.serves(node.leader, tp):
        return KafkaError(Error.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    elected = election.after_failure(reign.state.replicas(tp), node.isr, reign.state.may_lead(tp), unclean_allowed=True)
    if elected is None:
        return KafkaError(Error.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {tp} is alive.")
    return reign.state.changed(tp, *elected)


async def rebalance(reign: Reign, percentage: int) -> None:
    """Bring leaders back to the brokers that lead too little of what they should."""
    partitions = state.to_preferred(reign.state, percentage)
    if partitions:
        log.info("Bringing %d partitions back to their preferred leaders, such as %s", len(partitions), partitions[0])
        await elect_leaders(reign, unclean=False, partitions=partitions)


async def reassign(reign: Reign, wanted: Mapping[TopicPartition, tuple[int, ...] | None]) -> Results:
    """Begin, replace or (None) cancel reassignments; each stands for itself."""
    results: Results = {}
    edits: dict[str, dict[int, Assignment]] = {}
    writes: list[WriteState] = []
    for tp, target in wanted.items():
        try:
            step = _begun(reign, tp, target)
        except KafkaError as refusal:
            results[tp] = refusal
            continue
        results[tp] = None
        if step is not None:
            edits.setdefault(tp.topic, {})[tp.partition] = step[0]
            writes.append(WriteState(tp, step[1], reign.state.state_versions[tp]))
    if writes:
        await reign.write(writes, after=reign.edited(edits))
        changed = [write.tp for write in writes]
        log.info("Reassigning %d partitions, such as %s", len(changed), changed[0])
        reign.tell(changed, added=frozenset(changed))
        await reign.go_on(changed)
    return results


def _begun(reign: Reign, tp: TopicPartition, target: tuple[int, ...] | None) -> tuple[Assignment, PartitionStateNode] | None:
    """Assignment and state to write; None if there is nothing to do."""
    node = reign.state.states.get(tp)
    if not reign.state.knows(tp) or node is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    current = reign.assignment(tp)
    if target is None:
        if not current.moving:
            raise KafkaError(Error.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        target = current.origin
    reassignment.check_target(target, current, reign.state.eligible)
    if target == current.replicas and not current.moving:
        return None
    return reassignment.begun(current, node, target, reign.state.may_lead(tp), reign.epoch)


def reassignments(reign: Reign, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, PartitionState]:
    """Partitions whose replicas change, of those asked for (None: all)."""
    if partitions is None:
        topics = reign.state.topics.values()
        partitions = [TopicPartition(one.name, number) for one in topics for number in sorted({*one.adding, *one.removing})]
    return {tp: reign.state.image(tp) for tp in partitions if reign.state.knows(tp) and reign.assignment(tp).moving}
