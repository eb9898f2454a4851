"""The pages, and the parts of them that tests compare with the code."""

import os
import pathlib
import re

SOURCE = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = SOURCE / "docs" / "reference.md"
COMMANDS = SOURCE / "docs" / "commands.md"
TROUBLES = SOURCE / "docs" / "troubleshooting.md"


def all_pages():
    """Every page of the tree; what is built lies in folders that git ignores."""
    pages = []
    for folder, folders, files in os.walk(SOURCE):
        folders[:] = [name for name in folders if name not in (".git", "build", "out", "logs")]
        pages += [pathlib.Path(folder, name) for name in files if name.endswith(".md")]
    return pages


def without_code(text):
    """The same lines, but those of fenced and indented blocks are empty, and inline code has no brackets."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        code = fenced or fence or line.startswith("    ")
        fenced ^= fence
        lines.append("" if code else re.sub(r"`[^`]*`", lambda found: re.sub(r"[\[\]()]", "_", found.group()), line))
    return "\n".join(lines)


def section(page, heading):
    """The lines below a heading, up to the next one of its level or above."""
    level = heading.split(" ")[0]
    lines, inside = [], False
    for line in page.read_text().split("\n"):
        if re.match(r"#+ ", line) and len(line.split(" ")[0]) <= len(level):
            inside = line == heading
        elif inside:
            lines.append(line)
    if not lines:
        raise AssertionError(f"{page} has no section '{heading}'")
    return lines


def tables(lines):
    """The tables among the lines: lists of rows, which are lists of cells; the heads are left out."""
    found, rows = [], []
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" |")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def code_in(text):
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def names_of(rows, column=0):
    return {name for row in rows for name in code_in(row[column])}
