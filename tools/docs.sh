#!/usr/bin/env bash
# tools/docs.sh [--api] [--pages]
# Builds the documentation site in build/docs: the pages of docs/ by MkDocs, and the API reference from the comments of the
# public headers by Doxygen. Installs both where they are missing. Open build/docs/index.html.
# Ends with 1, and says where, when a public name has no comment, a link leads nowhere, or mkdocs.yml leaves a page out.
#   --api    only examines the comments of the public headers
#   --pages  leaves the API reference as an earlier run has built it
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "docs.sh: $1" >&2; exit "${2:-1}"; }

api=true pages=true
for word; do
  case $word in
    --api) pages=false ;;
    --pages) api=false ;;
    --help | -h) sed -n '2,7s/^# //p' tools/docs.sh; exit 0 ;;
    *) fail "unknown option '$word'; known: --api --pages --help" 2 ;;
  esac
done
$api || $pages || fail "--api and --pages exclude each other: without both, the whole site is built" 2

readonly staged=build/docs_pages site=build/docs log=build/docs_pages.log
tools/install_dependencies.sh --docs
# Two runs in one tree would write the same files.
mkdir -p build
exec 9>build/docs.lock
flock --nonblock 9 || { echo "docs.sh: waiting for another run in this tree"; flock 9; }

failed=()
if $api; then
  rm -rf "$staged"
  python3 tools/docs/api.py "$staged" || failed+=("the comments of the public headers")
fi
if $pages; then
  [ -f "$staged/.api.tag" ] || fail "there is no API reference of an earlier run: leave --pages out"
  find "$staged" -mindepth 1 -maxdepth 1 ! -name api ! -name '.api.*' -exec rm -r {} +
  if python3 tools/docs/pages.py stage "$staged"; then
    if mkdocs build --strict --clean >"$log" 2>&1; then
      python3 tools/docs/pages.py check "$site" || failed+=("links to headings and files")
    else
      # What MkDocs takes for an error are its warnings; where it fails otherwise, it says why at the end.
      sed -i 's/\x1b\[[0-9;]*m//g' "$log"
      grep -E '^(WARNING|ERROR)' "$log" >&2 || tail -n 5 "$log" >&2
      failed+=("the pages, see what MkDocs says in $log")
    fi
  else
    failed+=("links to files, and the pages that mkdocs.yml names")
  fi
fi
if [ ${#failed[@]} -gt 0 ]; then
  printf 'docs.sh: not in order: %s\n' "${failed[@]}" >&2
  exit 1
fi
if $pages; then echo "docs: $site/index.html"; fi
