"""overlace.gnn.SparseHalo in processes of its own: a rank that is killed, and ranks of mpirun with rows over MPI."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import overlace, torch
from test_halo import EPOCHS, train_alone

SECONDS = 240
PROGRAM = f"""
import json, os, signal, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
import torch, torch.distributed as dist
import overlace, test_halo as t

torch.set_num_threads(1)
for name, of_mpi in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
    os.environ.setdefault(name, os.environ.get(of_mpi, ""))
dist.init_process_group("gloo")
"""
KILLED = (
    PROGRAM
    + """
delay = int(sys.argv[1])
part = t.part_of(dist.get_rank(), 2)
halo = overlace.gnn.SparseHalo(part, None, delay, timeout_s=120)
x = torch.ones(len(part.vertices), 3)
for epoch in range(4):
    halo.aggregate(x, site=0)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for epoch in range(delay + 1):
        halo.aggregate(x, site=0)
except overlace.PeerLost as error:
    print(json.dumps(str(error)), flush=True)
    os._exit(0)
"""
)
OVER_MPI = (
    PROGRAM
    + """
overlace.init(timeout_s=120)
losses = t.train_rank(dist.group.WORLD, 0, torch.float64)[0]
is_mpi = any("libmpi" in line for line in open("/proc/self/maps"))
print("said " + json.dumps([dist.get_rank(), is_mpi, losses]), flush=True)
overlace.context_of().close()
dist.destroy_process_group()
"""
)


def environment() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize("delay", [0, 2])
def test_a_rank_that_is_killed_is_named(delay: int) -> None:
    env = environment()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED, str(delay)],
            env={**env, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        out, err = ranks[0].communicate(timeout=SECONDS)
        assert ranks[0].returncode == 0, err
        assert ranks[1].wait(SECONDS) == -9
        assert "rank 1" in json.loads(out.splitlines()[-1])
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def package_with_mpi(folder: Path) -> Path:
    """The package of the tests with the plug-in of Open MPI beside its library."""
    package = Path(overlace.__file__).parent
    plugin = "liboverlace_mpi_openmpi.so"
    built = [path for path in (package / "lib" / plugin, package.parents[1] / plugin) if path.exists()]
    if not built or not shutil.which("mpirun"):
        pytest.skip("no Open MPI: neither its plug-in beside the library nor mpirun")
    own = folder / "overlace"
    (own / "lib").mkdir(parents=True)
    for path in package.iterdir():
        if path.name != "lib":
            (own / path.name).symlink_to(path.resolve())
    for path in [*(package / "lib").glob("liboverlace*"), built[0]]:
        target = own / "lib" / path.name
        if not target.exists():
            shutil.copy(path, target)
    return folder


def test_rows_over_mpi_train_as_one_process(tmp_path: Path) -> None:
    env = {
        **environment(),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OVERLACE_NET_ENGINE": "mpi",
        "PYTHONPATH": str(package_with_mpi(tmp_path)),
    }
    words = ["mpirun", "--oversubscribe", "-n", "2", sys.executable, "-c", OVER_MPI]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(json.loads(line.partition("said ")[2]) for line in done.stdout.splitlines() if "said " in line)
    alone = train_alone(torch.float64)[0]
    assert [rank for rank, _, _ in said] == [0, 1]
    for _, is_mpi, losses in said:
        assert is_mpi
        assert len(losses) == EPOCHS
        assert losses == pytest.approx(alone, abs=1e-12)
