#!/usr/bin/env bash
# tools/gpu_check.sh [--check] [--bench] [--train] [--dist] [--peers] [--programs DIR] [--out DIR]
# What the CUDA build does on the first GPU of this machine, as one table, within eight minutes. Without a part: all.
#   --check         operators, arrays and optimizers against the CPU, each test in a process of its own, so that one
#                   that breaks the device takes no other with it; then compute-sanitizer (memcheck, racecheck) on some
#   --bench         bandwidth and rate of copies, products and the kernels that training spends its time in; images
#                   decoded in a second
#   --train         training steps of whole networks, and LeNet from drawn digits to its accuracy
#   --dist          LeNet by dist_sync and dist_async, two workers that share the GPU and two servers on the CPU
#   --peers         ResNet-50 (bfloat16, batch 256) and the character transformer beside PyTorch, where it is installed
#   --programs DIR  where the programs are: build/cuda/bin, or what tools/bundle.sh packed beside this script
#   --out DIR       the table (table.txt) and the logs of what ran; default out/gpu_check
# The parts share the time (GPU_CHECK_SECONDS, 470); one that ends early leaves the rest of its own to those behind it.
# Exits with 0 when all that ran is right, 1 when something is not, 3 without a GPU or its driver.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
started_in=$PWD
fail() { echo "gpu_check.sh: $1" >&2; exit "${2:-1}"; }

parts='' programs='' out=$started_in/out/gpu_check
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,15s/^# //p' "$0"; exit 0 ;;
    --check | --bench | --train | --dist | --peers) parts+=" ${1#--}"; shift ;;
    --programs | --out)
      [ $# -ge 2 ] || fail "$1 needs a value" 2
      printf -v "${1#--}" %s "$(realpath -m "$2")"
      shift 2 ;;
    *) fail "unknown option '$1'; known: --check --bench --train --dist --peers --programs --out --help" 2 ;;
  esac
done
parts=${parts:- check bench train dist peers}

gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || fail "there is no NVIDIA GPU or no driver here (nvidia-smi names none); nothing was run" 3
mkdir -p "$out" || fail "the folder for the results cannot be written: $out"
if [ -z "$programs" ] && [ -f "$here/programs.tar.xz" ]; then
  tar -xJf "$here/programs.tar.xz" -C "$out" || fail "$here/programs.tar.xz cannot be unpacked into $out"
  programs=$out/bin
