"""Virtual environments of the checks, in the user's cache folder: a second run on a machine installs nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from runner import ROOT, run

UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|name resolution|Connection refused|Max retries exceeded|"
    r"Network is unreachable|ProxyError|SSLError|Connection reset|No route to host",
    re.IGNORECASE,
)


class Unavailable(Exception):
    """The environment cannot be made here, for a reason outside of the project: what needs it is skipped."""


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base) / "overlace"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    path = ROOT / "build" / "cache"
    path.mkdir(parents=True, exist_ok=True)
    return path


def key(requirements: list[str], version: str = sys.version) -> str:
    digest = hashlib.sha256(version.encode())
    for name in requirements:
        digest.update((ROOT / "requirements" / name).read_bytes())
    return digest.hexdigest()[:16]


def environment(name: str, requirements: list[str], *pip_options: str) -> Path:
    """The interpreter of an environment with these files of requirements/; raises Unavailable or RuntimeError."""
    folder = cache_dir() / f"{name}-{key(requirements)}"
    done_mark = folder / ".complete"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done_mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            made = run([sys.executable, "-m", "venv", str(folder)], 300)
            if made.rc != 0:
                raise Unavailable("python3 -m venv failed: " + made.why(3))
            files = [x for name in requirements for x in ("-r", str(ROOT / "requirements" / name))]
            pip = [
                str(folder / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-input",
                "--disable-pip-version-check",
                "--retries",
                "1",
                "--timeout",
                "60",
            ]
            installed = run([*pip, *pip_options, *files], 1200)
            if installed.rc != 0:
                if UNREACHABLE.search(installed.output):
                    raise Unavailable("PyPI cannot be reached")
                raise RuntimeError("pip install failed: " + installed.why())
            done_mark.touch()
    return folder / "bin" / "python"
