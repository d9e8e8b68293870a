"""Whether a leader's wish for another ISR is granted (AlterPartition): pure.

Guards: only the leader of the current epoch changes its ISR, from the state that it really has; nobody comes into the ISR who
is not alive, is about to leave, or is alive again since the leader saw it fetch.
"""

from __future__ import annotations

from ottla.controller.state import ClusterState, WriteState
from ottla.metadata.znodes import PartitionStateNode
from ottla.model import Error, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal


def judged(state: ClusterState, sender: int, proposal: IsrProposal) -> WriteState | IsrOutcome:
    """What to write, or the answer at once."""
    tp = proposal.tp
    topic = state.topics.get(tp.topic)
    if any(proposal.topic_id) and (topic is None or topic.topic_id != proposal.topic_id):
        return IsrOutcome(Error.UNKNOWN_TOPIC_ID)
    node = state.states.get(tp)
    if topic is None or node is None or tp.topic in state.deleting:
        return IsrOutcome(Error.UNKNOWN_TOPIC_OR_PARTITION)
    version = state.state_versions[tp]
    if proposal.leader_epoch > node.leader_epoch or proposal.version > version:
        return IsrOutcome(Error.NOT_CONTROLLER)  # it has heard of more than we have: from another controller
    if proposal.leader_epoch < node.leader_epoch:
        return IsrOutcome(Error.FENCED_LEADER_EPOCH)
    if sender != node.leader or sender not in proposal.isr:
        return IsrOutcome(Error.INVALID_REQUEST)
    if set(proposal.isr) == set(node.isr):
        return as_it_is(state, tp)  # also to an answer that was lost: what is wished for is there
    if proposal.version < version:
        return IsrOutcome(Error.INVALID_UPDATE_VERSION)
    if len(set(proposal.isr)) != len(proposal.isr) or not set(proposal.isr) <= set(state.replicas(tp)):
        return IsrOutcome(Error.INVALID_REQUEST)
    if not all(_may_be_in_sync(state, proposal, member) for member in proposal.isr if member != sender):
        return IsrOutcome(Error.INELIGIBLE_REPLICA)
    return WriteState(tp, PartitionStateNode(node.leader, node.leader_epoch, proposal.isr, state.controller_epoch), version)


def as_it_is(state: ClusterState, tp: TopicPartition) -> IsrOutcome:
    """The answer that tells the present state."""
    node = state.states[tp]
    return IsrOutcome(Error.NONE, node.leader, node.leader_epoch, node.isr, state.state_versions[tp])


def _may_be_in_sync(state: ClusterState, proposal: IsrProposal, member: int) -> bool:
    if member in state.shutting_down or not state.serves(member, proposal.tp):
        return False
    seen = proposal.broker_epochs.get(member, -1)
    return seen in (-1, state.brokers[member].epoch)
