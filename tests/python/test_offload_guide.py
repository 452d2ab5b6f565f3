"""The programs of docs/guides/run-what-does-not-fit.md, each section's blocks one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "run-what-does-not-fit.md"
SECTIONS = {
    text.splitlines()[0]: "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    for text in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]
}


@pytest.mark.parametrize("title", [title for title, program in SECTIONS.items() if program])
def test_the_program_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(SECTIONS[title], f"{GUIDE.name}: {title}", "exec"), names)
    if title == "A Hugging Face model":
        assert names["stats"]["blocks"] == 8 * 6 and names["tokens"].shape == (1, 11)


def test_all_of_them():
    assert sum(bool(program) for program in SECTIONS.values()) == 5
