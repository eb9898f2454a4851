"""Rewrites CMake's compile_commands.json for clang-tidy.

    lint_compile_commands.py COMPILE_COMMANDS FOLDER FILE...

Writes FOLDER/compile_commands.json with one command for each FILE that is compiled at all, and prints those files.
GCC's precompiled headers and warnings are left out: clang cannot read the first and does not know all of the second.
"""

import functools
import json
import os
import shlex
import subprocess
import sys


@functools.cache
def gcc_headers(compiler):
    """GCC's own headers; clang finds there, last of all, what it has not itself: omp.h."""
    found = subprocess.run([compiler, "-print-file-name=include"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def for_clang(command):
    compiler, *words = command
    kept = []
    words = iter(words)
    for word in words:
        if word == "-include":
            header = next(words)
            if not header.endswith("cmake_pch.hxx"):
                kept += [word, header]
        elif word not in ("-fpch-preprocess", "-fpch-deps") and not (word.startswith("-W") and "," not in word):
            kept.append(word)
    # clang knows the attribute malloc without the function that frees, and GCC's omp.h has it with one.
    return [compiler, *kept, "-idirafter", gcc_headers(compiler), "-D__malloc__(deallocator)=__malloc__"]


def main(source, folder, *files):
    with open(source) as file:
        entries = json.load(file)
    wanted = {os.path.abspath(file): file for file in files}
    chosen = {}
    for entry in entries:
        path = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        if path in wanted and path not in chosen:
            command = entry.get("arguments") or shlex.split(entry["command"])
            chosen[path] = {"directory": entry["directory"], "file": path, "arguments": for_clang(command)}
    with open(os.path.join(folder, "compile_commands.json"), "w") as file:
        json.dump(list(chosen.values()), file, indent=1)
    for path in chosen:
        print(wanted[path])


if __name__ == "__main__":
    main(*sys.argv[1:])
