"""Mutants of conditions: where they are in C++ sources, and sources in which each is switched on at run time.

A mutant is one condition with one change: a comparison with its edge moved or reversed, && for || and the other way
round, a negation left out, or a guard in front of an early exit that is never taken. Many of them are compiled at once:
each changed condition stands beside the original, and a number read at the start of the process says which one counts.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Iterator

HEADER = "src/base/mutants.h"
HEADER_TEXT = """// Which mutant this process is, and which of them it has come past.
#pragma once
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wlogical-op"
#pragma GCC diagnostic ignored "-Wduplicated-cond"
#pragma GCC diagnostic ignored "-Wtype-limits"
namespace overlace_mutant {
extern const int chosen;
extern volatile unsigned char* seen;
inline bool is(int n) {
  if (seen != nullptr && seen[n] == 0) seen[n] = 1;
  return n == chosen;
}
}  // namespace overlace_mutant
"""
SOURCE = "src/base/mutants.cc"
# MUTANT: its number. MUTANTS_SEEN: a file with one byte per number, shared with processes that this one starts.
SOURCE_TEXT = """#include "src/base/mutants.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace overlace_mutant {
namespace {

volatile unsigned char* map() {
  const char* const path = std::getenv("MUTANTS_SEEN");
  const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  struct stat facts{};
  if (file < 0 || ::fstat(file, &facts) != 0) return nullptr;
  void* const memory = ::mmap(nullptr, facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<volatile unsigned char*>(memory);
}

}  // namespace

const int chosen = std::getenv("MUTANT") == nullptr ? 0 : std::atoi(std::getenv("MUTANT"));
volatile unsigned char* seen = map();

}  // namespace overlace_mutant
"""

EDGES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}
# NOTE: clang-format puts spaces around operators and none around brackets of templates.
OPERATOR = re.compile(r"(?<=\s)(<=|>=|==|!=|<|>|&&|\|\|)(?=\s)")
NEGATION = re.compile(r"(?<![\w)\]!])!(?=[\w(:*])")
HEAD = re.compile(r"\b(if|while|for|return)\b")
EXIT = re.compile(r"\s*\{?\s*(return|throw|continue|break)\b")
LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^\s()\\]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)
DIRECTIVE = re.compile(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`text` from `begin` to `end` of a file is the condition; `changed` stands in its place."""

    path: str
    line: int  # where the condition begins
    begin: int
    end: int
    text: str
    changed: str
    what: str

    @property
    def condition(self) -> str:
        return one_line(self.text)

    @property
    def key(self) -> tuple[str, str, str]:
        """What stays the same where lines move."""
        return self.path, self.condition, self.what


@dataclasses.dataclass(frozen=True)
class Condition:
    begin: int
    end: int
    is_guard: bool = False


def one_line(text: str) -> str:
    return " ".join(text.split())


