#!/usr/bin/env bash
# tools/install_dependencies.sh [--tests] [--lint] [--docs] [--full] [--fuzz] [--list]
# Installs the packages that building and running Paceline needs, on Debian 12 and 13 or Ubuntu 24.04. Does nothing when
# all are there; asks for sudo only when something is missing and the user is not root.
#   --tests  also what only the tests need (an ssh server for the launcher's tests, a fast linker, a source of load)
#   --lint   also what tools/lint.sh needs, which takes its tools themselves from PyPI
#   --docs   also what tools/docs.sh needs
#   --full   also what tools/test.sh --full needs (clang)
#   --fuzz   also what tools/fuzz.sh needs (clang)
#   --list   prints the packages and installs nothing
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config          # building
  libzmq3-dev cppzmq-dev                           # transport
  protobuf-compiler libprotobuf-dev                # control messages
  libssl-dev                                       # encryption of large frames, signatures for s3://
  libcurl4-openssl-dev                             # files of web servers and object stores
  libopenblas-openmp-dev                           # linear algebra
  libdnnl-dev ocl-icd-opencl-dev                   # convolutions; the second is wanted by the first one's CMake package
  libturbojpeg0-dev libjpeg-dev libpng-dev zlib1g-dev   # images
  libisal-dev                                      # checksums
  libboost-dev nlohmann-json3-dev
  libgoogle-glog-dev libgflags-dev
  libgmock-dev libbenchmark-dev                    # tests and benchmarks
  python3 openssh-client rsync                     # tools/launch.py
  curl ca-certificates                             # tools/quickstart.sh fetches MNIST
)
test_packages=(git openssh-server mold stress-ng xz-utils zstd)
lint_packages=(git python3-venv)
docs_packages=(doxygen mkdocs)
clang_packages=(clang libomp-dev)

fail() { echo "install_dependencies.sh: $1" >&2; exit 1; }

list=false
while [ $# -gt 0 ]; do
  case $1 in
    --tests) packages+=("${test_packages[@]}") ;;
    --list) list=true ;;
    --lint) packages+=("${lint_packages[@]}") ;;
    --docs) packages+=("${docs_packages[@]}") ;;
    --full | --fuzz) packages+=("${clang_packages[@]}") ;;
    --help | -h) sed -n '2,10s/^# //p' "$0"; exit 0 ;;
    *) echo "install_dependencies.sh: unknown option '$1'; known: --tests --lint --docs --full --fuzz --list --help" >&2; exit 2 ;;
  esac
  shift
done
if $list; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

{ command -v dpkg-query && command -v apt-get; } >/dev/null ||
  fail "this is not Debian or Ubuntu; install what corresponds to these packages yourself: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "these packages are missing and only root can install them: ${missing[*]}"
  as_root=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" \
    >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "'apt-get $1' failed, see above; still missing: ${missing[*]}"; }
}
echo "installing ${#missing[@]} packages: ${missing[*]}"
apt update
apt install --no-install-recommends "${missing[@]}"
