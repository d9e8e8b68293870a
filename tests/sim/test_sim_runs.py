"""Whole runs: a fixed set of seeds and a fresh one, and the same seed twice."""

import os
import subprocess
import sys

import pytest

FIXED, FRESH = 8, 8
LONG = bool(os.environ.get("OTTLA_SOAK"))


def sim(*arguments):
    """The command, in a process of its own; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.testing.sim", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280 if not LONG else 3000,
        check=False,
    )
    print(done.stdout[-5000:], done.stderr[-5000:])  # pytest shows it where the test fails: the failing seeds
    assert done.returncode == 0, f"the simulation failed:\n{done.stdout[-5000:]}{done.stderr[-3000:]}"
    return done.stdout


def history_of(output):
    return next(line for line in output.splitlines() if line.startswith("history "))


def test_a_seed_runs_the_same_way_twice():
    first, second = (history_of(sim("--seed", 7, "--seconds", 10)) for _ in range(2))
    assert first == second
    assert first != history_of(sim("--seed", 8, "--seconds", 10))


def test_a_trace_changes_nothing():
    assert history_of(sim("--seed", 7, "--seconds", 5)) == history_of(sim("--seed", 7, "--seconds", 5, "--trace"))


@pytest.mark.slow
def test_fixed_seeds():
    sim("--from", 1, "--seeds", FIXED)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(3600 if LONG else 300)
def test_fresh_seeds():
    print(sim("--seeds", 500 if LONG else FRESH))


@pytest.mark.slow
def test_a_single_broker_keeps_its_promises_too():
    sim("--from", 1, "--seeds", 8, "--brokers", 1)
