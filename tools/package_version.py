"""The version in the metadata of the Python package, for scikit-build-core: that of the build, as CMake knows it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(source: Path = ROOT) -> str:
    """That of the sources in a folder; RuntimeError with what CMake says, such as that a tag does not fit."""
    words = ["cmake", f"-DSOURCE={source}", "-P", str(ROOT / "cmake" / "overlace_version.cmake")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cmake/overlace_version.cmake: {done.stderr.strip()}")
    return done.stdout.strip()


def dynamic_metadata(_settings: Mapping[str, object], _project: Mapping[str, object]) -> dict[str, str]:
    return {"version": version()}


def get_requires_for_dynamic_metadata(_settings: Mapping[str, object]) -> list[str]:
    return [] if shutil.which("cmake") else ["cmake>=3.25"]
