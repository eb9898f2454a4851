#!/usr/bin/env bash
# The table of gpu_check.sh, on a GPU and programs that are made up: right, wrong, skipped and crashed tests are told
# apart, one part's failure stops no other, and the exit code says that something is wrong.
# shellcheck disable=SC2016  # the single quotes hold programs, which expand their own variables
set -u
tools=$(cd "$(dirname "$0")/../../tools" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failures=0

program() {  # NAME BODY
  printf '#!/bin/bash\n%s\n' "$2" >"$place/$1"
  chmod +x "$place/$1"
}
tests='case $* in
  *list_tests*) printf "Catalogue/Operators.\n  CudaEqualsCpu/right  # GetParam() = 0x1\n  CudaEqualsCpu/wrong\n"
                printf "  CudaEqualsCpu/skipped\n  CudaEqualsCpu/crashed\n" ;;
  */right) echo "[  PASSED  ]" ;;
  */wrong) echo "operators_test.cc:1: Failure"; echo "off by one"; exit 1 ;;
  */skipped) echo "operators_test.cc:2: Skipped"; echo "no kernel"; echo "[  SKIPPED ]" ;;
  */crashed) kill -SEGV $$ ;;
esac'
program nvidia-smi 'echo "GPU of paper, 1.0, 1 MiB"'
program ops_tests "$tests"
program kvstore_tests 'case $* in
  *list_tests*) printf "Nccl.\n  TwoDevices\n" ;;
  *) echo "nccl_test.cc:1: Skipped"; echo "needs two GPUs"; echo "[  SKIPPED ]" ;;
esac'
program device_benchmark 'echo "add 1.0 us"; exit ${BENCHMARK_ENDS_WITH:-0}'
program train_benchmark '[[ $* == *lstm* ]] && idle=", \"device_idle\": 3.1234e-05"
echo "{\"samples_per_second\": 12.5$idle}"'
program python3 "case \$* in
  *'import sys, torch'*) exit \${NO_PYTORCH:-1} ;;
  *pytorch_steps.py*'5 --device cuda'*) echo '{\"samples_per_second\": 9.5, \"pytorch\": \"2.x\"}' ;;
  *) exec '$(command -v python3)' \"\$@\" ;;
esac"

expect() {  # PATTERN
  grep -qE "$1" "$place/out/table.txt" || { echo "no line '$1'"; failures=$((failures + 1)); }
}

status=0
PATH=$place:$PATH "$tools/gpu_check.sh" --programs "$place" --out "$place/out" >"$place/printed" 2>&1 || status=$?
[ "$status" -eq 1 ] || { echo "exit code $status, expected 1"; failures=$((failures + 1)); }
expect '^GPU of paper, 1.0, 1 MiB'
expect '^operators, against the CPU +failed +[0-9]+ +1 of 4 right, 2 wrong, 1 skipped'
expect 'Operators.CudaEqualsCpu/wrong +failed +.*off by one'
expect 'Operators.CudaEqualsCpu/crashed +failed'
expect '^arrays +not run'
expect '^stores, several GPUs, NCCL and copies +not run +[0-9]+ +needs two GPUs'
expect '^device_benchmark +ok'
expect '^  add 1.0 us'
expect '^train resnet50, batch 64 +ok +[0-9]+ +12 examples/s'
expect '^train lstm, batch 64 +ok +[0-9]+ +12 examples/s, nothing on the GPU 0.0000 of the time'
expect '^drawn digits +failed'
expect '^PyTorch beside it +not run'
expect '^all +failed'

tests='case $* in *list_tests*) printf "A.\n  b\n" ;; esac'
program ops_tests "$tests"
PATH=$place:$PATH "$tools/gpu_check.sh" --bench --programs "$place" --out "$place/out" >>"$place/printed" 2>&1 ||
  { echo "--bench alone failed"; failures=$((failures + 1)); }
