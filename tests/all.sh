#!/usr/bin/env bash
# What `make test` runs: lint and types beside the wheel's build and then all tests on the installed wheel, several at a time.
#
#   BIN=.venv/bin JOBS=3 bash tests/all.sh           everything
#   BIN=.venv/bin JOBS=3 bash tests/all.sh wheel     no lint and no types
#   ... bash tests/all.sh wheel tests/lab -x         more words are for pytest
#
# The wheel is built from the sdist and installed in a venv of its own, which sees the packages of the development venv; the tests run from an
# empty folder. So what is tested is what a user gets.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(cd "$root" && cd "$BIN" && pwd)
# Tests write and remove 30,000 files: in memory, for a disk takes up to minutes for that. It needs room, and must run programs.
place=/dev/shm
if ! [ -w $place ] || grep -q " $place .*noexec" /proc/mounts || [ "$(df --output=avail -B1G $place | tail -1)" -lt 6 ]; then
    place=${TMPDIR:-/tmp}
fi
work=$(mktemp -d -p "$place" parl-like-tests-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$root"
checks=
if [ "${1:-}" = wheel ]; then shift; else
    ("$bin/ruff" check . && "$bin/mypy") >"$work/checks" 2>&1 && echo "lint and types: nothing found" &
    checks=$!
fi
# pytest writes tests down again with what their assertions say: once here, for all processes that read them.
collected=$bin/../.collected
collecting=
if [ ! -e "$collected" ] || [ -n "$(find tests -name '*.py' -newer "$collected")" ]; then
    ("$bin/python" -m pytest -q -p no:cacheprovider --collect-only && touch "$collected") >"$work/collected" 2>&1 &
    collecting=$!
fi

"$bin/python" -m build --no-isolation --sdist --outdir "$work" . >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
tar -xzf "$work"/parl_like-*.tar.gz -C "$work"
cd "$work"/parl_like-*/
# What the installation compiled is newer than its sources, and taken as it is; all sources are there all the same.
sources() { (cd "$1" && find parl_like algorithms models envs robots -name '*.pyx' -o -name '*.pxd' -o -name '*.cpp' -o -name '*.h' | sort); }
diff <(sources "$root") <(sources .) || { echo "the sdist has other compiled sources than the checkout"; exit 1; }
mkdir -p build
cp -a "$root/build/cython" build/ 2>/dev/null || true
read -r lib suffix < <("$bin/python" -c 'import sys, sysconfig as s
print(f"build/lib.{s.get_platform()}-{sys.implementation.cache_tag}", s.get_config_var("EXT_SUFFIX"))')
(cd "$root" && find parl_like algorithms models envs robots -name "*$suffix") | while read -r made; do
    [ -e "${made%"$suffix"}.pyx" ] || [ "$made" = "parl_like/_cyutility$suffix" ] || continue
    mkdir -p "$lib/parl_like/$(dirname "${made#parl_like/}")"
    cp -p "$root/$made" "$lib/parl_like/${made#parl_like/}"
done
"$bin/python" -m build --no-isolation --wheel --outdir "$work" . >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
"$bin/python" -m venv --without-pip "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
packages=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$bin/python" -m zipfile -e "$work"/parl_like-*.whl "$site"
"$bin/python" -m compileall -q "$site/parl_like"
echo "$packages" >"$site/development.pth"  # dependencies; searched after what the wheel brought, and .pth files in it are not read
mkdir "$work/empty"
cd "$work/empty"
"$work/venv/bin/python" - <<PY
import parl_like, pathlib
assert pathlib.Path(parl_like.__file__).is_relative_to("$site"), parl_like.__file__
PY
if [ -n "$collecting" ]; then wait "$collecting" || { tail -20 "$work/collected"; exit 1; }; fi
tests=("$root/tests")
for word in "$@"; do [ -e "$root/${word%%::*}" ] && { tests=(); break; }; done
for word in "$@"; do if [ -e "$root/${word%%::*}" ]; then tests+=("$root/$word"); else tests+=("$word"); fi; done
failed=0
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" --rootdir "$root" -o pythonpath=tests/fakes \
    --basetemp "$work/tests" \
    -n "${JOBS:-3}" --dist loadgroup "${tests[@]}" || failed=$?
if [ -n "$checks" ] && ! wait "$checks"; then cat "$work/checks"; failed=1; fi
exit "$failed"
