"""The examples of the Python package check themselves: some as programs, the others on ranks that are there already."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from ranks import run_ranks, torch

EXAMPLES = Path(__file__).resolve().parents[3] / "python" / "examples"
ALONE = {
    "tp_llama_training": "equal to the unsharded run",
    "swap_symm_mem": "all was equal",
    "co2_fsdp": "all was equal",  # of four ranks
    "co2_zero1": "all was equal",  # of four ranks
}
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "launch")


@pytest.mark.parametrize("name", sorted(ALONE))
def test_example_as_a_program(name):
    words = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == ALONE[name]


def example(_group, name):
    torch._dynamo.reset()
    sys.path.insert(0, str(EXAMPLES))
    importlib.import_module(name).run(ranks.spare, "cpu")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALONE])
def test_example(name):
    if name == "llama_inference":
        pytest.importorskip("transformers")
    run_ranks(2, example, name)
