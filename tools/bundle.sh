#!/usr/bin/env bash
# tools/bundle.sh [--build DIR] [--out DIR]
# Packs what tools/gpu_check.sh runs of a CUDA build, stripped, with the shared libraries that it needs, into one folder
# that can be moved to a machine with a GPU: gpu_check.sh, and the programs as an archive that gpu_check.sh unpacks.
# The C library and NVIDIA's libraries (CUDA's runtime, cuBLAS, cuDNN, NCCL, nvJPEG) are not packed: they are that
# machine's.
#   --build DIR  the build; default build/cuda
#   --out DIR    the folder; default out/bundle. What it held is replaced.
# Every packed program is started once from an unpacked copy. The last line says the size; over 40 MB is an error.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "bundle.sh: $1" >&2; exit "${2:-1}"; }

build=$here/../build/cuda out=$PWD/out/bundle
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,10s/^# //p' "$0"; exit 0 ;;
    --build | --out)
      [ $# -ge 2 ] || fail "$1 needs a value" 2
      printf -v "${1#--}" %s "$(realpath -m "$2")"
      shift 2 ;;
    *) fail "unknown option '$1'; known: --build --out --help" 2 ;;
  esac
done

readonly most=40000000  # bytes
programs=(ops_tests ndarray_tests base_tests io_tests kvstore_tests device_benchmark train_benchmark draw_digits im2rec
          mnist paceline_server)
readonly theirs='/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|cuda|cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|nvrtc))\.so'
[ -d "$build/bin" ] || fail "$build holds no build; cmake --preset cuda && cmake --build --preset cuda"
grep -qs '^PACELINE_CUDA:BOOL=ON$' "$build/CMakeCache.txt" ||
  fail "$build is a build without CUDA kernels, which a GPU would not run; take one of the preset cuda"

type -P xz >/dev/null || fail "it packs with xz, which is not installed; tools/install_dependencies.sh --tests"

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir "$staging/packed" "$staging/packed/bin" "$staging/packed/lib"
for program in "${programs[@]}"; do
  [ -x "$build/bin/$program" ] || fail "$build/bin holds no $program; build the preset first"
  strip -o "$staging/packed/bin/$program" "$build/bin/$program"
  missing=$(ldd "$build/bin/$program" | awk '/not found/ { print $1 }')
  [ -z "$missing" ] || fail "$program needs libraries that are not here: $missing"
  ldd "$build/bin/$program" | awk '$3 ~ "^/" { print $3 }' >>"$staging/all"
done
{ sort -u "$staging/all" | grep -vE "$theirs" || true; } >"$staging/libraries"
while read -r library; do cp -L "$library" "$staging/packed/lib/"; done <"$staging/libraries"

rm -rf "$out"
mkdir -p "$out"
cp "$here/gpu_check.sh" "$here/pytorch_steps.py" "$out/"
mkdir "$staging/packed/bin/paceline_launch"
cp "$here/launch.py" "$staging/packed/bin/"
cp "$here"/paceline_launch/*.py "$staging/packed/bin/paceline_launch/"
# Every program holds the library and its kernels: with a long memory the archive holds them once.
tar -C "$staging/packed" -c bin lib | xz -T1 --lzma2=preset=4,dict=512MiB >"$out/programs.tar.xz"

mkdir "$staging/unpacked"
tar -xJf "$out/programs.tar.xz" -C "$staging/unpacked"
for program in "${programs[@]}"; do
  file=$staging/unpacked/bin/$program
  outside=$(ldd "$file" | awk '$3 ~ "^/" { print $3 }' | grep -v "^$staging/unpacked/" | grep -vE "$theirs") || true
  [ -z "$outside" ] || fail "$program takes libraries from outside the bundle: $outside"
  code=0
  env -i "$file" --help >"$staging/help" 2>&1 || code=$?
  [ "$code" -lt 126 ] || fail "$program does not start from the bundle: $(head -n 1 "$staging/help")"
done
size=$(du -sb "$out" | cut -f1)
if [ "$size" -gt "$most" ]; then
  largest=$(cd "$staging/packed" && du -ab bin lib | grep -vE '\s(bin|lib|bin/paceline_launch)$' | sort -rn | head -n 3 |
    awk '{ printf "%s%s (%d kB)", (NR > 1 ? ", " : ""), $2, $1 / 1000 }')
  fail "the bundle has $size bytes, more than $most; the largest of it unpacked: $largest"
fi
echo "$out: $((size / 1000)) kB, ${#programs[@]} programs, $(wc -l <"$staging/libraries") libraries"
