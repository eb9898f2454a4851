#!/usr/bin/env python3
"""emulated_nvcc.py [LAUNCHER...] COMPILER OPTIONS... -c FILE -o OBJECT

A compiler launcher. A .cu file is preprocessed, its kernel launches, and those of the headers it includes, become calls
that the emulation understands, and the result is compiled as C++. Any other command runs as it is.
"""

import os
import re
import subprocess
import sys

OPENING, CLOSING = "([{", ")]}"


def end_of_group(text, begin):
    """The place behind the bracket that closes the one at `begin`."""
    depth = 0
    for at in range(begin, len(text)):
        if text[at] in OPENING:
            depth += 1
        elif text[at] in CLOSING:
            depth -= 1
            if depth == 0:
                return at + 1
    raise ValueError("a kernel launch is never closed: " + text[begin : begin + 80])


def begin_of_kernel(text, end):
    """Where the name of the kernel, with its template arguments, begins that ends before `end`."""
    at = end
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += {">": 1, "<": -1}.get(text[at], 0)
            if depth == 0:
                break
    while re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


def with_calls(text):
    """`kernel<<<how>>>(arguments)` becomes `Launch("kernel", calls kernel, how)(arguments)`."""
    done = []
    rest = 0
    while (launch := text.find("<<<", rest)) >= 0:
        end = launch
        while text[end - 1].isspace():
            end -= 1
        begin = begin_of_kernel(text, end)
        how_end = text.index(">>>", launch)
        kernel, how = text[begin:end], text[launch + 3 : how_end]
        name = re.match(r"[\w:]+", kernel).group()
        done += [
            text[rest:begin],
            f'::cuda_emulation::Launch("{name}", [](const auto&... a) {{ {kernel}(a...); }}, {how})',
        ]
        rest = how_end + 3
        arguments_end = end_of_group(text, text.index("(", rest))
        done.append(text[rest:arguments_end])
        rest = arguments_end
    return "".join(done) + text[rest:]


def with_shared_memory(text):
    """`__shared__ T name[...];` is memory of the one block that runs, and holds junk when a block begins."""
    return re.sub(
        r"__shared__\s+([^;]*?\b(\w+)\s*(?:\[[^;]*\]\s*)?);",
        r"static \1; ::cuda_emulation::share(&\2, sizeof \2);",
        text,
    )


def with_bounds(text):
    """Each kernel begins with a check of the size of its block against its bounds."""
    done, rest = [], 0
    for kernel in re.finditer(r"\bemulated_kernel\b(\s+(?:static\s+)?void\s+)(emulated_bounds\b)?", text):
        done += [text[rest : kernel.start()], kernel[1]]
        rest, bounds = kernel.end(), "()"
        if kernel[2]:
            begin = text.index("(", rest)
            rest = end_of_group(text, begin)
            bounds = text[begin:rest]
        parameters = end_of_group(text, text.index("(", rest))
        body = text.find("{", parameters)
        if body >= 0 and not text[parameters:body].strip():  # else it is declared only
            done += [text[rest : body + 1], f" ::cuda_emulation::require_block_of{bounds};"]
            rest = body + 1
    return "".join(done) + text[rest:]


def main():
    command = sys.argv[1:]
    source = next((word for word in command if word.endswith(".cu")), None)
    if source is None or "-c" not in command:
        os.execvp(command[0], command)
    command = ["-ffp-contract=off" if word == "-fmad=false" else word for word in command]
    target = command[command.index("-o") + 1]
    launchers = next(i for i, word in enumerate(command) if re.search(r"(g\+\+|clang\+\+|c\+\+)(-\d+)?$", word))
    compiler, options = command[launchers], command[launchers + 1 :]

    preprocessed = target + ".ii"
    output = options.index("-o") + 1
    preprocess = options[:output] + [preprocessed] + options[output + 1 :]
    preprocess[preprocess.index("-c")] = "-E"
    status = subprocess.run([compiler, *preprocess]).returncode
    if status:
        sys.exit(status)
    with open(preprocessed) as file:
        text = with_shared_memory(with_calls(with_bounds(file.read())))
    # A compiler cache that several checkouts share sees the same text in each.
    text = text.replace('"' + os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + "/", '"')
    with open(preprocessed, "w") as file:
        file.write(text)

    compile_it, words = command[: launchers + 1], iter(options)
    for word in words:
        if word in ("-MT", "-MF", "-MQ", "-x", "-isystem", "-I"):
            next(words)
        elif word == source:
            compile_it += ["-x", "c++-cpp-output", preprocessed]
        elif not re.match(r"-(MM?D|I|D)", word):
            compile_it.append(word)
    # Pragmas that are nvcc's; and what a thread reads under a condition and uses under the same one.
    compile_it += ["-Wno-unknown-pragmas", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
    sys.exit(subprocess.run(compile_it).returncode)


if __name__ == "__main__":
    main()
