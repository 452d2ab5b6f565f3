"""Changes of what `auto` is compared with, and which records they void (bench/results/baselines.json).

A change names its commit, the schedules that it made faster, and the commits of records before and behind it. A time of
such a schedule is older if its record is from before the change. It is void, too slow to be compared with, if the host
took at least `void_host_share` of it: what the host takes now is less. The lists are data, so that pages follow from
committed files alone; where git knows the commits, `problems` compares the lists with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from gpu_status import git

FILE = "baselines.json"


@dataclasses.dataclass(frozen=True)
class Change:
    commit: str
    what: str
    schedules: tuple[str, ...]
    void_host_share: float
    older: tuple[str, ...]
    newer: tuple[str, ...]

    def concerns(self, row: dict) -> bool:
        """Whether it is a time of a schedule that the change made faster: as a competitor, or as what `auto` took."""
        names = {row["competitor"], row.get("schedule", "")}
        return any(name.split(":")[0].removesuffix("_rs").removesuffix("_ar") in self.schedules for name in names)


def read(results: Path) -> list[Change]:
    """Empty if there is no such file."""
    path = results / FILE
    if not path.exists():
        return []
    changes = []
    for given in json.loads(path.read_text())["changes"]:
        lists = {key: tuple(given[key]) for key in ("schedules", "older", "newer")}
        changes.append(Change(given["commit"], given["what"], void_host_share=given["void_host_share"], **lists))
    return changes


def is_older(row: dict, changes: list[Change]) -> bool:
    return any(row["git"] in change.older for change in changes if change.concerns(row))


def is_void(row: dict, changes: list[Change]) -> bool:
    """Whether a row is older and so much of the time was the host's that a comparison would say nothing of now."""
    for change in changes:
        if not change.concerns(row) or row["git"] not in change.older:
            continue
        time_us, host_us = row.get("time_us", {}).get("median", 0), row.get("host_us")
        if host_us is None or host_us >= change.void_host_share * time_us:
            return True
    return False


def note(rows: Iterable[dict], changes: list[Change]) -> str:
    """One sentence for the head of a page or table; empty where nothing is older."""
    texts = []
    rows = list(rows)
    for change in changes:
        old = sorted({row["git"] for row in rows if change.concerns(row) and row["git"] in change.older})
        if not old:
            continue
        names = " and ".join(f"`{name}`" for name in change.schedules)
        texts.append(
            f"Times of {names} at {', '.join(old)} are older than a change of the baseline ({change.commit}:"
            f" {change.what}); comparisons are `void` where the host took {100 * change.void_host_share:.0f} % of such"
            " a time or more."
        )
    return " ".join(texts)


def problems(rows: Iterable[dict], changes: list[Change], root: Path) -> list[str]:
    """Commits that are in no list or in both; those that git places otherwise, if it knows them."""
    found = []
    rows = list(rows)
    has_history = git(root, "rev-parse", "--is-shallow-repository") == "false"
    for change in changes:
        commits = sorted({row["git"] for row in rows if change.concerns(row)})
        for commit in commits:
            lists = [name for name in ("older", "newer") if commit in getattr(change, name)]
            if len(lists) != 1:
                found.append(f"{FILE}: commit {commit} of records is in {len(lists)} of older and newer: wanted one")
                continue
            plain = commit.removesuffix("+")
            is_known = all(git(root, "cat-file", "-e", f"{c}^{{commit}}") is not None for c in (plain, change.commit))
            if not (has_history and is_known):
                continue
            has_change = git(root, "merge-base", "--is-ancestor", change.commit, plain) is not None
            if has_change != (lists[0] == "newer"):
                found.append(
                    f"{FILE}: commit {commit} is listed as {lists[0]} than {change.commit}, git says otherwise"
                )
        for name in ("older", "newer"):
            unused = [commit for commit in getattr(change, name) if commit not in commits]
            found += [f"{FILE}: no record is of commit {commit}, which is listed as {name}" for commit in unused]
    return found
