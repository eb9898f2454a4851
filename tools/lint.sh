#!/usr/bin/env bash
# tools/lint.sh [--fix] [format] [names] [shell] [python] [tidy]
# Examines the files that git knows and exits with 1 when a part finds something. Without a part: all. The tools are those
# of tools/lint_requirements.txt, from PyPI, in build/lint/venv, which the first run makes.
#   format  clang-format on C++ and CUDA
#   names   no type of C++ is defined twice, every public macro begins with PACELINE_ (tools/lint_names.py)
#   shell   shellcheck on every script for sh or bash
#   python  ruff, both its checks and its format
#   tidy    clang-tidy on the .cc files that changed since the commit in .ci/tidy_base, or whose header of the same name
#           did; needs the preset cpu, configured and built as far as the headers that protobuf generates
#   --fix   mends first what clang-format and ruff can mend by themselves
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "lint.sh: $1" >&2; exit "${2:-1}"; }

fix=false parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --fix) fix=true ;;
    --help | -h) sed -n '2,11s/^# //p' tools/lint.sh; exit 0 ;;
    format | names | shell | python | tidy) parts+=("$1") ;;
    *) fail "unknown option '$1'; known: format names shell python tidy --fix --help" 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(format names shell python tidy)

place=$PWD/build/lint
readonly place bin=$place/venv/bin requirements=tools/lint_requirements.txt

make_environment() {
  ! cmp -s "$requirements" "$place/venv/made_for" || return 0
  mkdir -p "$place"
  rm -rf "$place/venv"
  python3 -m venv "$place/venv" >"$place/venv.log" 2>&1 ||
    fail "python3 makes no virtual environment, see $place/venv.log; tools/install_dependencies.sh --lint may help"
  "$bin/pip" install --quiet --disable-pip-version-check -r "$requirements" >"$place/venv.log" 2>&1 ||
    { tail -n 5 "$place/venv.log" >&2; fail "pip cannot install $requirements, see above"; }
  cp "$requirements" "$place/venv/made_for"
}

# Of the files that git knows, those that there are, and that match a pattern: into the array `files`.
find_files() {
  local all=() file
  files=()
  git ls-files -z -- "$@" >"$place/known" || fail "git does not list the files of this tree"
  mapfile -d '' all <"$place/known"
  for file in "${all[@]}"; do [ ! -f "$file" ] || files+=("$file"); done
}

results=() failed=false
# result NAME WHAT FINDINGS STATUS: a line of the summary. A tool that fails without a finding has failed itself.
result() {
  if [ "$3" -gt 0 ]; then
    results+=("lint: $1: $2, $3 findings")
  elif [ "$4" -ne 0 ]; then
    results+=("lint: $1: failed with exit code $4, see above")
  else
    results+=("lint: $1: $2, no findings")
    return
  fi
  failed=true
}

run_format() {
  local status=0
  find_files '*.h' '*.cc' '*.cu' '*.cuh'
  ! $fix || printf '%s\0' "${files[@]}" | xargs -0 "$bin/clang-format" -i
  printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P "$(nproc)" "$bin/clang-format" --dry-run -Werror \
    >"$place/format.log" 2>&1 || status=$?
  sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error: .*/\1: not formatted/p' "$place/format.log" | sort -u >"$place/findings"
  cat "$place/findings"
  [ "$status" -eq 0 ] || [ -s "$place/findings" ] || cat "$place/format.log"
  result clang-format "${#files[@]} files" "$(wc -l <"$place/findings")" "$status"
}

run_names() {
  local status=0
  find_files '*.h' '*.cc' '*.cu' '*.cuh'
  python3 tools/lint_names.py "${files[@]}" | tee "$place/findings" || status=$?
  result "names of types" "${#files[@]} files" "$(wc -l <"$place/findings")" "$status"
}

