"""A cluster of the simulation: real brokers whose surroundings are not, and what an operator, or fate, does to them.

Each broker lives on a machine of its own (a host name, a directory, a clock that is a little off). A life of it is a process:
`start` begins one, and tries again where the start fails, as whoever supervises a broker would; `kill` ends one and leaves the
files, `power_cut` ends one and takes what was not synced; `stop` is SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from ottla.broker import Broker, StartError
from ottla.config import BrokerConfig
from ottla.model import TopicPartition
from ottla.storage.log import Log
from ottla.storage.manager import LogManager
from ottla.storage.slices import OPEN_FILES
from ottla.surroundings import Surroundings
from ottla.testing.sim.disk import Disk
from ottla.testing.sim.history import Fault, History
from ottla.testing.sim.loop import Process, SimClock, SimLoop
from ottla.testing.sim.network import Network, SimServer
from ottla.testing.sim.observe import Watch
from ottla.testing.sim.store import HOST as STORE_HOST
from ottla.testing.sim.store import Keeper

PORT = 9092
_START_AGAIN = 1.0
_LOOK_EVERY = 0.05

SETTINGS: Mapping[str, str] = {
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.session.timeout.ms": "6000",
    "log.cleaner.enable": "false",
    "log.index.size.max.bytes": "16384",
    "log.segment.bytes": "20000",
    "log.initial.task.delay.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.flush.start.offset.checkpoint.interval.ms": "5000",
    "num.recovery.threads.per.data.dir": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
    "replica.lag.time.max.ms": "5000",
    "replica.high.watermark.checkpoint.interval.ms": "2000",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.max.retries": "3",
}
"""What the brokers are set to, where the broker's number does not decide."""


@dataclass(slots=True)
class Machine:
    """Where one broker lives."""

    number: int
    host: str
    directory: str
    config: BrokerConfig
    clock: SimClock
    lives: int = 0
    wanted: bool = False
    """Whether somebody sees to it that the broker runs."""
    process: Process | None = None
    broker: Broker | None = None
    logs: LogManager | None = None
    """What the process has locked."""
    serving: bool = False
    stopping: bool = False
    errors: list[str] = field(default_factory=list)


