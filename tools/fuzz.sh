#!/usr/bin/env bash
# tools/fuzz.sh [OPTION...] [NAME...]
# Installs clang where it is missing, builds the fuzzers (preset `fuzz`) and runs each of them, or those of the NAMEs.
# It prints a line for each fuzzer and ends with 1 where one has found something. tests/fuzz/README.md says what the
# fuzzers check.
#   --executions=N  inputs for each fuzzer, by default 100000
#   --longest=N     the most bytes of an input, by default 4096; short inputs run faster
#   --minutes=M     ends each fuzzer after M minutes, by default never
#   --list          prints the names
#   --replay=FILE   gives this file to the one fuzzer that is named, and prints what it finds
#   --minimise      writes the inputs that reach all that is known so far to tests/fuzz/corpus, small ones
# Inputs that reach new code are kept in build/fuzz/corpus/NAME, and the next run begins with them. An input with a
# finding goes to build/fuzz/found/NAME, and what it printed to build/fuzz/found/NAME.log.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "fuzz.sh: $1" >&2; exit 2; }

executions='' longest='' minutes='' replay='' minimise=false names=()
mapfile -t known < <(find tests/fuzz/corpus -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort)
for word; do
  case $word in
    --executions=*)
      executions=${word#*=}
      [[ $executions =~ ^[1-9][0-9]*$ ]] || fail "$word: expected a whole number above 0"
      ;;
    --longest=*)
      longest=${word#*=}
      [[ $longest =~ ^[1-9][0-9]*$ ]] || fail "$word: expected a whole number above 0"
      ;;
    --minutes=*)
      minutes=${word#*=}
      [[ $minutes =~ ^[0-9]*\.?[0-9]+$ && $minutes =~ [1-9] ]] || fail "$word: expected a number above 0"
      ;;
    --list) printf '%s\n' "${known[@]}"; exit 0 ;;
    --replay=*) replay=${word#*=}; [ -f "$replay" ] || fail "there is no file '$replay'" ;;
    --minimise) minimise=true ;;
    --help | -h) sed -n '2,15s/^# \{0,1\}//p' tools/fuzz.sh; exit 0 ;;
    -*) fail "unknown option '$word'; --help lists the known ones" ;;
    *) [ -d "tests/fuzz/corpus/$word" ] || fail "there is no fuzzer '$word'; known: ${known[*]}"; names+=("$word") ;;
  esac
done
if $minimise && [ -n "$executions$longest$minutes" ]; then
  fail "--minimise runs each known input of at most 512 bytes once; leave --executions, --longest and --minutes out"
fi
if [ -n "$replay" ] && [ ${#names[@]} -ne 1 ]; then fail "--replay takes the name of one fuzzer beside the file"; fi
[ ${#names[@]} -gt 0 ] || names=("${known[@]}")

tools/install_dependencies.sh --tests --fuzz
mkdir -p build/fuzz
cmake --preset fuzz >build/fuzz/configure.log 2>&1 || { tail -n 20 build/fuzz/configure.log >&2; fail "cannot configure"; }
echo "building ${#names[@]} fuzzers in build/fuzz"
ninja -C build/fuzz "${names[@]/%/_fuzzer}" >build/fuzz/build.log 2>&1 ||
  { grep -A5 -m3 'error:' build/fuzz/build.log >&2 || tail -n 20 build/fuzz/build.log >&2; fail "cannot build"; }

limits=(-timeout=60 -rss_limit_mb=4096 -malloc_limit_mb=1024 -max_len="${longest:-4096}")
if [ -n "$replay" ]; then exec "build/fuzz/bin/${names[0]}_fuzzer" "${limits[@]}" "$replay"; fi

found=()
for name in "${names[@]}"; do
  fuzzer=build/fuzz/bin/${name}_fuzzer grown=build/fuzz/corpus/$name committed=tests/fuzz/corpus/$name
  log=build/fuzz/found/$name.log start=$SECONDS status=0
  mkdir -p "$grown" "build/fuzz/found/$name"
  if $minimise; then
    fresh=build/fuzz/minimised/$name
    rm -rf "$fresh"
    mkdir -p "$fresh"
    "$fuzzer" "${limits[@]}" -max_len=512 -merge=1 "$fresh" "$committed" "$grown" >"$log" 2>&1 ||
      fail "cannot minimise $name, see $log"
    find "$fresh" -type f -size -2 | sort | head -n 40 | xargs -r cp -t "$committed"
    printf '%-14s %5d inputs\n' "$name" "$(find "$committed" -type f | wc -l)"
    continue
  fi
  options=(-runs="${executions:-100000}" -print_final_stats=1 -artifact_prefix="build/fuzz/found/$name/")
  [ -z "$minutes" ] || options+=(-max_total_time="$(awk -v m="$minutes" 'BEGIN { print int(60 * m + 0.999) }')")
  # Threads of others allocate meanwhile, which libFuzzer takes for leaks, and looks for them after each input.
  case $name in sequences | shm) options+=(-detect_leaks=0) ;; esac
  # Weighing inputs by how rare their features are takes longer than a job.
  case $name in sequences) options+=(-entropic=0) ;; esac
  "$fuzzer" "${limits[@]}" "${options[@]}" "$grown" "$committed" >"$log" 2>&1 || status=$?
  done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  covered=$(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1)
  printf '%-14s %8s executions, %s, %4d s: %s\n' "$name" "${done:-?}" "${covered:-cov: ?}" $((SECONDS - start)) \
    "$([ $status -eq 0 ] && echo 'nothing found' || echo 'FOUND')"
  [ $status -ne 0 ] || continue
  found+=("$name")
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  grep -aE "what\(\):|runtime error:|ERROR: " "$log" | grep -av 'deadly signal' | head -n 3 | sed 's/^ */  /'
  echo "  input: ${input:-none was written, see $log}"
  [ -z "$input" ] || echo "  again: tools/fuzz.sh --replay=$input $name"
done
[ ${#found[@]} -eq 0 ] || { echo "found something: ${found[*]}" >&2; exit 1; }
