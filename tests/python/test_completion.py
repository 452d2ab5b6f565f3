"""Help, completion in shells, and the manual page know every command and option that the program has.

OVERLACE_BIN names the program.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gen_reference  # noqa: E402

SHELLS = ("bash", "zsh", "fish")
CHOICES = {("completion",): set(SHELLS)}  # of what is no option


def output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{words}: exit {done.returncode}, {done.stderr}"
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def program() -> str:
    path = os.environ.get("OVERLACE_BIN") or shutil.which("overlace")
    if not path:
        pytest.skip("OVERLACE_BIN is not set and overlace is not in PATH")
    return str(Path(path).resolve())


@pytest.fixture(scope="module")
def tree(program: str) -> dict[tuple[str, ...], tuple[set[str], set[str]]]:
    """Subcommands and long options of each command, by its own help."""
    found = {}
    for words, text in gen_reference.helps(Path(program)):
        options = set(re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", text))
        found[tuple(words)] = set(gen_reference.subcommands(text)), options
    assert len(found) > 30 and all("--help" in options for _, options in found.values())
    return found


@pytest.fixture(scope="module")
def scripts(program: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (folder / shell).write_text(output(program, "completion", shell))
    return {shell: folder / shell for shell in SHELLS}


def shell(name: str) -> str:
    path = shutil.which(name)
    if not path:
        pytest.skip(f"{name} is not installed")
    return path


def completed_by_bash(script: Path, lines: list[str]) -> list[set[str]]:
    """What each line, whose last word is begun, may become."""
    text = f"source {script}\n"
    for line in lines:
        words = " ".join(f"'{word}'" for word in line.split(" "))
        text += f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()\n"
        text += '_overlace; echo "${COMPREPLY[@]}"\n'
    said = output(shell("bash"), "--norc", "-c", text).splitlines()
    assert len(said) == len(lines)
    return [set(line.split()) for line in said]


def test_help_is_that_of_the_command(program: str, tree: dict) -> None:
    for words in tree:
        if words[-1:] != ("help",):
            assert output(program, "help", *words) == output(program, *words, "--help"), words


@pytest.mark.parametrize("command", gen_reference.PYTHON_PROGRAMS)
def test_options_of_programs_in_python_are_those_of_their_parsers(command: str, tree: dict) -> None:
    parser = gen_reference.parser_of(ROOT / gen_reference.PYTHON_PROGRAMS[command])
    shown = {name for a in parser._actions if a.help != gen_reference.argparse.SUPPRESS for name in a.option_strings}
    assert len(shown) > 10
    assert tree[tuple(command.split())][1] == {name for name in shown if name.startswith("--")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench", []),
        (
            "bench a b -n 4 --aa --link=2GB/s,20us --filter -x",
            ["--filter=-x", "--aa", "--ranks=4", "--link=2GB/s,20us"],
        ),
        ("gnn train g --lr 0.1 --json -", ["--lr=0.1", "--json=-"]),
        ("gnn train --epochs 2 g", ["--epochs=2"]),
    ],
)
def test_words_reach_a_program_in_python(program: str, tmp_path: Path, line: str, words: list[str]) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [program, *line.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    said = done.stdout.splitlines()
    if line.startswith("bench"):
        assert (said[0].endswith("/bench/driver"), said[1:3]) == (True, ["--overlace", program])
        options, arguments = said[3 : 3 + len(words)], line.split()[1:3]
    else:
        assert said[:2] == ["-m", "overlace.gnn.train"]
        options, arguments = said[2 : 2 + len(words)], ["g"]
    assert sorted(options) == sorted(words)
    assert said[len(said) - len(arguments) :] == arguments
    refused = subprocess.run([*command, "--nothing"], env=environment, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--nothing" in refused.stderr


def test_bash_completes_what_was_begun(scripts: dict[str, Path]) -> None:
    wanted = {
        "overlace pl": {"plan"},
        "overlace plan --mach": {"--machine"},
        "overlace sim graph m": {"moe"},
        "overlace --ver": {"--version"},
        "overlace sim run --degree 2 --fam": {"--family"},
        "overlace help sim gra": {"graph"},
        "overlace run -n 2 -- --ra": set(),
        "overlace nothing-like-it x": set(),
        "overlace completion ": set(SHELLS),
        "overlace completion f": {"fish"},
        "overlace plan --machine c": set(),
        "overlace plan --machine co2 ": {"co2", "offload"},
        "overlace plan --machine co2 --machine-x co": {"co2"},
        "overlace sim --help run --ops": set(),
        "overlace run --json ": set(),
        "overlace run --json -": set(),
        "overlace run --json x --js": {"--json"},
        "overlace run --json = ": set(),  # bash makes three words of --json=FILE
        "overlace run --json = x --js": {"--json"},
        "overlace run --json =": set(),
        "overlace run -n ": set(),
        "overlace run --quiet --js": {"--json"},
        "overlace run ": set(),
        "overlace gnn info ": set(),
        "overlace gnn info x --js": {"--json"},
        "overlace bench --comp": {"--competitors", "--compare"},
        "overlace bench --set verify --verify": {"--verify-only"},
        "overlace bench --competitors -": set(),
        "overlace gnn train g --ep": {"--epochs"},
    }
    assert dict(zip(wanted, completed_by_bash(scripts["bash"], list(wanted)), strict=True)) == wanted


def test_bash_knows_every_command_and_option(scripts: dict[str, Path], tree: dict) -> None:
    places = [words for words in tree if words != ("help",)]
    lines = [" ".join(["overlace", *words, ""]) for words in places]
    known = [tree[words][0] | CHOICES.get(words, set()) for words in places]
    assert completed_by_bash(scripts["bash"], lines) == known
    assert completed_by_bash(scripts["bash"], [line + "-" for line in lines]) == [tree[words][1] for words in places]


def test_bash_completes_a_file_behind_every_option_that_takes_a_value(scripts: dict[str, Path], program: str) -> None:
    lines = []
    for words, text in gen_reference.helps(Path(program)):
        for letter, name in re.findall(r"(?m)^  (?:(-\w),)?(--[\w-]+) (?:TEXT|INT|UINT|FLOAT)", text):
            lines += [" ".join(["overlace", *words, one, "-"]) for one in (letter, name) if one]
    assert len(lines) > 200
    assert completed_by_bash(scripts["bash"], lines) == [set()] * len(lines)


@pytest.mark.parametrize("name", SHELLS)
def test_a_script_is_one_of_its_shell(name: str, scripts: dict[str, Path]) -> None:
    assert output(shell(name), "--no-execute" if name == "fish" else "-n", str(scripts[name])) == ""


def test_fish_completes_what_was_begun(scripts: dict[str, Path], tree: dict) -> None:
    def completed(line: str) -> set[str]:
        text = f"source {scripts['fish']}; complete -C '{line}'"
        return {found.split("\t")[0] for found in output(shell("fish"), "--no-config", "-c", text).splitlines()}

    assert completed("overlace pl") == {"plan"}
    assert completed("overlace sim graph m") == {"moe"}
    assert completed("overlace help sim gra") == {"graph"}
    assert completed("overlace sim run --") == tree["sim", "run"][1]
    assert completed("overlace completion ") == set(SHELLS)
    assert "co2" not in completed("overlace plan --machine ")
    assert completed("overlace plan --machine co2 off") == {"offload"}


def test_zsh_completes_from_every_command_and_option(scripts: dict[str, Path], tree: dict) -> None:
    """zsh itself chooses among them by what was begun."""
    stand_ins = "compdef() {}; _files() { print ++files }; _describe() { print -l -- ${(P)argv[-1]} }; "

    def offered(*words: str) -> set[str]:
        """By the last word, which is begun."""
        quoted = " ".join(f"'{word}'" for word in words)
        text = f"{stand_ins}source {scripts['zsh']}; words=({quoted}); CURRENT={len(words)}; _overlace"
        return {found.partition(":")[0] for found in output(shell("zsh"), "-f", "-c", text).splitlines()}

    for words, (commands, options) in tree.items():
        if words != ("help",):
            choices = CHOICES.get(words, set())
            files = set() if choices or (commands and words != ("plan",)) else {"++files"}
            assert offered("overlace", *words, "") == commands | choices | files, words
            assert offered("overlace", *words, "-") == options, words
    assert offered("overlace", "help", "sim", "graph", "") == offered("overlace", "sim", "graph", "")
    assert offered("overlace", "run", "--", "") == {"++files"}
    assert offered("overlace", "run", "--json", "-") == {"++files"}
    assert offered("overlace", "plan", "--machine", "co2", "-") == tree["plan",][1]


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_scripts_name_every_command_and_option(name: str, scripts: dict[str, Path], tree: dict) -> None:
    """Each on the lines of its command, whether the shell is there or not."""
    text = scripts[name].read_text()
    for words, (commands, options) in tree.items():
        path = "".join(f" {word}" for word in words)
        if name == "zsh":
            lines = "".join(re.findall(rf"(?m)^    \('{path}'\) files=[01] (.*)$", text))
            found = set(re.findall(r" '([\w-]+):", lines.replace("(", "( ")))
        else:
            lines = "\n".join(re.findall(rf"(?m)^complete .*__overlace_at '{path}'\"(.*)$", text))
            found = {f"--{long}" for long in re.findall(r"(?m)^ -l (\S+)", lines)}
            found |= set(re.findall(r"(?m)^ -a (\S+)", lines))
        assert found == commands | options | CHOICES.get(words, set()), words


def test_the_manual_page_has_every_command_and_option(tree: dict) -> None:
    page = (ROOT / "docs/reference/overlace.1").read_text().replace("\\-", "-")
    parts = {part.partition("\n")[0]: part for part in re.split(r"(?m)^\.SS ", page)[1:]}
    parts["overlace"] = page
    for words, (commands, options) in tree.items():
        part = parts[" ".join(["overlace", *words])]
        for name in commands | options:
            assert re.search(rf"(?m)^\.B (-\w,)?{name}( |$)", part), f"{words}: {name}"
    assert re.search(r"(?m)^\.SH EXIT STATUS\n\.TP\n\.B 0\n", page)


def test_the_manual_page_is_typeset_without_a_warning() -> None:
    path = str(ROOT / "docs/reference/overlace.1")
    done = subprocess.run([shell("groff"), "-ww", "-z", "-man", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
