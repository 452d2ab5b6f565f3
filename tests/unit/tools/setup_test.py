"""tools/setup.sh with stubs of id, dpkg-query and apt-get: what it installs, what it names, when it stops."""

import os
import shutil
import subprocess
import unittest

import support

LIST = """# package need probe
aaa       run       /nonexistent/aaa
bbb-dev   run       bbb-command
ccc       test      -
ddd       optional  /nonexistent/ddd
"""


class SetupTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("requirements/debian.txt", LIST)
        (self.root / "tools").mkdir()
        shutil.copy(support.ROOT / "tools" / "setup.sh", self.root / "tools")
        self.installed = self.root / "installed"
        self.installed.write_text("")
        self.stub("id", "echo ${STUB_UID:-0}")
        self.stub("dpkg-query", f'grep -qx "${{!#}}" {self.installed} && echo -n installed')
        self.stub(
            "apt-get",
            f'echo "$*" >> {self.root}/apt\n[[ $1 == update ]] && exit\n'
            f'for p; do [[ $p == "$STUB_LACKS" ]] && exit 100; done\n'
            f"for p; do [[ $p == [a-d]* ]] && echo $p >> {self.installed}; done; exit 0",
        )

    def stub(self, name: str, body: str) -> None:
        self.write(f"bin/{name}", f"#!/bin/bash\n{body}\n")
        (self.root / "bin" / name).chmod(0o755)

    def setup_sh(self, *arguments: str, **env: str) -> subprocess.CompletedProcess:
        path = f"{self.root}/bin:/usr/bin:/bin"
        return subprocess.run(
            [str(self.root / "tools" / "setup.sh"), *arguments],
            env={**env, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def apt_calls(self) -> list[str]:
        log = self.root / "apt"
        return [x for x in log.read_text().splitlines() if not x.startswith("update")] if log.exists() else []

    def test_without_root_it_names_exactly_what_is_missing(self) -> None:
        self.installed.write_text("aaa\n")
        done = self.setup_sh("packages", "test", STUB_UID="1000")
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing packages: bbb-dev ccc\n", done.stderr)
        self.assertIn("sudo apt-get install bbb-dev ccc\n", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_run_needs_less_than_test(self) -> None:
        done = self.setup_sh("packages", "run", STUB_UID="1000")
        self.assertIn("missing packages: aaa bbb-dev\n", done.stderr)

    def test_a_tool_that_came_another_way_is_not_missing(self) -> None:
        self.stub("bbb-command", "true")
        self.installed.write_text("aaa\n")
        done = self.setup_sh("packages", "run", STUB_UID="1000")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_root_installs_what_is_missing_and_only_once(self) -> None:
        self.installed.write_text("aaa\n")
        self.assertEqual(self.setup_sh("packages", "test").returncode, 0)
        calls = self.apt_calls()
        self.assertEqual([c.split("--no-install-recommends ")[1] for c in calls], ["bbb-dev ccc", "ddd"])
        done = self.setup_sh("packages", "test")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.apt_calls(), calls)

    def test_an_optional_package_that_cannot_be_had_does_not_stop(self) -> None:
        done = self.setup_sh("packages", "run", STUB_LACKS="ddd")
        self.assertEqual(done.returncode, 0)
        self.assertIn("goes on without the optional package ddd", done.stderr)
        calls = self.apt_calls()
        self.assertEqual(self.setup_sh("packages", "run", STUB_LACKS="ddd").returncode, 0)
        self.assertEqual(self.apt_calls(), calls)

    def test_a_required_package_that_cannot_be_had_stops(self) -> None:
        done = self.setup_sh("packages", "run", STUB_LACKS="bbb-dev")
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing packages: aaa bbb-dev\n", done.stderr)

    def test_wrong_use(self) -> None:
        self.assertEqual(self.setup_sh("pakcages").returncode, 2)
        self.assertTrue(os.access(support.ROOT / ".ci" / "run", os.X_OK))


if __name__ == "__main__":
    unittest.main()
