"""Asks whether the fuzzers find bugs: it plants some in a copy of the tree, and runs the fuzzer of each.

    python3 tests/fuzz/planted.py --number 10 --seed 1

draws bugs from the list below, compiles them all into one build of the preset `fuzz` in build/planted, and turns on one
at a time. A fuzzer begins with the committed corpus and gets --executions inputs within --seconds, first without a bug.
The table says what found each bug, and the exit status is 1 where one was not found. tests/fuzz/README.md has a result.
"""

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "runner"))

import mutants  # noqa: E402  after the path is set

COPY = mutants.SOURCE / "build" / "planted"
BUILD = COPY / "build" / "fuzz"

# The fuzzer, the file, an expression that occurs once in it, and what takes its place.
BUGS = [
    ("message", "kvstore/net/message.cc", "packet[0].size < kHeadBytes", "packet[0].size + 1 < kHeadBytes"),
    ("message", "kvstore/net/message.cc", "payload_count != packet.size() - 1", "payload_count > packet.size() - 1"),
    (
        "layout",
        "kvstore/partition/key_partition.cc",
        "range.end() > key.shape.size()",
        "range.end() > key.shape.size() + 1",
    ),
    ("layout", "kvstore/partition/placement.cc", "servers[i] >= servers_", "servers[i] > servers_"),
    (
        "codec",
        "kvstore/rules/compression/sparse_values.cc",
        "encoded::expect_bytes(codec, bytes, bytes_of(kept), count)",
        "void()",
    ),
    ("saved_state", "kvstore/worker/checkpoint/saved_tables.cc", "id < table.rows", "id <= table.rows"),
    ("saved_state", "kvstore/worker/checkpoint/saved_names.cc", "kColon.size() - 1", "kColon.size()"),
    ("shm", "kvstore/net/transport/shm.cc", "piece.bytes() > view->bytes() - piece.offset()", "false"),
    ("spec", "kvstore/rules/pattern.cc", "++resume", "resume + 2"),
    ("options", "base/options.cc", "std::string(item.substr(equals + 1))", "std::string(item.substr(equals))"),
    (
        "records",
        "io/recordio.cc",
        "source.size() - offset - sizeof head < padded",
        "source.size() - offset - sizeof head < length",
    ),
    ("record_file", "io/record_file.cc", "stored.size() != index.size()", "stored.size() > index.size()"),
    ("index", "io/record_index.cc", "fields.number<std::uint32_t>(16)", "fields.number<std::uint32_t>(10)"),
    ("libsvm", "io/libsvm_row.h", "index - lowest < features", "index - lowest <= features"),
    ("csv", "io/csv_decoder.cc", "close[1] != delimiter_", "close[1] == quote_"),
    (
        "image_record",
        "io/image_record.cc",
        "(record.size() - kHeaderBytes) / sizeof(float)",
        "record.size() / sizeof(float)",
    ),
    ("image", "io/image_codec.cc", "static_cast<std::int64_t>(pixels.size())", "width * height * channels"),
    ("image_list", "io/image_list.cc", "fields.size() < 3", "fields.size() < 2"),
    ("idx", "io/idx_file.cc", "head[3] > 8", "head[3] > 9"),
    ("manifest", "io/manifest.cc", "shard.records < 1", "shard.records < 0"),
    ("positions", "io/range_set.cc", "range.begin >= range.end || !sorted", "range.begin > range.end || !sorted"),
    ("params", "ndarray/files/params_file.cc", "names != count", "names > count + 1"),
    ("safetensors", "ndarray/files/safetensors_file.cc", "entry.begin != covered", "entry.begin < covered"),
]


def mutant_of(number, file, was, becomes):
    text = (mutants.SOURCE / file).read_text()
    if text.count(was) != 1:
        sys.exit(f"planted.py: `{was}` occurs {text.count(was)} times in {file}; mend the list of bugs")
    begin = text.index(was)
    line = text.count("\n", 0, begin) + 1
    return mutants.Mutant(file, line, begin, begin + len(was), was, becomes, number)


def build(planted, fuzzers):
    mutants.COPY = COPY
    mutants.write_copy(planted)
    log = COPY / "build.log"
    with open(log, "w", encoding="utf-8") as out:
        for command in (["cmake", "--preset", "fuzz"], ["ninja", "-C", BUILD, *(f"{name}_fuzzer" for name in fuzzers)]):
            if subprocess.run(command, cwd=COPY, stdout=out, stderr=out).returncode != 0:
                sys.exit(f"planted.py: the copy cannot be built, see {log}")


def try_one(number, fuzzer, options):
    """How many inputs there were and what the fuzzer printed of its finding; the second is empty without one."""
    grown = COPY / "corpus" / str(number)
    grown.mkdir(parents=True, exist_ok=True)
    command = [
        BUILD / "bin" / f"{fuzzer}_fuzzer",
        f"-runs={options.executions}",
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        "-print_final_stats=1",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-detect_leaks=0",  # no bug of the list is one, and looking for leaks stops all threads
        f"-artifact_prefix={grown}/",
        grown,
        mutants.SOURCE / "tests/fuzz/corpus" / fuzzer,
    ]
    environment = {**os.environ, "TEST_MUTANT": str(number)}
    done = subprocess.run(command, env=environment, capture_output=True)
    printed = done.stderr.decode(errors="replace")
    executed = re.findall(r"stat::number_of_executed_units: *(\d+)", printed)
    if done.returncode == 0:
        return executed, ""
    what = re.search(
        r"what\(\): *(.*)|ERROR: (AddressSanitizer: [\w-]+|libFuzzer: timeout)|runtime error: (.*)", printed
    )
    return executed, next(filter(None, what.groups()), "") if what else f"exit status {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=10, help="bugs to plant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", type=int, default=100000, help="inputs for each bug")
    parser.add_argument("--seconds", type=int, default=60, help="at most so long for each bug")
    options = parser.parse_args()
    drawn = random.Random(options.seed).sample(BUGS, min(options.number, len(BUGS)))
    planted = [mutant_of(number, *bug[1:]) for number, bug in enumerate(drawn, 1)]
    build(planted, sorted({bug[0] for bug in drawn}))
    for fuzzer in sorted({bug[0] for bug in drawn}):
        if try_one(0, fuzzer, options)[1]:
            sys.exit(f"planted.py: the fuzzer {fuzzer} finds something without a bug; repair that first")
    missed = 0
    for mutant, bug in zip(planted, drawn, strict=True):
        begin = time.monotonic()
        executed, what = try_one(mutant.number, bug[0], options)
        missed += not what
        inputs = f"{executed[-1] if executed else '?'} inputs"
        print(f"{mutant.number:3} {time.monotonic() - begin:6.1f} s  {bug[0]}: {mutant.describe()}", flush=True)
        print(f"      {f'found after {inputs}: {what[:90]}' if what else f'NOT FOUND in {inputs}'}", flush=True)
    print(f"seed {options.seed}: {len(drawn) - missed} of {len(drawn)} bugs found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
