#!/usr/bin/env bash
# Wrong options of the scripts end with one sentence on standard error, nothing on standard output, and a non-zero code.
set -u
tools=$(cd "$(dirname "$0")/../../tools" && pwd)
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
failures=0

# expect CODE WORDS COMMAND...
expect() {
  local code=$1 words=$2 status=0 output errors
  shift 2
  output=$("$@" 2>"$empty/errors") || status=$?
  errors=$(<"$empty/errors")
  if [ "$status" -ne "$code" ] || [ -n "$output" ] || [[ $errors != *"$words"* ]] || [ "$(wc -l <"$empty/errors")" -ne 1 ]; then
    echo "$*: exit code $status, output '$output', errors '$errors'; expected $code and '$words'"
    failures=$((failures + 1))
  fi
}

expect 2 "unknown option '--datta'; known: --data --mode --workers --servers --epochs" "$tools/quickstart.sh" --datta x
expect 2 "--epochs needs a value" "$tools/quickstart.sh" --epochs
expect 2 "--workers is 'two'" "$tools/quickstart.sh" --workers two
expect 2 "--servers is '0'" "$tools/quickstart.sh" --servers=0
expect 2 "--data is empty" "$tools/quickstart.sh" --data ""
expect 2 "unknown mode 'dist_snyc'; known: local device dist_sync" "$tools/quickstart.sh" --mode dist_snyc:backup=1
expect 2 "mode 'ring' has no servers; leave --servers out" "$tools/quickstart.sh" --mode ring --servers 2
expect 2 "mode 'local' is one process, and --workers is 3" "$tools/quickstart.sh" --workers 3 --mode local
expect 2 "mode 'device' is one process without servers" "$tools/quickstart.sh" --mode device --servers=2
expect 1 "does not exist: $empty/nothing" "$tools/quickstart.sh" --data "$empty/nothing"
expect 1 "holds neither train-images-idx3-ubyte nor" "$tools/quickstart.sh" --data "$empty"
expect 2 "unknown option '--fast'" "$tools/test.sh" --fast
expect 2 "unknown subject 'stroe'; known: engine operators training store sparse" "$tools/bench.sh" stroe
expect 2 "argument --turns: expected a number above 0, not '0'" "$tools/bench.sh" --turns=0
expect 2 "unrecognized arguments: --againts=x" "$tools/bench.sh" --againts=x
expect 2 "expected a number above 0, not 'many'" "$tools/bench.sh" --minutes many store
expect 2 "--write records this tree beside its peers" "$tools/bench.sh" --write --bin "$empty"
expect 2 "unknown option 'g++'" "$tools/install_dependencies.sh" g++
expect 2 "unknown option 'tydi'; known: format names shell python tidy --fix --help" "$tools/lint.sh" tydi
expect 2 "unknown option '--apo'; known: --api --pages --help" "$tools/docs.sh" --apo
expect 2 "--api and --pages exclude each other" "$tools/docs.sh" --api --pages
for option in --executions=10 --longest=100 --minutes=1; do
  expect 2 "leave --executions, --longest and --minutes out" "$tools/fuzz.sh" --minimise "$option"
  expect 2 "leave --executions, --longest and --minutes out" "$tools/fuzz.sh" "$option" --minimise
done

mkdir "$empty/no_gpu"
printf '#!/bin/sh\nexit 9\n' >"$empty/no_gpu/nvidia-smi"
chmod +x "$empty/no_gpu/nvidia-smi"
expect 3 "there is no NVIDIA GPU or no driver here" env PATH="$empty/no_gpu:$PATH" "$tools/gpu_check.sh" --check
expect 2 "unknown option '--chekc'; known: --check --bench --train" "$tools/gpu_check.sh" --chekc
expect 2 "--programs needs a value" "$tools/gpu_check.sh" --programs
expect 1 "$empty/nothing holds no build" "$tools/bundle.sh" --build "$empty/nothing"
mkdir -p "$empty/cpu/bin"
echo PACELINE_CUDA:BOOL=OFF >"$empty/cpu/CMakeCache.txt"
expect 1 "$empty/cpu is a build without CUDA kernels" "$tools/bundle.sh" --build "$empty/cpu"
mkdir -p "$empty/cuda/bin" "$empty/xz"
echo PACELINE_CUDA:BOOL=ON >"$empty/cuda/CMakeCache.txt"
for program in ops_tests ndarray_tests base_tests io_tests kvstore_tests device_benchmark train_benchmark draw_digits im2rec \
  mnist paceline_server; do
  cp "$(type -P true)" "$empty/cuda/bin/$program"
done
# shellcheck disable=SC2016  # the program expands its own arguments
printf '#!/bin/sh\n/usr/bin/env PATH=/usr/bin:/bin xz "$@"; [ "$1" != -T1 ] || head -c 50000000 /dev/zero\n' >"$empty/xz/xz"
chmod +x "$empty/xz/xz"
expect 1 "bytes, more than 40000000; the largest of it unpacked: " env PATH="$empty/xz:$PATH" \
  "$tools/bundle.sh" --build "$empty/cuda" --out "$empty/bundle"
expect 2 "unknown option '--size'" "$tools/bundle.sh" --size

for script in quickstart.sh test.sh install_dependencies.sh lint.sh docs.sh gpu_check.sh bundle.sh bench.sh; do
  "$tools/$script" --help | grep -q "^tools/$script" || { echo "$script --help does not say how it is used"; failures=$((failures + 1)); }
done
[ "$("$tools/install_dependencies.sh" --list | sort | uniq -d)" = "" ] || { echo "a package is listed twice"; failures=$((failures + 1)); }
exit "$failures"
