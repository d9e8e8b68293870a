"""Which form of the compiled modules runs: the binaries, or the plain sources beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ottla import compiled

ASK = "import ottla.compiled, ottla.model; print(ottla.compiled.PLAIN_BECAUSE)"
SHOW = "import ottla.storage.slices as one; print(one.__file__)"


def python(source: Path, code: str, **environment: str) -> str:
    found = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source)} | environment
    return subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with a library that is as new as its sources; nothing in it is a real binary."""
    source = tmp_path / "src"
    shutil.copytree(Path(compiled.__file__).parent, source / "ottla", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "setup.py").touch()
    (source / f"{compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}").touch()
    return source


def test_every_module_in_the_list_has_a_source() -> None:
    assert all(os.path.exists(compiled.source_of(module)) for module in compiled.MODULES)


def test_binaries_run_where_they_are_as_new_as_the_sources(tree: Path) -> None:
    assert python(tree, ASK) == ""


def test_one_newer_source_and_all_run_plain(tree: Path) -> None:
    changed = tree / "ottla/storage/slices.py"
    later = time.time() + 3600
    os.utime(changed, (later, later))
    (tree / f"ottla/storage/slices{EXTENSION_SUFFIXES[0]}").write_text("not a binary")
    assert "older than their sources" in python(tree, ASK)
    assert python(tree, SHOW) == str(changed)


def test_what_pip_installed_is_taken_as_it_is(tree: Path) -> None:
    (tree.parent / "setup.py").unlink()
    later = time.time() + 3600
    os.utime(tree / "ottla/storage/slices.py", (later, later))
    assert python(tree, ASK) == ""


def test_plain_where_nothing_was_compiled_or_somebody_asks_for_it(tree: Path) -> None:
    assert "OTTLA_PLAIN" in python(tree, ASK, OTTLA_PLAIN="1")
    (tree / f"{compiled.LIBRARY}{EXTENSION_SUFFIXES[0]}").unlink()
    assert "not installed" in python(tree, ASK)


@pytest.mark.skipif("OTTLA_REQUIRE_NATIVE" not in os.environ, reason="only CI requires what is compiled")
def test_ci_tests_what_is_shipped() -> None:
    assert compiled.PLAIN_BECAUSE == ""