fi
programs=${programs:-$here/../build/cuda/bin}
[ -x "$programs/ops_tests" ] || fail "$programs holds no ops_tests; build the preset cuda, or name the folder by --programs"
# Where CUDA and, as often, a Python package brings cuDNN.
cudnn=$(python3 -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0])' 2>/dev/null) || cudnn=''
readonly python_path=${LD_LIBRARY_PATH:-}  # PyTorch brings its own
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib ${cudnn:+"$cudnn/lib"}; do
  [ ! -d "$folder" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done

readonly all_seconds=${GPU_CHECK_SECONDS:-470}
declare -rA shares=([check]=5 [bench]=2 [train]=2 [dist]=1 [peers]=2)  # of what time is left, among the parts to come
limit=$all_seconds  # when the part that runs is to end
table=$out/table.txt
broken=0
rm -f "$out"/*.log
row() { printf '%-46s %-8s %6s  %s\n' "$1" "$2" "$3" "${4:-}" | tee -a "$table"; [ "$2" != failed ] || broken=1; }
seconds_left() { echo $((limit - SECONDS)); }

# measure NAME SECONDS COMMAND...: runs it, its output in $log; 0 if it ended well and in time, else the row is written,
# as $otherwise.
otherwise=failed
measure() {
  local name=$1 most=$2 before=$SECONDS code=0
  log=$out/${name//[^A-Za-z0-9_.-]/_}.log
  shift 2
  [ "$(seconds_left)" -ge 5 ] || { row "$name" "not run" 0 "no time left"; return 1; }
  timeout -k 5 "$((most < $(seconds_left) ? most : $(seconds_left)))" "$@" >"$log" 2>&1 || code=$?
  took=$((SECONDS - before))
  case $code in
    0) return 0 ;;
    124 | 137) row "$name" "$otherwise" "$took" "did not end in time; see $log" ;;
    *) row "$name" "$otherwise" "$took" "exit code $code: $(grep -m 1 -iE 'error|failure|\[ *failed' "$log" | cut -c1-110)" ;;
  esac
  return 1
}

# One test in a process of its own; a line "result test reason" for the summary.
# shellcheck disable=SC2329  # `check` calls it from another bash
one_test() {
  local log=$out/$1.${2//\//.}.log code=0
  timeout --foreground -k 5 60 "$programs/$1" --gtest_filter="$2" >"$log" 2>&1 || code=$?
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    echo "failed $2 no end within 60 s"
  elif [ "$code" -ne 0 ]; then
    echo "failed $2 $(grep -m 1 -E -A 8 'Failure|rror:|terminate' "$log" | tr '\n' ' ' | cut -c1-300)"
  elif grep -q 'SKIPPED' "$log"; then
    echo "skipped $2 $(grep -A 1 -m 1 'Skipped' "$log" | tail -n 1)"
  else
    echo "passed $2"
    rm -f "$log"
  fi
}
export -f one_test
export out programs

tests_of() { timeout 20 "$programs/$1" --gtest_filter="$2" --gtest_list_tests | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }'; }

check() {  # NAME PROGRAM FILTER
  local name=$1 program=$2 before=$SECONDS results=$out/$2.results jobs ended
  [ -x "$programs/$program" ] || { row "$name" "not run" 0 "$program is not there"; return; }
  [ "$(seconds_left)" -ge 10 ] || { row "$name" "not run" 0 "no time left"; return; }
  jobs=$(($(nproc) / 2 > 0 ? $(nproc) / 2 : 1))
  tests_of "$program" "$3" | PACELINE_NUM_THREADS=2 timeout -k 5 "$(seconds_left)" xargs -r -P "$((jobs < 6 ? jobs : 6))" \
    -I{} bash -c 'one_test "$@"' one_test "$program" {} >"$results"
  ended=$?
  local count failed skipped
  count=$(tests_of "$program" "$3" | wc -l)
  failed=$(grep -c '^failed' "$results")
  skipped=$(grep -c '^skipped' "$results")
  local passed
  passed=$(grep -c '^passed' "$results")
  local result=failed counts="$passed of $count right, $failed wrong, $skipped skipped"
  if [ "$count" -gt 0 ] && [ "$skipped" -eq "$count" ]; then
    result="not run" counts="$(sed -n 's/^skipped [^ ]* //p' "$results" | head -n 1)"
  elif [ "$failed" -eq 0 ] && [ $((passed + skipped)) -eq "$count" ] && [ "$passed" -gt 0 ]; then
    result=ok
  elif [ "$failed" -eq 0 ] && [ "$ended" -eq 124 ]; then
    result="cut off" counts="$passed of $count right, $skipped skipped, for the others was no time"
  fi
  row "$name" "$result" $((SECONDS - before)) "$counts"
  grep '^failed' "$results" | while read -r _ test reason; do printf '  %-44s failed          %s\n' "$test" "$reason"; done | tee -a "$table"
}

sanitize() {  # TOOL FILTER
  local name="compute-sanitizer $1"
  command -v compute-sanitizer >/dev/null || { row "$name" "not run" 0 "compute-sanitizer is not on the PATH"; return; }
  measure "$name" 60 compute-sanitizer --tool "$1" --error-exitcode 9 "$programs/ops_tests" --gtest_filter="$2" || return
  row "$name" ok "$took" "$(grep -m 1 'ERROR SUMMARY\|RACECHECK SUMMARY' "$log" | sed 's/=* *//')"
}

run_check() {
  check "operators, against the CPU" ops_tests '*Cuda*'
  check "arrays" ndarray_tests '*cuda0*'
  check "device runtime" base_tests '*cuda*'
  check "optimizers, against the CPU" kvstore_tests 'Optimizer.*Cuda*:Multipliers.*Cuda*'
  PACELINE_CUDA_DEVICES=4 check "stores, four logical devices" kvstore_tests 'Devices.*OnCuda*'
  check "stores, several GPUs, NCCL and copies" kvstore_tests 'Nccl.*'
  check "large keys between GPU and servers" kvstore_tests '*DeviceParts.*/cuda'
  check "JPEGs by nvJPEG, against the CPU" io_tests 'DeviceDecoder*:*/DeviceDecoder*'
  check "captured functions, as graphs" ndarray_tests 'CapturedOnCuda.*'
  check "a broken device" ndarray_tests 'DeviceFault.*'
  local small='Catalogue/Operators.CudaEqualsCpu'
  local halves='Attention.CudaHalves*'
  sanitize memcheck "$small/softmax:$small/sum:$small/take:$small/convolution:$small/sort:$small/triangular_solve:$halves"
  sanitize racecheck "$small/softmax:$small/sum:$small/standardize:$small/batch_norm:$small/attention:$halves"
}

run_bench() {
  [ -x "$programs/device_benchmark" ] || { row "device_benchmark" "not run" 0 "it is not there"; return; }
  measure "device_benchmark" 120 "$programs/device_benchmark" --device cuda:0 &&
    row "device_benchmark" ok "$took"
  [ ! -f "$log" ] || sed 's/^/  /' "$log" | tee -a "$table"  # of one that did not end, what it had measured
}

# The figures of a train_benchmark or of PyTorch's steps.
steps_of() {
  local idle
  idle=$(value_of device_idle)
  [ "$idle" = None ] || idle=$(printf %.4f "$idle")
  echo "$(value_of samples_per_second | cut -d. -f1) examples/s$([ "$idle" = None ] || echo ", nothing on the GPU $idle of the time")"
}