grep -q operators "$place/out/table.txt" && { echo "--bench ran the tests"; failures=$((failures + 1)); }
BENCHMARK_ENDS_WITH=9 PATH=$place:$PATH "$tools/gpu_check.sh" --bench --programs "$place" --out "$place/out" \
  >>"$place/printed" 2>&1 && { echo "a benchmark that broke off passed"; failures=$((failures + 1)); }
expect '^device_benchmark +failed +[0-9]+ +exit code 9'
expect '^  add 1.0 us'

printf 'import json\nprint(json.dumps({"test_accuracy": 0.97}))\n' >"$place/launch.py"
program draw_digits true
program im2rec 'touch "$1.manifest"'
mkdir -p "$place/out/digits"
NO_PYTORCH=0 PATH=$place:$PATH "$tools/gpu_check.sh" --dist --peers --programs "$place" --out "$place/out" \
  >>"$place/printed" 2>&1 || { echo "--dist and --peers failed"; failures=$((failures + 1)); }
expect '^dist_sync, 2 workers and 2 servers +ok +[0-9]+ +accuracy 0.97'
expect '^dist_async, 2 workers and 2 servers +ok'
printf 'import json\nprint(json.dumps({"test_accuracy": float("nan")}))\n' >"$place/launch.py"
PATH=$place:$PATH "$tools/gpu_check.sh" --dist --programs "$place" --out "$place/nan" >>"$place/printed" 2>&1 &&
  { echo "an accuracy that is no number passed"; failures=$((failures + 1)); }
expect '^resnet50, bfloat16, channels last, batch 256, ours +ok +[0-9]+ +12 examples/s'
expect '^transformer, batch 64, PyTorch --compile +ok +[0-9]+ +9 examples/s, 2.x'

program train_benchmark 'printf "{\"samples_per_second\": 12.5}\nthe device was \033[1mlost\n"'
PATH=$place:$PATH "$tools/gpu_check.sh" --train --programs "$place" --out "$place/out" >>"$place/printed" 2>&1 &&
  { echo "a program without a result passed"; failures=$((failures + 1)); }
expect "^train lenet, batch 256 +failed +[0-9]+ +no result; the last line is 'the device was \[1mlost'"

# Tests that would take all the time leave the other parts theirs: nothing is handed more than the share of its part, and
# what goes on when that is over is cut off. The clock is made up: timeout notes the seconds that it is handed, and the
# second test, instead of taking them, sends timeout the signal by which the clock would tell it that they are over.
program nproc 'echo 2'  # one test at a time
program timeout '[ "$1 $2" != "-k 5" ] || { echo "$3 ${4##*/}" >>'"'$place/limits'; echo \$\$ >'$place/timer'"'; }
exec '"$(command -v timeout)"' "$@"'
program ops_tests 'case $* in
  *list_tests*) printf "A.\n"; printf "  Cuda%d\n" {1..40} ;;
  *Cuda1) echo "[  PASSED  ]" ;;
  *) kill -ALRM "$(cat '"'$place/timer'"')" && exec sleep 50 ;;
esac'
GPU_CHECK_SECONDS=119 PATH=$place:$PATH "$tools/gpu_check.sh" --check --bench --programs "$place" --out "$place/out" \
  >>"$place/printed" 2>&1
expect '^operators, against the CPU +cut off +[0-9]+ +1 of 40 right, 0 skipped, for the others was no time'
expect '^device_benchmark +ok'
handed() {  # COMMAND MORE_THAN AT_MOST
  awk -v command="$1" -v more="$2" -v most="$3" '$2 == command { found = 1; wrong = $1 <= more || $1 > most; exit }
    END { exit !found || wrong }' "$place/limits" ||
    { echo "$1 was not handed more than $2 s and at most $3 s:"; cat "$place/limits"; failures=$((failures + 1)); }
}
handed xargs 34 85              # five sevenths of 119 s, and more than the two sevenths of the other part
handed device_benchmark 34 119  # its own two sevenths, and what the tests have left
[ "$failures" -eq 0 ] || cat "$place/printed"
exit "$failures"
