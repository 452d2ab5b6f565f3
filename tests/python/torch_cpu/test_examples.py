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
    "gnn_pyg": "all was equal",
}
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "launch")


@pytest.mark.parametrize("name", sorted(ALONE))
def test_example_as_a_program(name):
    if name == "gnn_pyg":
        pytest.importorskip("torch_geometric")
    words = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == ALONE[name]


RANK = """
import os, sys
sys.path.insert(0, sys.argv[3])
import launch, overlace, torch

def run(group, device):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3), process_group=group)
    model.register_comm_hook(None, overlace.optim.co2_hook)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = overlace.optim.CO2(model, inner, tau=1, outer_group=group, transport="host")
    with overlace.init(group):
        for step in range(3):
            model(overlace.ops.all_reduce(torch.ones(4, 5), group=group)).sum().backward()
            optimizer.step()
    optimizer.flush()
    optimizer.close()

launch._work(int(sys.argv[1]), run, 2, "cpu", sys.argv[2])
tasks = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
print([name for name in (open(task).read() for task in tasks) if "gloo" in name])
"""


def test_no_thread_of_gloo_outlives_the_group(tmp_path):
    """One that frees a tensor while the interpreter ends would end the process with std::terminate."""
    words = [str(tmp_path / "store"), str(EXAMPLES)]
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(r), *words], stdout=subprocess.PIPE) for r in range(2)]
    try:
        printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert printed == [b"[]\n", b"[]\n"]


def example(_group, name):
    torch._dynamo.reset()
    sys.path.insert(0, str(EXAMPLES))
    importlib.import_module(name).run(ranks.spare, "cpu")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALONE])
def test_example(name):
    if name == "llama_inference":
        pytest.importorskip("transformers")
    run_ranks(2, example, name)
