#!/usr/bin/env python3
"""Makes the pictures of docs/images from the reports of committed runs (bench/results/run/<name>.html and .json).

usage: tools/gen_images.py [--check] [--chromium PROGRAM]

Needs Chromium, which a developer installs (Debian: `apt install chromium`); nothing else does. `--check` needs none:
it fails where a report or a picture is another one than docs/images/sources.json names, or where a report does not show
the numbers of its run.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from files import ROOT, finish

RUNS, IMAGES, SOURCES = "bench/results/run", "docs/images", "docs/images/sources.json"


@dataclasses.dataclass(frozen=True)
class Picture:
    """`run`: name of the report; `height`: what of the page is shown, from its top."""

    run: str
    height: int
    width: int = 1280


PICTURES = {
    "llama-3.1-70b-4xh200.png": Picture("llama-3.1-70b-4xh200", 1412),
    "report-cpu2.png": Picture("report-cpu2", 1655),
}
# Reports from before the limit of all layers was measured called that of the sites attainable, which it is not.
OLD_LABEL = re.compile(r"(?<=>)([\d.]+x) is attainable(?=<)")


def relabelled(html: str) -> str:
    return OLD_LABEL.sub(r"sites at their own limits: \1", html)


def duration(us: float) -> str:
    """A duration as the report writes it: three digits."""
    value, unit = (us, "us") if us < 999.5 else (us / 1e3, "ms") if us < 999.5e3 else (us / 1e6, "s")
    return f"{value:#.3g}".rstrip(".") + f" {unit}"


def disagreements(html: str, run: dict) -> list[str]:
    """Numbers of the run that its report does not show."""
    total = run["total"]
    shown = {key: duration(total[key]) for key in ("serial_us", "overlapped_us")}
    shown["speed-up"] = f"{total['serial_us'] / total['overlapped_us']:.2f}x"
    limit = total.get("stack_limit_us", total["limit_us"])
    shown["limit"] = f"{total['serial_us'] / limit:.2f}x"
    return [f"{key} {text} is not in its report" for key, text in shown.items() if text not in html]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources(root: Path) -> dict:
    """What docs/images/sources.json has to say."""
    found = {}
    for name, picture in PICTURES.items():
        html, png = root / RUNS / f"{picture.run}.html", root / IMAGES / name
        found[name] = {
            "run": f"{RUNS}/{picture.run}.json",
            "width": picture.width,
            "height": picture.height,
            "html_sha256": digest(html),
            "png_sha256": digest(png) if png.exists() else "",
        }
    return found


def check(root: Path) -> list[str]:
    problems = []
    for name, picture in PICTURES.items():
        base = root / RUNS / picture.run
        for problem in disagreements(base.with_name(picture.run + ".html").read_text(), read_run(base)):
            problems.append(f"{RUNS}/{picture.run}.json: {problem}")
        if not (root / IMAGES / name).exists():
            problems.append(f"{IMAGES}/{name} is not there; run tools/gen_images.py")
    for path in sorted((root / IMAGES).glob("*.png")):
        if path.name not in PICTURES:
            problems.append(f"{IMAGES}/{path.name}: no picture of tools/gen_images.py")
    made = json.loads((root / SOURCES).read_text()) if (root / SOURCES).exists() else {}
    if not problems and made != sources(root):
        changed = sorted(name for name in PICTURES if made.get(name) != sources(root)[name])
        problems.append(f"{SOURCES}: another report or picture: {', '.join(changed)}; run tools/gen_images.py")
    return problems


def read_run(base: Path) -> dict:
    return json.loads(base.with_name(base.name + ".json").read_text())


def render(chromium: str, html: str, picture: Picture, out: Path) -> None:
    """One screenshot, in a profile of its own that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(relabelled(html))
        shot = Path(folder) / "shot.png"
        words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        words += [f"--user-data-dir={folder}/profile", f"--window-size={picture.width},{picture.height}"]
        words += [f"--screenshot={shot}", page.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0 or not shot.exists():
            raise SystemExit(f"gen_images: {chromium} gave no picture: {done.stderr[-500:]}")
        shutil.copyfile(shot, out)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome") or "")
    options = parser.parse_args(arguments)
    if options.check:
        return finish("gen_images", check(ROOT), f"{len(PICTURES)} pictures")
    if not options.chromium:
        raise SystemExit("gen_images: wants Chromium (Debian: apt install chromium), or --chromium PROGRAM")
    for name, picture in PICTURES.items():
        html = (ROOT / RUNS / f"{picture.run}.html").read_text()
        render(options.chromium, html, picture, ROOT / IMAGES / name)
    (ROOT / SOURCES).write_text(json.dumps(sources(ROOT), indent=1) + "\n")
    return finish("gen_images", check(ROOT), f"{len(PICTURES)} pictures")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
