"""cmake/overlace_version.cmake, by way of tools/package_version.py: checkouts, archives, source distributions."""

import subprocess
import unittest

import support

import package_version

PROJECT = "cmake_minimum_required(VERSION 3.25)\nproject(overlace VERSION 1.2.3 LANGUAGES CXX)\n"


class PackageVersionTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        self.write("CMakeLists.txt", PROJECT)

    def git(self, *words: str) -> str:
        whole = ["git", "-C", str(self.root), "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.run(whole, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self) -> str:
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "--short=12", "HEAD")

    def checkout(self) -> str:
        self.git("init", "-q")
        for name in (".gitattributes", "cmake/archive.txt"):
            self.write(name, (package_version.ROOT / name).read_text())
        self.git("add", "-A")
        return self.commit()

    def version(self) -> str:
        return package_version.version(self.root)

    def test_without_tags_the_commits_are_counted(self) -> None:
        self.assertEqual(self.version(), "1.2.3.dev0")  # nothing is known
        first = self.checkout()
        self.assertEqual(self.version(), f"1.2.3.dev1+g{first}")
        second = self.commit()
        self.assertEqual(self.version(), f"1.2.3.dev2+g{second}")
        self.write("CMakeLists.txt", PROJECT + "# changed\n")
        self.assertEqual(self.version(), f"1.2.3.dev2+g{second}.dirty")

    def test_a_tag_is_a_release(self) -> None:
        self.checkout()
        self.git("tag", "v1.2.3")
        self.assertEqual(self.version(), "1.2.3")
        self.write("CMakeLists.txt", PROJECT.replace("1.2.3", "1.3.0"))
        self.assertRegex(self.version(), r"^1\.3\.0\.dev0\+g[0-9a-f]{12}\.dirty$")
        self.git("add", "-A")
        after = self.commit()
        self.assertEqual(self.version(), f"1.3.0.dev1+g{after}")
        self.git("tag", "v1.4.0")
        with self.assertRaisesRegex(RuntimeError, "the tag is v1.4.0; wanted: v1.3.0"):
            self.version()

    def archive(self) -> str:
        """The version of what `git archive` writes of HEAD, elsewhere."""
        (self.root / "elsewhere").mkdir(exist_ok=True)
        tar = subprocess.run(["git", "-C", str(self.root), "archive", "HEAD"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(self.root / "elsewhere")], input=tar, check=True)
        return package_version.version(self.root / "elsewhere")

    def test_an_archive_names_its_commit(self) -> None:
        first = self.checkout()
        self.git("tag", "v1.2.3-rc1")  # no release
        self.assertEqual(self.version(), f"1.2.3.dev1+g{first}")
        self.assertEqual(self.archive(), f"1.2.3.dev0+g{first}")
        self.git("tag", "v1.2.3")
        self.assertEqual(self.archive(), "1.2.3")
        after = self.commit()
        self.assertEqual(self.archive(), f"1.2.3.dev1+g{after}")

    def test_an_archive_lacks_the_records_of_old_kernels(self) -> None:
        self.write("bench/results/archive/old.json", "{}")
        self.write("bench/results/new.jsonl", "{}")
        self.checkout()
        self.archive()
        results = self.root / "elsewhere" / "bench" / "results"
        self.assertEqual([path.name for path in results.rglob("*")], ["new.jsonl"])

    def test_a_source_distribution_has_the_version_it_was_made_with(self) -> None:
        for version in ("1.2.3", "1.2.3.dev7+g0123456789ab.dirty"):
            self.write("PKG-INFO", f"Metadata-Version: 2.2\nName: overlace\nVersion: {version}\n")
            self.assertEqual(self.version(), version)
        self.checkout()  # a packager's
        self.assertEqual(self.version(), version)


if __name__ == "__main__":
    unittest.main()
