"""`python -m ottla.testing.sim`: many seeds on all cores, or one with its trace.

A failing seed is printed with the command that runs it again. The hash seed of Python is part of what a run depends on, so the
command starts itself anew with a fixed one; and with the plain source, because what is compiled lets nobody watch (`observe`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from random import SystemRandom

from ottla.testing.sim.run import SECONDS, Options, Result, simulate

_SEEDS_PER_WORKER = 50  # then a fresh one takes its place, so that nothing gathers
_SHOWN = 6


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m ottla.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, help="the first of them (default: drawn, and printed)")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event and log line")
    parser.add_argument("--brokers", type=int, help="how many brokers (default: 3 to 5, by the seed)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of load and faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    chosen = parser.parse_args(arguments)
    options = Options(brokers=chosen.brokers, seconds=chosen.seconds, trace=chosen.trace and chosen.seed is not None)
    if chosen.seed is not None:
        results = [simulate(chosen.seed, options)]
        print(f"history {results[0].digest}")
    else:
        first = SystemRandom().randrange(1 << 31) if chosen.first is None else chosen.first
        print(f"seeds {first} to {first + chosen.seeds - 1}", flush=True)
        results = _run_all(range(first, first + chosen.seeds), options, chosen.jobs)
    return _report(results, options)


def _run_all(seeds: Iterable[int], options: Options, jobs: int) -> list[Result]:
    results: list[Result] = []
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=_SEEDS_PER_WORKER) as pool:
        for result in pool.imap_unordered(partial(simulate, options=options), seeds):
            results.append(result)
            if not result.ok:
                _show(result, options)
    return results


def _show(result: Result, options: Options) -> None:
    print(f"seed {result.seed} ({result.brokers} brokers) broke {len(result.violations)} promises:")
    for violation in result.violations[:_SHOWN]:
        print(f"  {violation}")
    if len(result.violations) > _SHOWN:
        print(f"  ... and {len(result.violations) - _SHOWN} more")
    print(f"  again: {command(result.seed, options)}", flush=True)


def command(seed: int, options: Options) -> str:
    """What runs a seed again, with its trace."""
    parts = ["python -m ottla.testing.sim", f"--seed {seed}", "--trace"]
    if options.brokers is not None:
        parts.append(f"--brokers {options.brokers}")
    if options.seconds != SECONDS:
        parts.append(f"--seconds {options.seconds:g}")
    return " ".join(parts)


def _report(results: list[Result], options: Options) -> int:
    failed = [result for result in results if not result.ok]
    if len(results) == 1 and failed:
        _show(failed[0], options)
    faults: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
    print(
        f"{len(results)} runs, {len(failed)} failed: {sum(one.acknowledged for one in results):,} records acknowledged, "
        f"{sum(one.elections for one in results):,} changes of leaders and ISRs, "
        f"{sum(one.virtual_s for one in results) / 3600:.1f} h of virtual time in "
        f"{sum(one.real_s for one in results) / 60:.1f} min of a core"
    )
    print("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items())))
    if failed:
        print("failing seeds: " + " ".join(str(result.seed) for result in sorted(failed, key=lambda one: one.seed)))
    return 1 if failed else 0


ENVIRONMENT = {"PYTHONHASHSEED": "0", "OTTLA_PLAIN": "1"}
"""What a process has to be started with, to run a seed as any other does."""


def _as_any_other() -> None:
    """Start anew where sets of text would be gone through in another order, or compiled code would run."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", "ottla.testing.sim", *sys.argv[1:]])


if __name__ == "__main__":
    _as_any_other()
    began = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - began:.0f} s")
    sys.exit(code)
