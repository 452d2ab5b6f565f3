"""Ranks that stay between tests leave at the end, and must do so in order."""

import sys

import rank_pool


def pytest_sessionfinish(session):
    if told := rank_pool.end_all():
        print("\nat the end: " + ", ".join(told), file=sys.stderr)
        session.exitstatus = session.exitstatus or 1
