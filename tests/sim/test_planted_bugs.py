"""The checks can fail: each planted bug is caught by the rule that it breaks, within some seeds."""

import os
import subprocess
import sys

import planted
import pytest

from ottla.testing.sim.__main__ import ENVIRONMENT


@pytest.mark.slow
@pytest.mark.parametrize("bug", planted.PLANTS)
def test_a_planted_bug_is_caught(bug):
    done = subprocess.run(
        [sys.executable, planted.__file__, bug],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
