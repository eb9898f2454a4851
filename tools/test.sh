#!/usr/bin/env bash
# tools/test.sh [OPTION...] [NAME...]
# Installs what is missing, builds the preset `cpu` and runs every test that needs no GPU; prints what each part took.
# With NAMEs it builds and runs only those tests: a suite (kvstore), a part or pattern of a test's name (Gossip, 'nn.*'),
# or a file or folder that holds tests (tests/launch, ops/softmax).
#   --changed[=BASE]  only what the changes since BASE can break (the last commit where nothing is uncommitted)
#   --preset=P        another preset than `cpu`: debug, check, tsan, asan, emulated, clang, cuda
#   --lint            also what examines the source text (tools/lint.sh)
#   --check           also builds and runs the tests of base, engine, ndarray, ops and nn with accesses checked
#   --emulated        also builds the CUDA kernels for emulated devices and runs the tests that use them
#   --sanitizers      also builds and runs the tests under ThreadSanitizer and under Address- and UndefinedBehaviorSanitizer
#   --full            --lint --check --emulated --sanitizers, and the tests built by clang without precompiled headers
#   --repeat=N        runs the tests N times; what fails once fails
#   --load            keeps the cores busy with stress-ng meanwhile
#   --waiting         only the tests that start processes or wait for time
#   --minutes=M       starts no test after M minutes
#   --record          writes what each test costs to tests/recorded (on a quiet machine)
#   --coverage        builds the preset `coverage` and writes which test runs which file, for --changed
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "test.sh: $1" >&2; exit 2; }

presets=(cpu) names=() runner=() lint=false full=false changed=false base='' preset=cpu
for word; do
  case $word in
    --lint) lint=true ;;
    --check) presets+=(check) ;;
    --emulated) presets+=(emulated) ;;
    --sanitizers) presets+=(tsan asan) ;;
    --full) presets=(cpu check emulated tsan asan clang) lint=true full=true ;;
    --changed) changed=true ;;
    --changed=*) changed=true base=${word#*=} ;;
    --preset=*) preset=${word#*=} ;;
    --repeat=* | --minutes=*)
      [[ ${word#*=} =~ ^[0-9]*\.?[0-9]+$ && ${word#*=} =~ [1-9] ]] || fail "$word: expected a number above 0"
      runner+=("$word")
      ;;
    --load | --waiting | --record) runner+=("$word") ;;
    --coverage) preset=coverage runner+=(--coverage) ;;
    --help | -h) sed -n '2,21s/^# \{0,1\}//p' tools/test.sh; exit 0 ;;
    -*) fail "unknown option '$word'; --help lists the known ones" ;;
    *) names+=("$word") ;;
  esac
done
if [ "$preset" != cpu ]; then
  [ ${#presets[@]} -eq 1 ] || fail "--preset=$preset runs alone: leave out --check, --emulated, --sanitizers and --full"
  presets=("$preset")
fi
if $changed && [ ${#names[@]} -gt 0 ]; then fail "--changed chooses the tests itself: give no names beside it"; fi
if $changed || [ ${#names[@]} -gt 0 ]; then
  [ ${#presets[@]} -eq 1 ] || fail "chosen tests run with one preset: give --preset=P instead of --check, --emulated, ..."
fi

times=() results=() failed=()
part() {
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name"
  "$@" || status=$?
  times+=("$(printf '%6d s  %s' $((SECONDS - start)) "$name")")
  [ $status -eq 0 ] || failed+=("$name")
  return "$status"
}
# shellcheck disable=SC2329  # the trap and `part` call it
summary() {
  local status=$?
  echo "== what each part took"
  [ ${#times[@]} -eq 0 ] || printf '%s\n' "${times[@]}"
  [ ${#failed[@]} -eq 0 ] || printf 'failed: %s\n' "${failed[@]}"
  [ ${#results[@]} -eq 0 ] || printf '%s\n' "${results[@]}"
  exit "$status"
}
trap summary EXIT

# shellcheck disable=SC2329  # `part` calls it
# The last line of the runner is the preset's result.
run_tests() {
  local preset=$1 status=0
  shift
  mkdir -p "build/$preset/tests"
  python3 tests/runner "build/$preset" "${runner[@]}" "$@" 2>&1 | tee "build/$preset/tests/log" || status=$?
  results+=("$(grep -aE "^$preset: [0-9]+ passed" "build/$preset/tests/log" || echo "$preset: the tests did not come to an end")")
  return "$status"
}

# The suites that a preset runs; none: all of them.
suites_of() {
  case $1 in
    check) echo base engine ndarray ops nn ;;
    emulated) echo cuda_emulation base ndarray ndarray_with_tf32 ops ops_with_cudnn io golden nn nn_with_cudnn kvstore ;;
  esac
}

targets_of() {
  case $1 in
    cpu) echo all all_verify_interface_header_sets ;;
    check) echo {base,engine,ndarray,ops,nn}_tests ;;
    emulated) echo {cuda_emulation,base,ndarray,ops,io,golden,nn,kvstore}_tests ;;
    tsan | asan) echo unit_tests ;;
    *) echo all ;;
  esac
}

# Builds and runs the chosen tests of one preset.
run_chosen() {
  local chosen=build/$preset/tests/chosen choice=(--names "${names[@]}") targets=() arguments=()
  if $changed; then choice=(--since "$base"); fi
  mkdir -p "build/$preset/tests"
  part "$preset: configure" cmake --preset "$preset" &&
    part "$preset: choose" python3 tests/runner/changes.py "build/$preset" --write "$chosen" "${choice[@]}" || return 1
  read -ra targets <"$chosen.targets"
  mapfile -t arguments <"$chosen.names"
  if [ ${#targets[@]} -gt 0 ]; then
    part "$preset: build" cmake --build --preset "$preset" --target "${targets[@]}" || return 1
  fi
  if [ ${#arguments[@]} -gt 0 ] || [ -s "$chosen.tests" ]; then
    part "$preset: test" run_tests "$preset" --built "$chosen.targets" --from-file "$chosen.tests" "${arguments[@]}"
  else
    results+=("$preset: 0 passed, 0 failed")
  fi
}

run_preset() {
  local targets=() suites=()
  read -ra targets <<<"$(targets_of "$1")"
  read -ra suites <<<"$(suites_of "$1")"
  part "$1: configure" cmake --preset "$1" &&
    part "$1: build" cmake --build --preset "$1" --target "${targets[@]}" &&
    part "$1: test" run_tests "$1" "${suites[@]}"
}

# shellcheck disable=SC2329  # `part` calls it
# After the builds, because clang-tidy wants the headers that they make.
run_lint() {
  local status=0
  mkdir -p build/lint
  tools/lint.sh 2>&1 | tee build/lint/log || status=$?
  mapfile -t -O ${#results[@]} results < <(grep -a '^lint: ' build/lint/log)
  return "$status"
}

# Two runs in one tree would read each other's choice of tests.
mkdir -p build
exec 9>build/test.lock
flock --nonblock 9 || { echo "test.sh: waiting for another run in this tree"; flock 9; }

packages=(--tests) status=0
if $lint; then packages+=(--lint); fi
if $full; then packages+=(--full); fi
part "install packages" tools/install_dependencies.sh "${packages[@]}"
if $changed || [ ${#names[@]} -gt 0 ]; then
  run_chosen || status=1
else
  for one in "${presets[@]}"; do run_preset "$one" || status=1; done
fi
if $lint; then part "lint" run_lint || status=1; fi
exit "$status"
