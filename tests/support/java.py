"""Java and Apache Kafka's jars: whether they are here, and how one of its programs is run.

Looked for in $OTTLA_KAFKA_JARS, in .cache/kafka (made by `scripts/prepare java`) and in /tmp/ak/jars. A test that
needs them has the marker `java`; it is skipped with `missing()` as the reason, and in CI a skip is a failure (see conftest).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# A tool lives for a second or two on a small machine: compile little, collect simply, share the JDK's class data.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


@cache
def jars() -> Path | None:
    """The directory that holds Apache Kafka's jars."""
    places = [os.environ.get("OTTLA_KAFKA_JARS"), _ROOT / ".cache" / "kafka", Path(tempfile.gettempdir()) / "ak" / "jars"]
    for place in places:
        if place and any(Path(place).glob("kafka_2.13-3.9.*.jar")):
            return Path(place)
    return None


def missing() -> str | None:
    """What is not here, and how to get it; None where all is here."""
    if shutil.which("java") is None:
        return "Java is not installed (`scripts/prepare java` installs it where it may)"
    if jars() is None:
        return "Apache Kafka's jars are not here (`scripts/prepare java` fetches them, or set OTTLA_KAFKA_JARS)"
    return None


def command(main: str, *args: str, heap: str = "256m", options: Sequence[str] = _SHORT_LIVED) -> list[str]:
    """The command line that runs a class from the jars."""
    return ["java", f"-Xmx{heap}", *options, "-cp", f"{jars()}/*", main, *args]


def run(main: str, *args: str, stdin: str = "", timeout: float = 90, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one of the tools to its end; with `check`, an exit code other than 0 fails with what it said."""
    result = subprocess.run(command(main, *args), input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and result.returncode != 0:
        raise AssertionError(f"{main} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return result
