"""The examples of the Python package check themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ranks")  # skips with its reason where torch or the package is missing
EXAMPLES = Path(__file__).resolve().parents[3] / "python" / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(path):
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "equal to the unsharded run"