# has_result NAME: whether the last line is a JSON object; else the row is written, as $otherwise.
has_result() {
  tail -n 1 "$log" | python3 -c 'import json, sys; sys.exit(not isinstance(json.load(sys.stdin), dict))' 2>/dev/null && return
  row "$1" "$otherwise" "$took" "no result; the last line is '$(tail -n 1 "$log" | tr -d '[:cntrl:]' | cut -c1-110)'"
  return 1
}

# learned NAME LEAST: the row of a program that trained, by the accuracy that it ends with.
learned() {
  local accuracy result=failed
  has_result "$1" || return
  accuracy=$(value_of test_accuracy)
  awk "BEGIN { exit !(\"$accuracy\" + 0 >= $2) }" && result=ok
  row "$1" "$result" "$took" "accuracy $accuracy of at least $2, $(value_of images_per_second | cut -d. -f1) images/s"
}

value_of() { tail -n 1 "$log" | python3 -c 'import json, sys; print(json.load(sys.stdin).get(sys.argv[1]))' "$1"; }

# Records of digits that are drawn here, once.
draw_digits() {
  [ ! -f "$out/digits/t10k.manifest" ] || return 0
  measure "drawn digits" 60 "$programs/draw_digits" --out "$out/digits" || return
  for set in train t10k; do
    measure "records of $set" 60 "$programs/im2rec" "$out/digits/$set" "$out/digits/$set-images-idx3-ubyte.gz" || return
  done
}

run_train() {
  local network batch
  for network in lenet:256 resnet20:256 resnet50:64 transformer:64 lstm:64; do
    batch=${network#*:} network=${network%:*}
    measure "train $network, batch $batch" 40 "$programs/train_benchmark" --network "$network" --batch_size "$batch" \
      --device cuda:0 --seconds 4 || continue
    has_result "train $network, batch $batch" || continue
    row "train $network, batch $batch" ok "$took" "$(steps_of)"
  done
  draw_digits || return
  measure "lenet learns drawn digits" 90 "$programs/mnist" --device cuda:0 --epochs 1 \
    --train "$out/digits/train.manifest" --test "$out/digits/t10k.manifest" || return
  learned "lenet learns drawn digits" 0.95
}

run_dist() {
  local launcher mode
  for launcher in "$programs/launch.py" "$here/launch.py"; do [ ! -f "$launcher" ] || break; done
  [ -f "$launcher" ] || { row "2 workers and 2 servers" "not run" 0 "launch.py is not there"; return; }
  draw_digits || return
  for mode in dist_sync dist_async; do
    measure "$mode, 2 workers and 2 servers" 90 python3 "$launcher" -n 2 -s 2 --timeout 80 --log-dir "$out/$mode" "$programs/mnist" \
      --kvstore "$mode" --device cuda:0 --epochs 1 --batch_size 32 \
      --train "$out/digits/train.manifest" --test "$out/digits/t10k.manifest" || continue
    learned "$mode, 2 workers and 2 servers" 0.9
  done
}

# peer NAME NETWORK BATCH FLAGS...: ours, and PyTorch's without and with torch.compile; the flags are both programs'.
peer() {
  local name=$1 network=$2 batch=$3 how
  shift 3
  measure "$name, ours" 40 "$programs/train_benchmark" --network "$network" --batch_size "$batch" --device cuda:0 \
    --seconds 5 "$@" && has_result "$name, ours" && row "$name, ours" ok "$took" "$(steps_of)"
  for how in '' --compile; do
    otherwise="not run" measure "$name, PyTorch $how" 110 env LD_LIBRARY_PATH="$python_path" \
      python3 "$here/pytorch_steps.py" "$network" "$batch" 5 --device cuda "$@" ${how:+"$how"} || continue
    otherwise="not run" has_result "$name, PyTorch $how" || continue
    row "$name, PyTorch $how" ok "$took" "$(steps_of), $(value_of pytorch)"
  done
}

run_peers() {
  [ -f "$here/pytorch_steps.py" ] || { row "PyTorch beside it" "not run" 0 "pytorch_steps.py is not there"; return; }
  if ! LD_LIBRARY_PATH=$python_path timeout 60 python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    row "PyTorch beside it" "not run" 0 "PyTorch with CUDA cannot be imported by python3"
    return
  fi
  peer "resnet50, bfloat16, channels last, batch 256" resnet50 256 --precision bfloat16 --channels_last
  peer "transformer, batch 64" transformer 64
}

: >"$table"
printf '%s\n%-46s %-8s %6s  %s\n' "$gpu" what result seconds '' | tee -a "$table"
rest=0
for part in $parts; do rest=$((rest + shares[$part])); done
for part in $parts; do
  limit=$((SECONDS + (all_seconds - SECONDS) * shares[$part] / rest))
  rest=$((rest - shares[$part]))
  case $part in
    check) run_check ;;
    bench) run_bench ;;
    train) run_train ;;
    dist) run_dist ;;
    peers) run_peers ;;
  esac
done
row "all" "$([ "$broken" -eq 0 ] && echo ok || echo failed)" "$SECONDS" "$table"
exit "$broken"