class Cluster:
    """Brokers 1 to n."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        history: History,
        root: str,
        brokers: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.loop = loop
        self.history = history
        self.network = Network(loop, Random(random.random()))
        self.keeper = Keeper(loop, self.network, Random(random.random()), history)
        self.disk = Disk(Random(random.random()))
        self.watch = Watch(loop, history)
        self._random = random
        replicas = min(brokers, 3)
        shared = {
            **SETTINGS,
            "default.replication.factor": str(replicas),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(min(replicas, 2)),
            "min.insync.replicas": str(min(replicas, 2)),
            **(settings or {}),
        }
        self.machines = {number: self._machine(number, root, shared) for number in range(1, brokers + 1)}

    def _machine(self, number: int, root: str, shared: Mapping[str, str]) -> Machine:
        host, directory = f"broker-{number}", os.path.join(root, f"broker-{number}")
        own = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://{host}:{PORT}",
            "log.dirs": directory,
            "broker.rack": f"rack-{number % 3}",
        }
        clock = SimClock(self.loop, self._random.randint(-300, 300))
        return Machine(number, host, directory, BrokerConfig({**shared, **own}), clock)

    # ---- lives -----------------------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Begin to run a broker; it serves after a while."""
        machine = self.machines[number]
        if machine.wanted:
            return
        machine.wanted = True
        if machine.host in self.network.dark:
            self.network.dark.discard(machine.host)
            self.network.flow()
        self._begin(machine)

    def _begin(self, machine: Machine) -> None:
        machine.lives += 1
        process = machine.process = Process(f"{machine.host}.{machine.lives}", machine.host, machine.number)
        self.loop.create_task(self._live(machine, process), context=process.context)

    async def _live(self, machine: Machine, process: Process) -> None:
        """One life of a broker, in its own process."""
        random = Random(self._random.random())
        surroundings = Surroundings(
            clock=machine.clock,
            random=random,
            dial=self.network.dial_from(process),
            open_line=self.network.dial_from(process),
            make_server=partial(SimServer, self.network),
            open_store=self.keeper.open,
            run_blocking=partial(self._run_blocking, machine, random),
        )
        machine.broker = broker = Broker(machine.config, surroundings)
        try:
            await broker.start()
        except StartError as problem:
            machine.errors.append(f"{self.loop.time():.3f} {process}: {problem}")
            self.loop.call_later(_START_AGAIN, self._try_again, machine, process, context=Process("init", machine.host).context)
            return
        machine.serving = True
        await asyncio.gather(broker.failed.wait())

    def _try_again(self, machine: Machine, process: Process) -> None:
        if machine.wanted and machine.process is process:
            self._end(machine)
            self._begin(machine)

    async def _run_blocking(self, machine: Machine, random: Random, function: Callable[..., Any], *args: Any) -> Any:
        """What a thread would do: begun after a while, and known to be done after another while."""
        await asyncio.sleep(random.uniform(0.0, 0.002))
        try:
            done = function(*args)
            if isinstance(done, LogManager):
                machine.logs = done  # a kill may come before the broker hears that it has them
            return done
        finally:
            await asyncio.sleep(random.uniform(0.0, 0.002))

    def kill(self, number: int) -> None:
        """kill -9: what was written stays."""
        machine = self.machines[number]
        if machine.process is None:
            return
        machine.wanted = False
        self._end(machine)
        self.note("kill", f"broker {number}")

    def power_cut(self, number: int) -> None:
        """Its machine loses power: what was not synced may be gone, and nobody is told that it is."""
        machine = self.machines[number]
        if machine.process is None:
            return
        machine.wanted = False
        self.network.dark.add(machine.host)
        self.network.went_dark(machine.process)
        self._end(machine)
        lost = self.disk.power_cut(machine.directory)
        self.note("power cut", f"broker {number}: {'; '.join(lost) or 'nothing was lost'}")

    def _end(self, machine: Machine) -> None:
        """The process is gone, and what the kernel does about it."""
        process = machine.process
        assert process is not None
        self.loop.kill(process)
        if machine.host not in self.network.dark:
            self.network.killed(process)
        _close_files(machine)
        machine.process, machine.broker, machine.serving, machine.stopping = None, None, False, False
        self.keeper.look()

    def stop(self, number: int) -> None:
        """SIGTERM: the broker leaves by itself."""
        machine = self.machines[number]
        if machine.process is None or machine.broker is None or not machine.serving or machine.stopping:
            return
        machine.wanted, machine.stopping = False, True
        self.note("stop", f"broker {number}")
        self.loop.create_task(self._leave(machine, machine.process, machine.broker), context=machine.process.context)

    async def _leave(self, machine: Machine, process: Process, broker: Broker) -> None:
        await broker.stop()
        if machine.process is process:
            self._end(machine)

    def pause(self, number: int) -> None:
        """SIGSTOP."""
        process = self.machines[number].process
        if process is not None and not process.paused:
            self.loop.pause(process)
            self.keeper.look()
            self.note("pause", f"broker {number}")

    def resume(self, number: int) -> None:
        """SIGCONT."""
        process = self.machines[number].process
        if process is not None and process.paused:
            self.loop.resume(process)
            self.keeper.look()
            self.note("resume", f"broker {number}")

    # ---- between them ----------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Stop what goes between two hosts."""
        self.network.cut(source, target)
        if both:
            self.network.cut(target, source)
        self.keeper.look()
        self.note("cut", f"{source} {'<->' if both else '->'} {target}")

    def isolate(self, number: int, *, store: bool) -> None:
        """Cut a broker off from the others, or from the store."""
        host = self.machines[number].host
        others = [STORE_HOST] if store else [one.host for one in self.machines.values() if one.number != number]
        for other in others:
            self.network.cut(host, other)
            self.network.cut(other, host)
        self.keeper.look()
        self.note("isolate", f"broker {number} from {'the store' if store else 'the other brokers'}")

    def heal(self) -> None:
        """All links work again, and so does the store."""
        self.network.heal()
        self.network.slow.clear()
        self.keeper.down = False
        self.keeper.lost_answers = 0.0
        self.keeper.look()
        self.note("heal", "all links")

    def store_down(self) -> None:
        """Nobody reaches the store."""
        self.keeper.down = True
        self.keeper.look()
        self.note("store down", "")

    def store_up(self) -> None:
        """The store answers again."""
        self.keeper.down = False
        self.keeper.look()
        self.note("store up", "")

    def note(self, kind: str, text: str) -> None:
        """Write down what was done."""
        self.history.add(Fault(self.loop.time(), kind, text))

    # ---- how it is -------------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(machine.host, PORT) for machine in self.machines.values()]

    @property
    def all_serving(self) -> bool:
        return all(machine.serving for machine in self.machines.values())

    def log_of(self, number: int, tp: TopicPartition) -> Log | None:
        """A broker's log, if it runs."""
        broker = self.machines[number].broker
        logs = broker._logs if broker is not None else None
        return logs.logs.get(tp) if logs is not None else None

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until something is so; whether it is."""
        deadline = self.loop.time() + timeout
        while not condition():
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_EVERY)
        return True


def _close_files(machine: Machine) -> None:
    """What the kernel does for a process that died: its files are closed, its locks are gone."""
    logs, machine.logs = machine.logs, None
    if logs is not None:
        for one in list(logs.logs.values()):
            for segment in one.segments:
                segment.forget_file()
        logs.abandon()
    for path in [path for path in OPEN_FILES._files if path.startswith(machine.directory + os.sep)]:
        OPEN_FILES.forget(path)
