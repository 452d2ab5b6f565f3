#!/usr/bin/env python3
"""Which commit the GPU tests last ran at as a whole, and how many commits that touch GPU code came since.

usage: gpu_status.py [--root DIR]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import ROOT
from gpu_tests import RECORD

# What runs on GPUs only, or tests that.
GPU_CODE = (
    ":(glob)**/*.cu",
    ":(glob)**/*.cuh",
    ":(glob)src/**/cuda/**",
    "src/device",
    "src/runtime/backend/cuda_peer",
    "src/runtime/engine/nccl",
    "src/gemm_core",
    "src/ops/fused",
    "tests/gpu",
    "tests/python/torch_gpu",
)
NO_RUN = "no whole run of the GPU tests is recorded yet"


def git(root: Path, *words: str) -> str | None:
    """None if git fails or there is no repository."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "-c", "safe.directory=*", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commits_since(root: Path, commit: str, until: str = "HEAD") -> int | None:
    """Commits behind `commit` up to `until` that touch GPU code; None where this history does not have them."""
    commit = commit.removesuffix("+")
    if git(root, "merge-base", "--is-ancestor", commit, until) is None:
        return None
    count = git(root, "rev-list", "--count", f"{commit}..{until}", "--", *GPU_CODE)
    return None if count is None else int(count)


def last_whole(root: Path) -> dict | None:
    path = root / RECORD
    return json.loads(path.read_text()).get("last_whole") if path.exists() else None


def sentence(root: Path, until: str = "HEAD") -> str:
    """One sentence for documents and for the summary of CI."""
    run = last_whole(root)
    if run is None:
        return f"{NO_RUN}."
    since = commits_since(root, run["commit"], until)
    counted = "an unknown number of commits" if since is None else f"{since} commit{'' if since == 1 else 's'}"
    return (
        f"the last whole run of the GPU tests is of commit {run['commit']} ({run['date']}, {run['machine']['gpus']}):"
        f" {run['passed']} passed, {run['failed']} failed, {run['skipped']} skipped; {counted} that touch"
        f"{'es' if since == 1 else ''} GPU code came since."
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    print(sentence(parser.parse_args(arguments).root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
