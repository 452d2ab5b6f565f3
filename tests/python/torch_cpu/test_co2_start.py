"""A program with overlace.optim.CO2, started by torchrun, `overlace run` and mpirun, on one host and on several over
MPI: the same parameters at the end."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ranks  # skips where there is no torch

PROGRAM = """
import json, os, socket
import overlace, torch, torch.distributed as dist

torch.set_num_threads(1)
for name, of_mpi in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
    os.environ.setdefault(name, os.environ.get(of_mpi, ""))
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(5, 3)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
where = os.environ.get("CO2_TRANSPORT", "auto")
with overlace.optim.CO2(model, inner, tau=2, transport=where, link="20MB/s,50us", outer_timeout_s=60) as co2:
    for step in range(7):
        inner.zero_grad()
        generator = torch.Generator().manual_seed(100 * dist.get_rank() + step)
        model(torch.randn(4, 5, generator=generator)).square().mean().backward()
        inner.step()
    transport = co2.transport
    host = os.environ.get("OVERLACE_HOST_ID", socket.gethostname())
ends = [p.tolist() for p in model.parameters()]
print("said " + json.dumps([dist.get_rank(), transport, ends, host]), flush=True)
dist.destroy_process_group()
"""
OVERLACE = os.environ.get("OVERLACE_BIN", "overlace")
HOSTS = str(Path(__file__).parents[2] / "ranks" / "net" / "hosts.sh")
WAYS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "{port}"],
    "overlace run": [OVERLACE, "run", "-n", "2", "--", sys.executable],
    "mpirun": ["mpirun", "--oversubscribe", "-n", "2", sys.executable],
    "emulated hosts": [OVERLACE, "run", "--backend", "cpu", "-n", "2", "--emulate-hosts", "2", "--", sys.executable],
    "namespaces": [HOSTS, "run", "2", "1", sys.executable],
}
BY_MPI = ("emulated hosts", "namespaces")  # messages between the ranks go over MPI


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
    if way == "namespaces":  # the first host's address, and what its ranks are reached by
        env |= {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "eth0"}
    if way in BY_MPI:  # "auto" is the group's own all_reduce there
        env["CO2_TRANSPORT"] = "host"
    done = subprocess.run([*words, path], capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line.partition("said ")[2]) for line in done.stdout.splitlines() if "said " in line]
    return sorted(said)


def test_whoever_starts_it_ranks_end_alike(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    ways = [way for way, words in WAYS.items() if way not in BY_MPI and shutil.which(words[0])]
    assert ways[0] == "torchrun"
    ends = {way: ends_of(way, str(path)) for way in ways}
    for way, said in ends.items():
        assert [rank for rank, *_ in said] == [0, 1], way
        assert [transport for _, transport, *_ in said] == ["host", "host"], way
        assert said[0][2] == said[1][2] == ends["torchrun"][0][2], way
    if "mpirun" not in ways or "overlace run" not in ways:
        pytest.skip(f"started by {', '.join(ways)} alone: the others are not installed")
    assert ranks.overlace is not None


def why_not(way: str) -> str:
    """Why this machine cannot start ranks like that; empty if it can."""
    folder = Path(ranks.overlace.__file__).parent / "lib"
    if not shutil.which("mpirun.openmpi") or not (folder / "liboverlace_mpi_openmpi.so").exists():
        return "Open MPI is not installed, or the package was built without it"
    if way == "emulated hosts":
        return "" if shutil.which(OVERLACE) else "overlace is not installed"
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        return "network namespaces need root, ip and unshare"
    done = subprocess.run([HOSTS, "check"], capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else f"this machine has no network namespaces: {done.stderr}"


@pytest.mark.parametrize("way", BY_MPI)
def test_ranks_of_several_hosts_train_over_mpi(tmp_path, way) -> None:
    if why := why_not(way):
        pytest.skip(why)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    said = ends_of(way, str(path))
    hosts = ["emulated host 0", "emulated host 1"] if way == "emulated hosts" else ["h1", "h2"]
    assert [host for *_, host in said] == hosts
    assert [transport for _, transport, *_ in said] == ["host", "host"]
    assert said[0][2] == said[1][2] == ends_of("torchrun", str(path))[0][2]
