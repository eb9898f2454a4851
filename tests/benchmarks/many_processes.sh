#!/usr/bin/env bash
# tests/benchmarks/many_processes.sh [--bin DIR] [--workers N] [--servers N] --data DIR [MODE...]
# Runs one epoch of LeNet in 20 steps with many processes on this machine, in each mode, and prints a line per mode: time,
# accuracy, the most descriptors and threads that a process of the job had. Fails where a job fails, loses a worker, or
# leaves a process or shared memory behind. Without MODE: all there are.
#   --data DIR  folder with the IDX files of MNIST
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { echo "many_processes.sh: $1" >&2; exit "${2:-1}"; }
bin=build/cpu/bin workers=64 servers=8 data='' modes=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,6s/^# //p' "$0"; exit 0 ;;
    --bin | --workers | --servers | --data) [ $# -ge 2 ] || fail "$1 needs a value" 2; printf -v "${1#--}" %s "$2"; shift ;;
    -*) fail "unknown option '$1'; known: --bin --workers --servers --data --help" 2 ;;
    *) modes+=("$1") ;;
  esac
  shift
done
[ -x "$bin/mnist" ] || fail "there is no $bin/mnist; build it, or name the folder of the programs with --bin"
bin=$(cd "$bin" && pwd)
[ -n "$data" ] || fail "--data names the folder with the IDX files of MNIST" 2
# shellcheck disable=SC2054  # the commas are part of a mode
[ ${#modes[@]} -gt 0 ] || modes=(dist_async dist_sync dist_sync:backup=4 dist_async:bound=2 dist_async:bound=1..4
  dist_local:steps=4 dist_local:steps=4,averaging=elastic dist_local:steps=4,averaging=federated,fraction=0.5 ring)

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for set in train t10k; do
  images=$(ls "$data/$set"-images-idx3-ubyte*)
  "$bin/im2rec" --shards "$workers" "$out/$set" "$images" >/dev/null 2>&1 || fail "the record files could not be written"
done

# Folders in /proc of the processes that belong to us.
processes() {
  local folder
  for folder in /proc/[0-9]*; do
    case $(cat "$folder/cmdline" 2>/dev/null | tr '\0' ' ' || true) in
      "$bin/mnist "* | "$bin/paceline_server"*) echo "$folder" ;;
    esac
  done
}

# The most descriptors and threads of any process that belongs to us, while the file $1 is there.
watch_processes() {
  local most_files=0 most_threads=0 folder files threads
  while [ -e "$1" ]; do
    for folder in $(processes); do
      files=$(ls "$folder/fd" 2>/dev/null | wc -l) && threads=$(ls "$folder/task" 2>/dev/null | wc -l) || continue
      [ "$files" -le $most_files ] || most_files=$files
      [ "$threads" -le $most_threads ] || most_threads=$threads
    done
    sleep 0.5
  done
  echo "$most_files descriptors, $most_threads threads" >"$1.most"
}

for mode in "${modes[@]}"; do
  touch "$out/running"
  watch_processes "$out/running" &
  before=$(ls /dev/shm | wc -l) start=$SECONDS status=0 mode_servers=$servers
  [[ $mode != ring* ]] || mode_servers=0
  tools/launch.py -n "$workers" -s "$mode_servers" --log-dir "$out/logs" "$bin/mnist" --kvstore "$mode" --epochs 1 \
    --batch_size $(((60000 + 20 * workers - 1) / (20 * workers))) --train "$out/train.manifest" --test "$out/t10k.manifest" \
    >"$out/log" 2>&1 || status=$?
  rm "$out/running"
  wait
  [ $status -eq 0 ] || { tail -n 20 "$out/log" >&2; fail "$mode ended with exit code $status, see above"; }
  ! grep 'but lost' "$out/log" >&2 || fail "$mode lost a worker"
  left=$(($(ls /dev/shm | wc -l) - before)) running=$(processes | wc -l)
  [ $((left > 0 || running > 0)) -eq 0 ] || fail "$mode left $left files in /dev/shm, $running processes"
  echo "$mode: $((SECONDS - start)) s, $(tail -n 1 "$out/log" | python3 -c 'import json, sys; print("test accuracy", json.load(sys.stdin)["test_accuracy"])')," \
    "at most $(cat "$out/running.most")"
done
