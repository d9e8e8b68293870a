"""Whole clusters in one process, from a seed: real brokers over a virtual clock, a network, a store and disks that fail.

`python -m ottla.testing.sim --seeds 100` runs a hundred; `--seed N --trace` shows one. After each run a checker holds its
history against Kafka's promises (`checker`).
"""

from ottla.testing.sim.checker import Violation, check
from ottla.testing.sim.run import Options, Result, simulate

__all__ = ["Options", "Result", "Violation", "check", "simulate"]