run_shell() {
  local status=0 scripts=() file line
  find_files
  for file in "${files[@]}"; do
    line=''
    # The last line of a file may end without a newline, which `read` takes for a failure.
    IFS= read -r line <"$file" 2>/dev/null || true
    if [[ $file == *.sh || $line =~ ^#!.*[/\ ](ba)?sh( |$) ]]; then scripts+=("$file"); fi
  done
  "$bin/shellcheck" -f gcc "${scripts[@]}" 2>&1 | tee "$place/findings" || status=$?
  result shellcheck "${#scripts[@]} files" "$(grep -cE '^[^ ]+:[0-9]+:[0-9]+: ' "$place/findings" || true)" "$status"
}

run_python() {
  local status=0
  find_files '*.py'
  if $fix; then
    "$bin/ruff" check --quiet --fix --force-exclude --exit-zero "${files[@]}" >/dev/null
    "$bin/ruff" format --quiet --force-exclude "${files[@]}"
  fi
  "$bin/ruff" check --quiet --output-format concise --force-exclude "${files[@]}" >"$place/findings" 2>&1 || status=$?
  "$bin/ruff" format --check --output-format concise --force-exclude "${files[@]}" >>"$place/findings" 2>&1 || status=$?
  [ "$status" -eq 0 ] || cat "$place/findings"
  result ruff "${#files[@]} files" "$(grep -cE '^[^ ]+:[0-9]+:[0-9]+: ' "$place/findings" || true)" "$status"
}

# The .cc files that changed since the base, and those whose header did: same module, same name.
changed_sources() {
  local file name
  git diff --name-only --no-renames --diff-filter=d "$1" -- '*.cc' '*.h' | while IFS= read -r file; do
    name=${file##*/}
    git ls-files -- "${file%%/*}/**/${name%.*}.cc" "${file%%/*}/${name%.*}.cc"
  done | sort -u
}

# What clang-tidy says about one file and the header of its name, in a log of the file's own.
tidy_file() {
  local log=$place/tidy/${1//\//.} name=${1##*/} status=0
  "$bin/clang-tidy" --quiet -p "$place" --header-filter="/${name%.*}\\.h\$" "$1" >"$log" 2>"$log.errors" || status=$?
  [ "$status" -eq 0 ] || grep -q ': error: ' "$log" ||
    echo "$PWD/$1:1:1: error: clang-tidy ended with exit code $status: $(tail -n 1 "$log.errors")" >>"$log"
}
export -f tidy_file
export place bin

run_tidy() {
  local base sources known
  base=$(grep -xE '[0-9a-f]{7,40}' .ci/tidy_base) || { tidy_failed ".ci/tidy_base names no commit"; return; }
  git cat-file -e "$base^{commit}" 2>/dev/null ||
    { tidy_failed "this clone does not hold the commit of .ci/tidy_base; fetch it: git fetch --depth 1 origin $base"; return; }
  changed_sources "$base" >"$place/changed" || { tidy_failed "git does not tell what has changed since $base"; return; }
  mapfile -t sources <"$place/changed"
  known=()
  if [ ${#sources[@]} -gt 0 ]; then
    [ -f build/cpu/compile_commands.json ] ||
      { tidy_failed "build/cpu is not configured; run: cmake --preset cpu && cmake --build --preset cpu"; return; }
    python3 tools/lint_compile_commands.py build/cpu/compile_commands.json "$place" "${sources[@]}" >"$place/commands" ||
      { tidy_failed "build/cpu/compile_commands.json cannot be read; run: cmake --preset cpu"; return; }
    mapfile -t known <"$place/commands"
  fi
  rm -rf "$place/tidy"
  mkdir -p "$place/tidy"
  : >"$place/findings"
  if [ ${#known[@]} -gt 0 ]; then
    # shellcheck disable=SC2016  # the other bash expands its own argument
    printf '%s\0' "${known[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'tidy_file "$1"' tidy_file
    find "$place/tidy" -type f ! -name '*.errors' -exec cat {} + | sed "s|^$PWD/||" | tee "$place/findings"
  fi
  ! grep -q "\.pb\.h' file not found" "$place/findings" ||
    echo "lint.sh: headers that protobuf generates are missing; run: cmake --build --preset cpu" >&2
  result clang-tidy "${#known[@]} files changed since ${base:0:7}, $((${#sources[@]} - ${#known[@]})) others not in build/cpu" \
    "$(grep -E '^[^ ]+:[0-9]+:[0-9]+: (warning|error): ' "$place/findings" | sort -u | wc -l)" 0
}
tidy_failed() {
  results+=("lint: clang-tidy: not run: $1")
  failed=true
}

make_environment
for part in "${parts[@]}"; do
  case $part in
    format) run_format ;;
    names) run_names ;;
    shell) run_shell ;;
    python) run_python ;;
    tidy) run_tidy ;;
  esac
done
printf '%s\n' "${results[@]}"
! $failed
