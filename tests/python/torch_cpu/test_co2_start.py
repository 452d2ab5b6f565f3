"""A program with overlace.optim.CO2, started by torchrun, `overlace run` and mpirun: the same parameters at the end."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import ranks  # skips where there is no torch

PROGRAM = """
import json, os
import overlace, torch, torch.distributed as dist

torch.set_num_threads(1)
for name, of_mpi in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
    os.environ.setdefault(name, os.environ.get(of_mpi, ""))
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(5, 3)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
with overlace.optim.CO2(model, inner, tau=2, link="20MB/s,50us", outer_timeout_s=60) as co2:
    for step in range(7):
        inner.zero_grad()
        generator = torch.Generator().manual_seed(100 * dist.get_rank() + step)
        model(torch.randn(4, 5, generator=generator)).square().mean().backward()
        inner.step()
    transport = co2.transport
print("said " + json.dumps([dist.get_rank(), transport, [p.tolist() for p in model.parameters()]]), flush=True)
dist.destroy_process_group()
"""
OVERLACE = os.environ.get("OVERLACE_BIN", "overlace")
WAYS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}"],
    "overlace run": [OVERLACE, "run", "-n", "2", "--", sys.executable],
    "mpirun": ["mpirun", "--oversubscribe", "-n", "2", sys.executable],
}


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def ends_of(way: str, path: str) -> list:
    port = free_port()
    words = [word.format(port=port) for word in WAYS[way]]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if way == "mpirun":  # the others say these themselves
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run([*words, path], capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line.partition("said ")[2]) for line in done.stdout.splitlines() if "said " in line]
    return sorted(said)


def test_whoever_starts_it_ranks_end_alike(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    ways = [way for way, words in WAYS.items() if shutil.which(words[0])]
    assert ways[0] == "torchrun"
    ends = {way: ends_of(way, str(path)) for way in ways}
    for way, said in ends.items():
        assert [rank for rank, _, _ in said] == [0, 1], way
        assert [transport for _, transport, _ in said] == ["host", "host"], way
        assert said[0][2] == said[1][2] == ends["torchrun"][0][2], way
    if "mpirun" not in ways or "overlace run" not in ways:
        pytest.skip(f"started by {', '.join(ways)} alone: the others are not installed")
    assert ranks.overlace is not None
