"""The site of the documents in build/site, and what must hold of it. usage: docs_site.py"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import python_env
from results import FAILED, PASSED, SKIPPED, Case
from runner import ROOT, run, step

SITE = ROOT / "build" / "site"
# What a browser loads for a page by itself; links to other sites are none of it.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)
LOADED_BY_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""")


def missing_pages(docs: Path, site: Path) -> list[str]:
    """Documents without a page; the index of docs/ is contents.html."""
    pages = (p.relative_to(docs).with_suffix(".html") for p in sorted(docs.rglob("*.md")))
    places = (Path("contents.html") if p == Path("README.html") else p for p in pages)
    return [str(p) for p in places if not (site / p).is_file()]


def loads_from_elsewhere(site: Path) -> list[str]:
    pages = [p for p in site.rglob("*.html") if LOADED.search(p.read_text(encoding="utf-8"))]
    styles = [p for p in site.rglob("*.css") if LOADED_BY_CSS.search(p.read_text(encoding="utf-8"))]
    return sorted(str(p.relative_to(site)) for p in [*pages, *styles])


def unsearchable(docs: Path, site: Path) -> list[str]:
    """Documents that the index of the search does not know."""
    index = site / "search" / "search_index.json"
    found = (
        {e["location"].partition("#")[0] for e in json.loads(index.read_text())["docs"]} if index.exists() else set()
    )
    pages = (str(p.relative_to(docs).with_suffix(".html")) for p in sorted(docs.rglob("*.md")))
    return [p for p in pages if p != "README.html" and p not in found]


def case(name: str, problems: list[str]) -> Case:
    return Case(name, FAILED if problems else PASSED, ", ".join(problems))


def check_built(docs: Path, site: Path) -> Iterator[Case]:
    yield case("site: at least one page", [] if list(site.rglob("*.html")) else [f"no page in {site}"])
    yield case("site: a page of each document", missing_pages(docs, site))
    yield case("site: each document is found by the search", unsearchable(docs, site))
    yield case("site: nothing is loaded from elsewhere", loads_from_elsewhere(site))


def check() -> Iterator[Case]:
    try:
        python = python_env.environment("site", ["site.txt"])
    except python_env.Unavailable as why:
        yield Case("site", SKIPPED, str(why))
        return
    shutil.rmtree(SITE, ignore_errors=True)
    words = [str(python), "-m", "mkdocs", "build", "--strict", "-f", "tools/site/mkdocs.yml"]
    built = run(words, 300, {"NO_MKDOCS_2_WARNING": "1"})
    yield step("site: build", built)
    if built.rc == 0:
        yield from check_built(ROOT / "docs", SITE)


if __name__ == "__main__":
    cases = list(check())
    bad = [c for c in cases if c.outcome != PASSED]
    print("\n".join(f"{c.name}: {c.detail}" for c in bad) or f"overlace: {SITE.relative_to(ROOT)}/index.html")
    sys.exit(1 if bad else 0)
