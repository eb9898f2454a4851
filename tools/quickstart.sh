#!/usr/bin/env bash
# tools/quickstart.sh [--data DIR] [--mode MODE] [--workers N] [--servers N] [--epochs N]
# From a fresh machine to a trained network: installs the packages, builds, writes a data set as sharded record files,
# starts a scheduler, servers and workers on this machine, trains LeNet, and evaluates the checkpoint in a new process.
#   --data DIR     folder with the four IDX files of MNIST (.gz or not); else they are fetched, else digits are drawn
#   --mode MODE    a mode of docs/reference.md, such as local, dist_sync or dist_async:bound=4 (default dist_async)
#   --workers N    default 2
#   --servers N    default 2; `local`, `device`, `ring` and `gossip` have none
#   --epochs N     default 3
# The last line of standard output is a JSON object with the result. Files are written below out/quickstart/.
set -euo pipefail
started_in=$PWD
cd "$(dirname "$0")/.."

trap 'exit 130' INT
fail() { echo "quickstart.sh: $1" >&2; exit "${2:-1}"; }

data='' mode=dist_async workers=2 servers=2 epochs=3 given=' '
while [ $# -gt 0 ]; do
  option=$1
  case $option in
    --help | -h) sed -n '2,10s/^# //p' tools/quickstart.sh; exit 0 ;;
    --*=*) set -- "${option%%=*}" "${option#*=}" "${@:2}"; continue ;;
    --data | --mode | --workers | --servers | --epochs) [ $# -ge 2 ] || fail "$option needs a value" 2 ;;
    *) fail "unknown option '$option'; known: --data --mode --workers --servers --epochs --help" 2 ;;
  esac
  case $option in
    --data) [ -n "$2" ] || fail "--data is empty; leave it away to have the files fetched" 2; data=$2 ;;
    --mode) mode=$2 ;;
    --workers | --servers | --epochs)
      [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || fail "$option is '$2', expected a whole number from 1 on" 2
      given+="$option "
      printf -v "${option#--}" %d "$2" ;;
  esac
  shift 2
done
case $mode in
  local | local:* | device | device:*)
    [[ $given != *" --servers "* ]] || fail "mode '${mode%%:*}' is one process without servers; leave --servers out" 2
    [[ $given != *" --workers "* ]] || [ "$workers" -eq 1 ] ||
      fail "mode '${mode%%:*}' is one process, and --workers is $workers; leave it out, or take a mode of several workers" 2
    workers=1 servers=0 ;;
  ring | ring:* | gossip | gossip:*)
    [[ $given != *" --servers "* ]] || fail "mode '${mode%%:*}' has no servers; leave --servers out" 2
    servers=0 ;;
  dist_sync | dist_sync:* | dist_async | dist_async:* | dist_local | dist_local:*) ;;
  *) fail "unknown mode '${mode%%:*}'; known: local device dist_sync dist_async dist_local ring gossip" 2 ;;
esac
if [ -n "$data" ]; then
  data=$(cd "$started_in" && realpath -m "$data")
fi

out=$PWD/out/quickstart
bin=$PWD/build/cpu/bin
targets=(mnist draw_digits installed_programs)  # what runs here, and what `cmake --install` wants
names=(train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte)
mkdir -p "$out"

# What the four files of MNIST are once decompressed.
checksums="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte"
mirrors=(https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist)

build() {
  cmake --preset cpu >"$out/configure.log" 2>&1 || { tail -n 20 "$out/configure.log" >&2; fail "CMake could not configure the build, see $out/configure.log"; }
  cmake --build --preset cpu --target "${targets[@]}" || fail "the build failed, see above"
}

# Whether the four files, compressed or not, are in the folder given as --data.
check_data() {
  local name
  [ -d "$data" ] || fail "the folder given as --data does not exist: $data"
  for name in "${names[@]}"; do
    [ -f "$data/$name" ] || [ -f "$data/$name.gz" ] ||
      fail "$data holds neither $name nor $name.gz; --data wants the four IDX files of MNIST"
  done
}

mnist_is_in() { (cd "$1" 2>/dev/null && sha256sum --status --check <<<"$checksums") 2>/dev/null; }

fetch_data() {
  local mirror name
  mnist_is_in "$1" && return
  for mirror in "${mirrors[@]}"; do
    rm -rf "$1"
    mkdir -p "$1"
    for name in "${names[@]}"; do
      curl -fsSL --proto '=https' --connect-timeout 5 --speed-limit 1000 --speed-time 10 --max-time 120 "$mirror/$name.gz" 2>/dev/null |
        gzip -dc >"$1/$name" 2>/dev/null || continue 2
    done
    if mnist_is_in "$1"; then return; fi
    echo "what $mirror sent is not MNIST: the checksums differ"
  done
  rm -rf "$1"
  return 1
}

prepare_data() {
  local set images
  if [ -n "$data" ]; then
    idx=$data
  elif idx=$out/data/mnist; fetch_data "$idx"; then
    echo "MNIST is in $idx"
  else
    echo "MNIST could not be fetched from its public mirrors, so the network learns from digits that are drawn here."
    idx=$out/data/drawn
    [ -f "$idx/.complete" ] || { "$bin/draw_digits" --out "$idx" && touch "$idx/.complete"; } || fail "the digits could not be drawn"
  fi
  rm -rf "${out:?}/records"
  mkdir -p "$out/records"
  for set in train t10k; do
    images=$idx/$set-images-idx3-ubyte
    [ -f "$images" ] || images=$images.gz
    "$bin/im2rec" --shards $((2 * workers)) "$out/records/$set" "$images" || fail "the record files could not be written"
  done
}

# The job's last line, the result, goes to the file named $1. The last run's checkpoint is kept beside the new one.
train() {
  rm -rf "${out:?}/logs"
  if [ -e "$out/checkpoint" ]; then
    rm -rf "${out:?}/checkpoint.before"
    mv "$out/checkpoint" "$out/checkpoint.before"
  fi
  tools/launch.py -n "$workers" -s "$servers" --launcher local --log-dir "$out/logs" \
    "$bin/mnist" --kvstore "$mode" --network lenet --epochs "$epochs" --checkpoint "$out/checkpoint" \
    --train "$out/records/train.manifest" --test "$out/records/t10k.manifest" >"$1" || fail "training failed, see above and $out/logs"
}

evaluate() {
  "$bin/mnist" --network lenet --evaluate "$(result "$out/training.txt" checkpoint)" --test "$out/records/t10k.manifest" | tee "$1" ||
    fail "the checkpoint could not be evaluated"
}

# One value of the JSON object that the file $1 ends with.
result() {
  tail -n 1 "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$2" ||
    fail "the last line of $1 is not the JSON object that mnist prints"
}

[ -z "$data" ] || check_data
echo "== packages"
tools/install_dependencies.sh
echo "== build"
build
echo "== data"
prepare_data
echo "== training: $mode, $workers workers, $servers servers, $epochs epochs"
train "$out/training.txt"
echo "== the checkpoint in a new process"
evaluate "$out/evaluation.txt"
trained=$(result "$out/training.txt" test_accuracy)
evaluated=$(result "$out/evaluation.txt" test_accuracy)
[ "$trained" = "$evaluated" ] || fail "the checkpoint evaluates to $evaluated, in training it was $trained"
tail -n 1 "$out/training.txt"
