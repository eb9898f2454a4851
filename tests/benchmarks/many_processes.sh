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
  dist_local:steps=4 dist_local:steps=4,averaging=elastic dist_local:steps=4,averaging=federated,fraction=0.5 ring
  gossip:steps=4)

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for set in train t10k; do
  images=$(ls "$data/$set"-images-idx3-ubyte*)
  "$bin/im2rec" --shards "$workers" "$out/$set" "$images" >/dev/null 2>&1 || fail "the record files could not be written"
done

# While the file $1 is there: the most descriptors and threads of any process of a job. Then: how many are left.
watch_processes() {
  python3 - "$bin" "$1" <<'EOF'
import os, pathlib, sys, time

programs = tuple(os.fsencode(f"{sys.argv[1]}/{name}\0") for name in ("mnist", "paceline_server"))

def processes():
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(programs):
                yield len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))
        except OSError:
            pass  # it has just ended

files = threads = 0
running = pathlib.Path(sys.argv[2])
while running.exists():
    for some_files, some_threads in processes():
        files, threads = max(files, some_files), max(threads, some_threads)
    time.sleep(0.2)
print(f"at most {files} descriptors, {threads} threads, {len(list(processes()))} processes left")
EOF
}

files_in_memory() { find /dev/shm -mindepth 1 -maxdepth 1 | wc -l; }

for mode in "${modes[@]}"; do
  touch "$out/running"
  watch_processes "$out/running" >"$out/watched" &
  before=$(files_in_memory) start=$SECONDS status=0 mode_servers=$servers
  [[ $mode != @(ring|gossip)* ]] || mode_servers=0
  tools/launch.py -n "$workers" -s "$mode_servers" --log-dir "$out/logs" "$bin/mnist" --kvstore "$mode" --epochs 1 \
    --batch_size $(((60000 + 20 * workers - 1) / (20 * workers))) --train "$out/train.manifest" --test "$out/t10k.manifest" \
    >"$out/log" 2>&1 || status=$?
  rm "$out/running"
  wait
  [ $status -eq 0 ] || { tail -n 20 "$out/log" >&2; fail "$mode ended with exit code $status, see above"; }
  ! grep 'but lost' "$out/log" >&2 || fail "$mode lost a worker"
  grep -q ' 0 processes left' "$out/watched" || fail "$mode: $(cat "$out/watched")"
  left=$(($(files_in_memory) - before))
  [ $left -le 0 ] || fail "$mode left $left files in /dev/shm"
  echo "$mode: $((SECONDS - start)) s, $(tail -n 1 "$out/log" | python3 -c 'import json, sys; print("test accuracy", json.load(sys.stdin)["test_accuracy"])')," \
    "$(cat "$out/watched")"
done
