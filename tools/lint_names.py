"""Finds names that get in each other's way: lint_names.py FILE...

Two classes of one name in one namespace break the One Definition Rule. No compiler and no linker says so, and the
program may call the functions of the wrong one. A macro of a public header (include/paceline) that does not begin with
PACELINE_ replaces words in the programs of users.
"""

import collections
import pathlib
import re
import sys


def blanked(text):
    """The text without comments, literals and preprocessor lines, with its lines kept."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())

    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", blank, text, flags=re.S)
    return re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def types(text):
    """(line, full name) of the types that are defined in named namespaces."""
    scopes, begin = [], 0  # scopes: a namespace's name, or None for everything else that is in braces
    for match in re.finditer(r"[{};]", text):
        head = " ".join(text[begin : match.start()].split())
        begin = match.end()
        if match.group() == "}" and scopes:
            scopes.pop()
        if match.group() != "{":
            continue
        namespace = re.search(r"\bnamespace ?([\w:]*)$", head)
        kind = re.search(r"\b(?:class|struct|union|enum(?: class)?) (?:\[\[.*?\]\] )?(\w+)(?: final)?(?: : .*)?$", head)
        if kind and "(" not in head and None not in scopes:
            yield text.count("\n", 0, match.start()) + 1, "::".join([*scopes, kind[1]])
        # What is in an unnamed namespace belongs to one file.
        scopes.append((namespace[1] or None) if namespace else None)


def macros(path, text):
    """(line, name) of the macros that a public header defines without our prefix."""
    if "include/paceline/" in path:
        for match in re.finditer(r"^\s*#\s*define\s+(?!PACELINE_)(\w+)", text, flags=re.M):
            yield text.count("\n", 0, match.start(1)) + 1, match[1]


def main(*paths):
    for path in paths:
        for line, name in macros(path, pathlib.Path(path).read_text()):
            print(f"{path}:{line}:1: the public macro {name} lacks the prefix PACELINE_")
    places = collections.defaultdict(dict)
    for path in paths:
        for line, name in types(blanked(pathlib.Path(path).read_text())):
            places[name].setdefault(path, line)
    for name, found in sorted(places.items()):
        for path, line in list(found.items())[1:]:
            first = next(iter(found))
            print(f"{path}:{line}:1: {name} is defined in {first}:{found[first]}, too")


if __name__ == "__main__":
    main(*sys.argv[1:])
