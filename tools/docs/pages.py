#!/usr/bin/env python3
"""tools/docs/pages.py stage FOLDER    docs/*.md as MkDocs is to read them, beside the API reference in FOLDER/api
tools/docs/pages.py check SITE      every link of the pages that MkDocs has built leads to a file, and to its heading

A page may link to any file of the source tree, as where the tree is browsed. In the site

- a public header becomes its page of the API reference,
- a page outside docs/ is copied into source/, with what it links to,
- a folder becomes its README.md, or a list of its files,
- any other file becomes a copy that the browser shows as text.
"""

import html.parser
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

import api

ROOT = api.ROOT
FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(
    r"(?P<before>\]\(\s*<?)(?P<target>[^)\s>]+)(?P<after>[^)]*\))|^(?P<mark>\s{0,3}\[[^\]]+\]:\s+)(?P<url>\S+)"
)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")


def outside_code(line, change):
    """Applies `change` to the parts of a line that are no code in backticks."""
    result, place = [], 0
    for code in CODE.finditer(line):
        result += [change(line[place : code.start()]), code.group()]
        place = code.end()
    return "".join(result) + change(line[place:])


class Stage:
    def __init__(self, folder, root=ROOT):
        self.folder, self.root = pathlib.Path(folder), pathlib.Path(root)
        self.headers = api.pages_of_headers(folder)
        self.problems, self.done, self.waiting = [], set(), []

    def place_of(self, source):
        """Where a file of the tree stands in the site, and what is to be done for it."""
        path = source.relative_to(self.root).as_posix()
        if path in self.headers:
            return self.headers[path]
        if source.is_dir():
            if (source / "README.md").exists():
                return self.place_of(source / "README.md")
            self.waiting.append(source)
            return f"source/{path}/index.md"
        self.waiting.append(source)
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        return f"source/{path}" + ("" if source.suffix in (".md", ".png", ".svg", ".jpg") else ".txt")

    def link(self, page, target, line):
        """The target of a link in a page of the tree, as it is in the site."""
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or parts.netloc or not parts.path:
            return target
        source = pathlib.Path(os.path.normpath(page.parent / urllib.parse.unquote(parts.path)))
        name = page.relative_to(self.root)
        if not source.is_relative_to(self.root) or not source.exists():
            self.problems.append(f"{name}:{line}: the link to '{target}' leads to no file")
            return target
        place = self.place_of(source)
        link = os.path.relpath(place, pathlib.PurePath(self.place_of(page)).parent)
        return link + (f"#{parts.fragment}" if parts.fragment and place.endswith(".md") else "")

    def write(self, place, text):
        (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / place).write_text(text, encoding="utf-8")

    def page(self, source):
        """A page with its links changed."""
        lines, fence = [], ""
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            mark = FENCE.match(line)
            if mark and fence in ("", mark.group(1)):
                fence = "" if fence else mark.group(1)
            elif not fence:

                def change(part, number=number):
                    return LINK.sub(
                        lambda found: (
                            (found["before"] or found["mark"])
                            + self.link(source, found["target"] or found["url"], number)
                            + (found["after"] or "")
                        ),
                        part,
                    )

                line = outside_code(line, change)
            lines.append(line)
        return "\n".join(lines) + "\n"

    def folder_page(self, source):
        """A list of the files in a folder that has no README.md."""
        rows = [f"# {source.relative_to(self.root).as_posix()}\n"]
        for file in sorted(source.iterdir()):
            if file.is_file():
                link = os.path.relpath(self.place_of(file), f"source/{source.relative_to(self.root).as_posix()}")
                rows.append(f"- [{file.name}]({link})")
        return "\n".join(rows) + "\n"

    def navigation(self):
        """The pages that mkdocs.yml names."""
        return re.findall(r": (\S+\.md)$", (self.root / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)

    def api_page(self):
        """The page that leads to the API reference: a line for each header."""
        text = ["# API reference", "", "By header; [all names](api/index.html), with a search.", ""]
        for module in ("nn", "ops", "kvstore", "io", "ndarray", "engine", "base"):
            text += [f"## {module}", "", "| header | what it holds |", "|---|---|"]
            for header, page in sorted(self.headers.items()):
                if header.split("/")[0] == module:
                    include = "paceline/" + ("" if "/include/" in header else "ops/") + pathlib.PurePath(header).name
                    text.append(f"| [`{include}`]({page}) | {first_sentence(self.root / header)} |")
            text.append("")
        return "\n".join(text)

    def run(self):
        for source in sorted((self.root / "docs").rglob("*")):
            if source.is_file():
                self.place_of(source)
                if source.suffix == ".md" and source.name not in self.navigation():
                    self.problems.append(f"{source.relative_to(self.root)}: mkdocs.yml does not name this page")
        while self.waiting:
            source = self.waiting.pop()
            if source in self.done:
                continue
            self.done.add(source)
            if source.is_dir():
                self.write(f"source/{source.relative_to(self.root).as_posix()}/index.md", self.folder_page(source))
            elif source.suffix == ".md":
                self.write(self.place_of(source), self.page(source))
            else:
                place = self.folder / self.place_of(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
        self.write("api.md", self.api_page())
        return self.problems


def first_sentence(header):
    """Of the comment at the head of a header."""
    lines = []
    for line in header.read_text(encoding="utf-8").splitlines()[1:]:
        if not line.startswith("// "):
            break
        lines.append(line[3:])
    sentence = re.split(r"(?<=[.:])\s", " ".join(lines) + " ")[0].rstrip(":")
    return sentence.replace("|", "\\|").replace("<", "&lt;")


class Links(html.parser.HTMLParser):
    """What a page links to or shows, and the names in it that a link can lead to.."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id" or (key == "name" and tag == "a"):
                self.names.add(value)
            elif (tag, key) in (("a", "href"), ("img", "src")) and value:
                self.links.append(value)


def check(site):
    """The links of the site's pages that lead nowhere."""
    site, problems, known = pathlib.Path(site).resolve(), [], {}

    def names(path):
        if path not in known:
            known[path] = Links(path).names
        return known[path]

    pages = [page for page in sorted(site.rglob("*.html")) if page.relative_to(site).parts[0] != "api"]
    for page in pages:
        name = page.relative_to(site).as_posix()
        source = f"docs/{name.removesuffix('.html')}.md"
        shown = source if (ROOT / source).exists() else name
        for link in dict.fromkeys(Links(page).links):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = (
                page
                if not parts.path
                else pathlib.Path(os.path.normpath(page.parent / urllib.parse.unquote(parts.path)))
            )
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                problems.append(f"{shown}: the link to '{link}' leads to no file")
            elif (
                parts.fragment
                and target.suffix == ".html"
                and urllib.parse.unquote(parts.fragment) not in names(target)
            ):
                problems.append(f"{shown}: the link to '{link}' names a heading that is not there")
    return problems


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("stage", "check"):
        print("pages.py: expected 'stage FOLDER' or 'check SITE'", file=sys.stderr)
        return 2
    problems = Stage(sys.argv[2]).run() if sys.argv[1] == "stage" else check(sys.argv[2])
    if problems:
        print("\n".join(problems))
        print(f"docs: {len(problems)} findings in the pages, see above", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