def blanked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text with literals, comments and directives as blanks of the same length; where comments are."""
    comments = []

    def blank(match: re.Match[str]) -> str:
        if match[0].startswith(("//", "/*")):
            comments.append(match.span())
        return re.sub(r"[^\n]", " ", match[0]) if match[0][0] in "/#" else '"' + " " * (len(match[0]) - 2) + '"'

    def blank_raw(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if "\n" in match[0] else blank(match)

    return DIRECTIVE.sub(blank, LITERAL.sub(blank_raw, text)), comments


def split_top(code: str, begin: int, end: int, separator: str) -> list[tuple[int, int]]:
    """The parts between separators outside of brackets."""
    parts, depth, start = [], 0, begin
    for i in range(begin, end):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
        elif code[i] == separator and depth == 0:
            parts.append((start, i))
            start = i + 1
    return [*parts, (start, end)]


def closing(code: str, opening: int) -> int:
    """The bracket that closes the one there; -1 where there is none."""
    depth = 0
    for i in range(opening, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return -1


def statement_end(code: str, begin: int) -> int:
    depth = 0
    for i in range(begin, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth < 0:
                return -1
        elif code[i] == ";" and depth == 0:
            return i
    return -1


def top_level(code: str) -> str:
    """What stands outside of brackets."""
    kept, depth = [], 0
    for c in code:
        depth -= c in ")]}"
        if depth == 0:
            kept.append(c)
        depth += c in "([{"
    return "".join(kept)


def is_truth(code: str) -> bool:
    """Whether a returned expression is the result of a comparison or of && and ||."""
    top = top_level(code)
    return bool(OPERATOR.search(top)) and not re.search(r"[?,=]\s|<<|>>|\bco_", OPERATOR.sub(" ", top))


def conditions(code: str) -> Iterator[Condition]:
    """Conditions of blanked code. Those with a declaration have no value of their own that could be changed."""
    for head in HEAD.finditer(code):
        at = head.end()
        if head[1] == "return":
            end = statement_end(code, at)
            if end > 0 and is_truth(code[at:end]):
                yield Condition(at, end)
            continue
        opening = re.compile(r"\s*\(").match(code, at)
        close = closing(code, opening.end() - 1) if opening else -1
        if not opening or close < 0:
            continue
        parts = split_top(code, opening.end(), close, ";")
        if head[1] == "for" and len(parts) != 3:
            continue
        begin, end = parts[1] if head[1] == "for" else parts[-1]
        if not code[begin:end].strip() or re.search(r"(?<![=!<>+\-*/|&^])=(?!=)", top_level(code[begin:end])):
            continue
        yield Condition(begin, end, head[1] == "if" and EXIT.match(code, close + 1) is not None)


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Mutants of the innermost conditions: others hold whole statements of lambdas."""
    code, comments = blanked(text)
    found = list(conditions(code))
    mutants = []
    for c in found:
        holds = any(o is not c and c.begin <= o.begin and o.end <= c.end for o in found)
        if holds or any(begin < c.end and c.begin < end for begin, end in comments):
            continue
        line = text.count("\n", 0, c.begin + len(code[c.begin : c.end]) - len(code[c.begin : c.end].lstrip())) + 1

        def add(changed: str, what: str, c: Condition = c, line: int = line) -> None:
            mutants.append(Mutant(path, line, c.begin, c.end, text[c.begin : c.end], changed, what))

        def with_change(begin: int, end: int, token: str, c: Condition = c) -> str:
            return text[c.begin : begin] + token + text[end : c.end]

        for n, match in enumerate(OPERATOR.finditer(code, c.begin, c.end), 1):
            token = EDGES[match[1]]
            add(with_change(*match.span(1), token), f"{match[1]} becomes {token} (operator {n})")
        for n, match in enumerate(NEGATION.finditer(code, c.begin, c.end), 1):
            add(with_change(*match.span(), ""), f"! is left out (negation {n})")
        if c.is_guard:
            add("false", "the guard is never taken")
    return mutants


def draw(everything: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, the same for the same seed and sources."""
    chosen = random.Random(seed).sample(range(len(everything)), min(count, len(everything)))
    return [everything[i] for i in sorted(chosen)]


def rewritten(text: str, numbered: Iterable[tuple[int, Mutant]]) -> str:
    """The source with its mutants, by their numbers; lines stay where they are."""
    by_place: dict[tuple[int, int], list[tuple[int, Mutant]]] = {}
    for number, mutant in numbered:
        by_place.setdefault((mutant.begin, mutant.end), []).append((number, mutant))
    for (begin, end), group in sorted(by_place.items(), reverse=True):
        lead = "" if text[begin - 1 : begin] in "(" else " "
        switch = "".join(f"::overlace_mutant::is({n}) ? static_cast<bool>({one_line(m.changed)}) : " for n, m in group)
        text = f"{text[:begin]}{lead}({switch}static_cast<bool>({text[begin:end]})){text[end:]}"
    return f'#include "{HEADER}"\n#line 1\n{text}'
