"""One self-contained HTML page of records."""

from __future__ import annotations


def html(rows: list[dict]) -> str:
    return f"<!doctype html><title>overlace bench</title><p>{len(rows)}"
