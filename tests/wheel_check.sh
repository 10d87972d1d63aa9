#!/usr/bin/env bash
# Builds the sdist and from it the wheel, installs the wheel in a venv of its own, and runs its tests from an empty folder.
# The venv sees the packages of the development venv, so only parl_like itself is installed again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(cd "$root/$BIN" && pwd)
# The path of the venv's interpreter, not of what it links to: its packages are wanted.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
"$bin/python" -m build --no-isolation --sdist --outdir "$work" . >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
tar -xzf "$work"/parl_like-*.tar.gz -C "$work"
cd "$work"/parl_like-*/
"$bin/python" -m build --no-isolation --wheel --outdir "$work" . >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
"$bin/python" -m venv --without-pip "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
packages=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$bin/python" -m zipfile -e "$work"/parl_like-*.whl "$site"
echo "$packages" >"$site/development.pth"  # dependencies; searched after what the wheel brought, and .pth files in it are not read
mkdir "$work/empty"
cd "$work/empty"
"$work/venv/bin/python" - <<PY
import parl_like, pathlib
assert pathlib.Path(parl_like.__file__).is_relative_to("$site"), parl_like.__file__
PY
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" -o pythonpath= -m "not slow and not checkout" "$root/tests"
