"""Spark's session for a pipeline: whether it can be had, its settings, and where the JVM's words go.

Guards: without Java or pyspark one line says what to install. What the JVM and its workers print goes to a file in the
pipeline's directory: a terminal that shows a table has no room for it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA = 17


class NoSpark(Exception):
    """Spark cannot be started; the text says why in one line."""


def missing() -> str | None:
    """Why Spark cannot run here, and what to install; None if it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return 'pyspark is not installed: pip install "ottla[pipelines]"'
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    install = f"install Java {_JAVA} (package openjdk-{_JAVA}-jre-headless)"
    if java is None:
        return f"Spark needs Java {_JAVA}, which is not installed: {install}"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    if match is None or int(match[1]) < _JAVA:
        return f"Spark needs Java {_JAVA} or newer, and {java} is {match[1] if match else 'unknown'}: {install}"
    return None


def open_session(name: str, directory: Path, master: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of a pipeline."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only a pipeline that runs needs it

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"ottla-{name}").master(master)
    known = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **settings,
    }
    for key, value in known.items():
        builder = builder.config(key, value)
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # what they say is told in one line
        logging.getLogger(logger).disabled = True
    log = directory / "spark.log"
    logging.getLogger().addHandler(logging.FileHandler(log, encoding="utf-8"))  # py4j tells a lost JVM in tracebacks
    try:
        with _errors_to(log):
            return builder.getOrCreate()
    except Exception as problem:  # of py4j, of Spark, of the JVM
        words = next((line for line in str(problem).splitlines() if "Exception:" in line), str(problem).partition("\n")[0])
        raise NoSpark(
            f"Spark does not start with master {master}: {words.removeprefix(': ').strip()} (more in {log})"
        ) from None


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Have what is started meanwhile write its errors to a file, for as long as it lives."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
