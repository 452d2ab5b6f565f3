"""What MkDocs does not know of this repository: the navigation is the table of docs/README.md; README.md, other
documents outside of docs/ and sources that documents link become pages, and the links go there.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
# Documents whose page is not named as they are.
PLACES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples/README.md": "examples.md",
}
SECTIONS = {
    "guides": "Guides",
    "design": "Design",
    "reference": "Reference",
    "results": "Results",
    "lab": "Lab",
    "decisions": "Decisions",
}
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".cuh": "cpp", ".cu": "cpp", ".c": "c", ".py": "python", ".sh": "sh"}
RAW = {".json", ".jsonl", ".png"}  # copied as they are
FENCED = re.compile(r"(?ms)^(`{3,})[^\n]*\n.*?^\1`*[ ]*$")
LINK = re.compile(r"(\]\(<?)([^)>\s]+)")
API = "reference/python/"


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def target_of(path: str, link: str) -> str | None:
    """The path in the repository that a link of this document means; None for addresses and own headings."""
    file = link.partition("#")[0]
    if not file or re.match(r"[a-z]+:", file):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), file))


def place_of(path: str) -> str:
    """Where a file or folder of the repository is in the site."""
    if path in PLACES:
        return PLACES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if Path(path).suffix in RAW else f"source/{path}.md"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    pieces, end = [], 0
    for match in FENCED.finditer(text):
        pieces += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*pieces, change(text[end:])])


def rendered(path: str, text: str) -> str:
    """A document with links to the pages of the site, in the Markdown of MkDocs: it wants an empty line before a table
    and knows no words behind the language of a code block."""
    here = posixpath.dirname(place_of(path))

    def moved(match: re.Match[str]) -> str:
        target = target_of(path, match[2])
        if target is None or not (ROOT / target).exists():
            return match[0]  # a dead link stays one, which the strict build refuses
        anchor = match[2].partition("#")[1] + match[2].partition("#")[2]
        return match[1] + posixpath.relpath(place_of(target), here or ".") + anchor

    def prose(piece: str) -> str:
        piece = re.sub(r"(?m)^(?!\||\s*$)(.+)\n(?=\|)", r"\1\n\n", piece)
        return LINK.sub(moved, piece)

    text = outside_code(text, prose)
    text = re.sub(r"(?m)^(```\w+) [^\n]*$", r"\1", text)
    return re.sub(r"(?m)^```\n(?=```)", "```\n\n", text)


def documents() -> list[str]:
    inside = (str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))
    return sorted({*inside, *PLACES})


def linked_sources() -> list[str]:
    """Files and folders outside of docs/ that documents link, and the public headers."""
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "include").rglob("*.h")}
    for path in documents():
        outside_code(text_of(path), lambda piece, path=path: found.update(targets(path, piece)) or piece)
    return sorted(found)


def targets(path: str, text: str) -> list[str]:
    links = (target_of(path, match[2]) for match in LINK.finditer(text))
    return [t for t in links if t and (ROOT / t).exists() and not t.startswith("docs/") and t not in PLACES]


def source_page(path: str, known: set[str]) -> str | bytes:
    """A file with its code, or the names in a folder."""
    place = ROOT / path
    if place.suffix in RAW:
        return place.read_bytes()
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    if place.is_dir():
        names = sorted(p.name + "/" * p.is_dir() for p in place.iterdir() if p.name != "__pycache__")
        here = posixpath.dirname(place_of(path))

        def item(name: str) -> str:
            inside = f"{path}/{name}".rstrip("/")
            return f"- [{name}]({posixpath.relpath(place_of(inside), here)})" if inside in known else f"- {name}"

        return head + "\n".join(item(name) for name in names) + "\n"
    if place.suffix == ".md":
        return f"---\nsearch:\n  exclude: true\n---\n{rendered(path, place.read_text())}"
    return f"{head}`````{LANGUAGES.get(place.suffix, 'text')}\n{place.read_text()}\n`````\n"


def python_modules() -> list[str]:
    """overlace, and the modules that it names; of a package that exports nothing itself its public modules."""
    listed = {}
    for node in ast.parse(text_of("python/overlace/__init__.py")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List):
            listed[node.targets[0].id] = ast.literal_eval(node.value)
    found = []
    for name in sorted(["ops", *listed["_MODULES"], *listed["_WITHOUT_OPERATORS"]]):
        folder = ROOT / "python" / "overlace" / name
        if folder.is_dir() and "__all__" not in (folder / "__init__.py").read_text():
            found += [f"overlace.{name}.{p.stem}" for p in sorted(folder.glob("[!_]*.py"))]
        else:
            found.append(f"overlace.{name}")
    return ["overlace", *found]


def summary(header: str) -> str:
    comments = re.findall(r"(?m)^///? ?(.+)$", text_of(header).partition("#pragma")[0])
    return comments[0] if comments else ""


def headers_page() -> str:
    headers = [p for p in linked_sources() if p.startswith("include/") and p.endswith(".h")]
    rows = [f"| [{p.removeprefix('include/')}](../{place_of(p)}) | {summary(p).replace('|', ' ')} |" for p in headers]
    return "# C and C++ headers\n\n| header | |\n|---|---|\n" + "\n".join(rows) + "\n"


def title(path: str) -> str:
    heading = next(line for line in text_of(path).splitlines() if line.startswith("# "))
    return heading[2:].partition(":")[0].replace("`", "")


def navigation() -> list[Any]:
    """The order of docs/README.md, whose rows begin with one page or several, by folder."""
    sections: dict[str, list[Any]] = {name: [] for name in SECTIONS.values()}
    rows = re.findall(r"(?m)^\| (\[[^|]*) \|", text_of("docs/README.md"))
    for link in re.findall(r"\]\(([^)]+)\)", " ".join(rows)):
        path = posixpath.normpath(f"docs/{link}")
        if path.startswith("docs/"):
            folder = path.split("/")[-2]
            if folder not in SECTIONS:
                raise PluginError(f"docs/README.md: {link} is in folder {folder}, wanted one of {', '.join(SECTIONS)}")
            sections[SECTIONS[folder]].append({title(path): place_of(path)})
    python = [{name: f"{API}{name}.md"} for name in python_modules()]
    sections["Reference"] += [{"Python": python}, {"C and C++ headers": "reference/headers.md"}]
    sections["Design"].append({"Decisions": sections.pop("Decisions")})
    project = [{title(p): PLACES[p]} for p in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    first = [{"overlace": "index.md"}, {"All documents": "contents.md"}, {"Examples": "examples.md"}]
    return [*first, *({name: pages} for name, pages in sections.items()), {"Project": project}]


def on_config(config: Any) -> Any:
    version = re.search(r"project\(overlace VERSION ([\d.]+)", text_of("CMakeLists.txt"))
    config.site_name = f"overlace {version[1]}"
    config.nav = navigation()
    return config


def on_files(files: Any, config: Any) -> Any:
    def add(place: str, content: str | bytes, in_nav: bool = True) -> None:
        level = InclusionLevel.UNDEFINED if in_nav else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, place, content=content, inclusion=level))

    for path, place in PLACES.items():
        if path == "docs/README.md":
            files.remove(files.get_file_from_path("README.md"))
        add(place, rendered(path, text_of(path)))
    sources = linked_sources()
    for path in sources:
        add(place_of(path), source_page(path, set(sources)), in_nav=False)
    for name in python_modules():
        add(f"{API}{name}.md", f"# {name}\n\n::: {name}\n")
    add("reference/headers.md", headers_page())
    add("assets/site.css", (Path(__file__).parent / "site.css").read_text())
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Documents of docs/; the others were rendered when their pages were made."""
    return markdown if page.file.generated_by else rendered(f"docs/{page.file.src_uri}", markdown)
