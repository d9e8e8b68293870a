"""Who does not use the client does not pay for it."""

from __future__ import annotations

import subprocess
import sys


def _python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_broker_does_not_load_pyarrow() -> None:
    assert _python("import sys, ottla.broker, ottla.cli.server, ottla.testing; print('pyarrow' in sys.modules)") == "False\n"


def test_without_pyarrow_the_client_says_what_to_install() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import ottla.client.admin.topics, ottla.client.cluster
try:
    from ottla.client import read
except ImportError as problem:
    print(problem)
"""
    assert _python(program) == 'ottla.client needs pyarrow: pip install "ottla[client]"\n'
