"""Which modules are compiled to C (by mypyc, out of the very source that runs without), and whether those binaries may run.

Guards: a source tree never runs binaries that are older than its sources. The compiled modules call each other in C and know
each other's layout, so it is all of them or none: where one source is newer, all run as plain Python, and the broker says so
once at start. `OTTLA_PLAIN=1` asks for plain Python: a profiler or a debugger sees nothing of what is compiled.

What is compiled is what every request passes through. A module that tests must change from outside stays plain, as does one
that would gain nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from typing import Any, Final

MODULES: Final = (
    "ottla.api.fetch",
    "ottla.api.fetch_sessions",
    "ottla.api.follower_reading",
    "ottla.api.offset_commits",
    "ottla.api.produce",
    "ottla.api.reading",
    "ottla.api.registry",
    "ottla.api.transactions",
    "ottla.api.verification",
    "ottla.coordinator.appending",
    "ottla.coordinator.commits",
    "ottla.coordinator.group_shard",
    "ottla.coordinator.groups",
    "ottla.coordinator.guards",
    "ottla.coordinator.hashing",
    "ottla.coordinator.markers",
    "ottla.coordinator.offsets",
    "ottla.coordinator.pending_offsets",
    "ottla.coordinator.plain_offsets",
    "ottla.coordinator.record_format",
    "ottla.coordinator.runtime",
    "ottla.coordinator.transaction_format",
    "ottla.coordinator.transaction_shard",
    "ottla.coordinator.transactions",
    "ottla.journal",
    "ottla.markers",
    "ottla.metrics",
    "ottla.network.answers",
    "ottla.network.buffers",
    "ottla.network.connection",
    "ottla.network.leader",
    "ottla.network.haste",
    "ottla.network.link",
    "ottla.network.outgoing",
    "ottla.network.pacing",
    "ottla.network.peer",
    "ottla.network.readiness",
    "ottla.records.batch",
    "ottla.records.plain",
    "ottla.replication.deadlines",
    "ottla.replication.gathering",
    "ottla.replication.isr",
    "ottla.replication.leaders",
    "ottla.replication.partition",
    "ottla.replication.waiting",
    "ottla.storage.append",
    "ottla.storage.epochs",
    "ottla.storage.index",
    "ottla.storage.log",
    "ottla.storage.producers",
    "ottla.storage.segment",
    "ottla.storage.segments",
    "ottla.storage.slices",
    "ottla.wire.frame",
    "ottla.wire.plain_commit",
    "ottla.wire.plain_produce",
)
LIBRARY: Final = "ottla__mypyc"
"""Where all of their code is; what lies beside each source only leads there."""

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def source_of(module: str) -> str:
    """The path of a module's source."""
    return os.path.join(_ROOT, *module.split(".")) + ".py"


def _state() -> str:
    """Why nothing compiled runs; an empty text where it does."""
    if os.environ.get("OTTLA_PLAIN", "0") not in ("", "0"):
        return "OTTLA_PLAIN is set"
    library = os.path.join(_ROOT, LIBRARY + EXTENSION_SUFFIXES[0])
    try:
        built = os.stat(library).st_mtime_ns
    except OSError:
        return "the compiled modules are not installed; install with a C compiler to get them"
    # What pip installed belongs together. Beside a setup.py lie sources that somebody may have changed since.
    in_source_tree = os.path.exists(os.path.join(os.path.dirname(_ROOT), "setup.py"))
    if in_source_tree and any(os.stat(source_of(module)).st_mtime_ns > built for module in MODULES):
        return "the compiled modules are older than their sources; `make native` builds them anew"
    return ""


class _FromSource:
    """Finds the modules' sources before the import system finds binaries beside them."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        from importlib.util import spec_from_file_location  # noqa: PLC0415 - seldom needed, and slow to import

        return spec_from_file_location(name, source_of(name))


PLAIN_BECAUSE: Final = _state()
"""Why these modules run as plain Python, slower; empty where they run compiled."""

if PLAIN_BECAUSE:
    sys.meta_path.insert(0, _FromSource)
