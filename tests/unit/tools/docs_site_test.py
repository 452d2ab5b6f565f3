"""The job of the site: what it says of a site that lacks something."""

import json
import unittest

import support
import docs_site
from results import FAILED


class DocsSiteTest(support.TreeTest):
    def setUp(self) -> None:
        super().setUp()
        for path in ("docs/README.md", "docs/guides/first.md"):
            self.write(path, "# A document\n")
        for path in ("site/contents.html", "site/guides/first.html", "site/a.css"):
            self.write(path, "<p>text</p>")
        self.search("guides/first.html", "contents.html")

    def search(self, *locations: str) -> None:
        entries = [{"location": f"{one}#a-document"} for one in locations]
        self.write("site/search/search_index.json", json.dumps({"docs": entries}))

    def failed(self) -> dict[str, str]:
        cases = docs_site.check_built(self.root / "docs", self.root / "site")
        return {case.name: case.detail for case in cases if case.outcome == FAILED}

    def test_a_whole_site_passes(self) -> None:
        self.assertEqual(self.failed(), {})

    def test_a_document_without_a_page_is_named(self) -> None:
        self.write("docs/design/second.md", "# Another one\n")
        self.search("guides/first.html", "design/second.html")
        self.assertEqual(self.failed(), {"site: a page of each document": "design/second.html"})

    def test_a_document_that_no_search_finds_is_named(self) -> None:
        self.search("contents.html")
        self.assertEqual(self.failed(), {"site: each document is found by the search": "guides/first.html"})

    def test_what_is_loaded_from_elsewhere_is_named(self) -> None:
        self.write("site/contents.html", '<a href="https://example.org">a link</a>')
        self.assertEqual(self.failed(), {})
        for text in ('<script src="https://example.org/x.js">', "<img alt='' src=//example.org/x.png>"):
            self.write("site/contents.html", text)
            self.assertEqual(self.failed(), {"site: nothing is loaded from elsewhere": "contents.html"}, text)
        self.write("site/contents.html", "<p>")
        self.write("site/a.css", "body{background:url(https://example.org/x.png)}")
        self.assertEqual(self.failed(), {"site: nothing is loaded from elsewhere": "a.css"})


if __name__ == "__main__":
    unittest.main()
