#!/usr/bin/env python3
"""tools/docs/api.py FOLDER: the API reference from the public headers, by Doxygen, as HTML in FOLDER/api.

Ends with 1 and a line for each public name without a comment, and for whatever else Doxygen finds wrong.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

import doc_comments

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAGS = ".api.tag"  # which page describes which header; MkDocs copies no file whose name begins with a dot


def public_headers(root=ROOT):
    """The installed headers, relative to the root: those of the modules, and one for each folder of operators."""
    headers = [path for path in root.glob("*/include/paceline/*.h")]
    headers += [path for path in root.glob("ops/*/*.h") if path.stem == path.parent.name]
    return sorted(path.relative_to(root).as_posix() for path in headers)


def sentence(line, folder):
    """One line of Doxygen's warnings in our words; `folder` holds the headers."""
    line = line.removeprefix(f"{folder}/").replace(" warning: ", " ", 1)
    found = re.match(r"(\S+?:\d+:) (?:Compound|Member) (.+?)(?: \((\w+)\) of (\w+) (.+))? is not documented\.$", line)
    if not found:
        return line
    place, name, kind, _, owner = found.groups()
    what = f"{owner}::{name}" if owner and not owner.endswith(".h") else name
    return f"{place} {what} has no comment{f' ({kind})' if kind else ''}"


def place_of(finding):
    """File and line, to sort by."""
    found = re.match(r"(\S+?):(\d+):", finding)
    return (found[1], int(found[2]), finding) if found else ("", 0, finding)


def values_without_comment(header, root=ROOT):
    """Enumerators, of which Doxygen says nothing before 1.9.8."""
    parser = doc_comments.Parser((root / header).read_text(encoding="utf-8"))
    doc_comments.attach(parser)
    if parser.place < len(parser.code):
        yield f"{header}:{parser.code[parser.place].line}: tools/docs/doc_comments.py cannot read what stands here"

    def walk(declarations):
        for one in declarations:
            if not one.public or (one.kind == "namespace" and "detail" in one.words):
                continue
            if one.kind == "enumerator" and one.tokens and not one.docs and not one.trailing:
                yield f"{header}:{one.tokens[0].line}: {one.words[0]} has no comment (enumerator)"
            yield from walk(one.members)

    yield from walk(parser.declarations[:1])


def build(folder, headers=None, root=ROOT):
    """Runs Doxygen on the filtered headers; returns the findings."""
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    headers = headers or public_headers()
    version = re.search(r"project\(paceline VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    # One process filters all of them; as Doxygen's INPUT_FILTER it would start twice for each.
    with tempfile.TemporaryDirectory(prefix="paceline-docs-") as source:
        for header in headers:
            place = pathlib.Path(source) / header
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(doc_comments.filtered((root / header).read_text(encoding="utf-8")), encoding="utf-8")
        log = pathlib.Path(source) / "log"
        settings = (ROOT / "tools/docs/Doxyfile").read_text() + "\n".join(
            [
                f"PROJECT_NUMBER = {version.group(1) if version else ''}",
                f"INPUT = {' '.join(headers)} {ROOT}/tools/docs/namespaces.dox",
                f"STRIP_FROM_PATH = {source}",
                f"OUTPUT_DIRECTORY = {folder}",
                f"GENERATE_TAGFILE = {folder / TAGS}",
                f"WARN_LOGFILE = {log}",
            ]
        )
        done = subprocess.run(["doxygen", "-"], input=settings, text=True, cwd=source, capture_output=True)
        lines = log.read_text().splitlines() if log.exists() else []
    findings = dict.fromkeys(sentence(line, source) for line in lines if line.strip())
    for header in headers:
        findings.update(dict.fromkeys(values_without_comment(header, root)))
    if done.returncode != 0 and not findings:
        return [f"doxygen ended with exit code {done.returncode}: {done.stderr.strip()}"]
    return sorted(findings, key=place_of)


def pages_of_headers(folder):
    """Header -> its page, relative to FOLDER."""
    compounds = ElementTree.parse(pathlib.Path(folder) / TAGS).getroot().findall("compound[@kind='file']")
    pages = {}
    for compound in compounds:
        path = (compound.findtext("path") or "") + (compound.findtext("name") or "")
        # Doxygen gives the path with that of the folder it read.
        pages[re.sub(r"^.*/(?=\w+/include/paceline/|ops/\w+/\w+\.h$)", "", path)] = (
            f"api/{compound.findtext('filename')}"
        )
    return pages


def main():
    findings = build(sys.argv[1])
    if findings:
        print("\n".join(findings))
        count = sum(" has no comment" in finding for finding in findings)
        print(
            f"docs: {count} public names without a comment, {len(findings) - count} other findings; a comment "
            "stands above a declaration or a group of them, or behind it (tools/docs/doc_comments.py has the rules)",
            file=sys.stderr,
        )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
