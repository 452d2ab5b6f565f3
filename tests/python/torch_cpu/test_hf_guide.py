"""The program of docs/guides/transformers.md as a reader has it: a file of its own, started by torchrun."""

import re
import subprocess
import sys
from pathlib import Path

from test_hf_plan import save_llama  # skips where transformers or accelerate is missing

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "transformers.md"
LAYERS = 3


def test_a_dense_model_by_the_guide_alone(tmp_path):
    save_llama(tmp_path / "model", LAYERS)
    text = GUIDE.read_text()
    name = re.search(r"^torchrun --nproc-per-node 2 (\w+\.py) PATH_OF_A_MODEL$", text, re.MULTILINE)[1]
    (tmp_path / name).write_text(re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(tmp_path / name), str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 * LAYERS} calls of gemm_ar in a forward of {LAYERS} layers\n" in done.stdout
    said = re.search(r"differ by (\S+) of their norm; a forward takes ([\d.]+) ms without, ([\d.]+) ms", done.stdout)
    assert float(said[1]) < 1e-5, said[0]
    assert min(float(said[2]), float(said[3])) > 0
