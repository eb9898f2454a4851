#!/usr/bin/env bash
# tools/bench.sh [OPTION...] [SUBJECT...]
# Measures this tree beside its peers: every program runs once in each turn, so that whatever else the machine does hits
# all of them. Prints a table for each subject, and writes it to build/bench/results.md; the values of all runs go to
# build/bench/results.json. Subjects, by default all:
#   engine      tasks of the engine beside Taskflow; what issuing a call costs
#   operators   single operators, without a peer
#   training    training steps of five networks beside PyTorch
#   store       dense keys and round trips beside kvfloor, which is ZeroMQ alone
#   sparse      rows of a table beside dense keys of as many bytes
#   allreduce   mode ring beside gloo
#   loader      decoding beside bare TurboJPEG; records and loaders
#
#   --minutes=M      takes turns for M minutes, one turn at least; without --turns 15. Building is not counted
#   --turns=N        takes N turns at most
#   --seconds=S      of each measurement of a turn, by default 0.3
#   --write          also writes the tables into tests/benchmarks/README.md, after five turns or more; a row stays where its
#                    peer is missing now
#   --against=BUILD  measures beside another build of ours in place of the peers, in ten turns: a folder with its
#                    programs, or a commit, which is built in build/bench/COMMIT. That build also runs beside itself.
#                    Prints the geometric mean of the ratios now/before and before/before with their lower bounds. Ends
#                    with 1 where the first mean is below the second bound, so that this tree is slower, and where fewer
#                    than five turns cannot say
#   --bin=FOLDER     measures the programs of this folder; otherwise the preset cpu is built
#   --python=PYTHON  interpreter with PyTorch; otherwise python3, or the one in build/bench/pytorch
#   --taskflow=DIR   folder with taskflow/taskflow.hpp; otherwise build/bench/taskflow, or /usr/include
#
# A ratio above 1 is better for ours. "at least" is its lower bound with 95 % confidence (bootstrap over the turns), with
# fewer than five turns the least ratio of a turn. A peer that is not installed is named and skipped.
set -euo pipefail
for word; do
  case $word in
    --help | -h) sed -n '2,34s/^# \{0,1\}//p' "$0"; exit 0 ;;
  esac
done
exec python3 -B "$(dirname "$0")/../tests/benchmarks/bench.py" "$@"
