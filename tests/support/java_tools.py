"""Apache Kafka's command line tools, run in one JVM: a JVM of its own for each run would take most of a test's time.

The JVM (JPype) lives in a process of its own. What a tool prints is caught, and its call to exit becomes its exit code.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
from functools import cache
from multiprocessing.managers import BaseManager
from typing import Any, NamedTuple

from support import java

_OPTIONS = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xrs")

MAINS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "console-producer": "kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
}


class Result(NamedTuple):
    """How a tool ended."""

    code: int
    out: str
    err: str


class _Exited(Exception):
    """The tool called exit."""


class JavaTools:
    """The tools; lives in the helper."""

    def __init__(self) -> None:
        import jpype  # noqa: PLC0415 - in the helper only

        jpype.startJVM(*_OPTIONS, classpath=[f"{java.jars()}/*"], convertStrings=True)
        logs = jpype.JClass("org.apache.log4j.LogManager")
        logs.resetConfiguration()
        logs.getRootLogger().setLevel(jpype.JClass("org.apache.log4j.Level").OFF)
        stream, printer = jpype.JClass("java.io.ByteArrayOutputStream"), jpype.JClass("java.io.PrintStream")
        self._jpype, self._out, self._err = jpype, stream(), stream()
        # Once and for all: Scala's Console keeps the stream that it finds first.
        jpype.java.lang.System.setOut(printer(self._out, True))
        jpype.java.lang.System.setErr(printer(self._err, True))
        self._ended: Result | None = None
        procedure = jpype.JProxy("org.apache.kafka.common.utils.Exit$Procedure", dict={"execute": self._exit})
        exits = jpype.JClass("org.apache.kafka.common.utils.Exit")
        exits.setExitProcedure(procedure)
        exits.setHaltProcedure(procedure)

    def _exit(self, code: int, message: str | None) -> None:
        if self._ended is None:  # a tool that catches everything also catches what is raised here, and goes on
            if message is not None:
                self._jpype.java.lang.System.err.println(message)
            self._ended = self._result(int(code))
        raise _Exited

    def _result(self, code: int) -> Result:
        return Result(code, str(self._out.toString("UTF-8")), str(self._err.toString("UTF-8")))

    def run(self, main: str, arguments: list[str], stdin: str = "") -> Result:
        """Run a tool to its end."""
        jpype = self._jpype
        self._out.reset()
        self._err.reset()
        self._ended = None
        jpype.java.lang.System.setIn(jpype.JClass("java.io.ByteArrayInputStream")(stdin.encode()))
        try:
            jpype.JClass(main).main(jpype.JArray(jpype.JString)(arguments))
        except _Exited:
            pass
        except jpype.JException:
            return self._ended or self._result(1)  # nobody caught it: a JVM would print it and end with 1
        return self._ended or self._result(0)


class _Helper(BaseManager):
    """The process that holds the JVM."""


_Helper.register("JavaTools", JavaTools)


@cache
def _tools() -> Any:
    helper = _Helper(ctx=multiprocessing.get_context("spawn"))
    helper.start()
    owner = os.getpid()
    atexit.register(lambda: helper.shutdown() if os.getpid() == owner else None)
    return helper.JavaTools()  # type: ignore[attr-defined]


def run(tool: str, *arguments: str, stdin: str = "") -> Result:
    """Run the tool behind `kafka-TOOL.sh`."""
    result: Result = _tools().run(MAINS[tool], list(arguments), stdin)
    return result
