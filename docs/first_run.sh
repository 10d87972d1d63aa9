#!/usr/bin/env bash
# BIN=.venv/bin BESIDE=[key=value] bash docs/first_run.sh EXPERIMENT [key=value ...]: trains it, films an episode, and says where
# everything is. With BESIDE the same is trained with that setting too, on another core, and both stand in one picture.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
run_of() { "$BIN/python" -c 'import json, sys; print(json.load(sys.stdin)["run"])'; }
if [ -n "${BESIDE:-}" ]; then
    other=$(mktemp)
    trap 'rm -f "$other"' EXIT
    "$BIN/parl-like" train "$@" "$BESIDE" --json >"$other" 2>/dev/null &
fi
run=$("$BIN/parl-like" train "$@" --json | run_of)
if [ -n "${BESIDE:-}" ]; then
    echo "waiting for the same with $BESIDE, which is trained beside it ..."
    wait $!
    "$BIN/parl-like" plot "$run" "$(run_of <"$other")" --out "$run/plots/learning_curve.png" >/dev/null
fi
film=$("$BIN/parl-like" play "$run" --json | "$BIN/python" -c 'import json, sys; print(json.load(sys.stdin)[0]["path"])')
cat <<END

learning curve  $run/plots/learning_curve.png
an episode      $film
results         $run/result.json
the command     $BIN/parl-like list     (after \`. $BIN/activate\`, or with $PWD/$BIN on PATH: parl-like list)
again           $BIN/parl-like train $1 seed=1;  $BIN/parl-like play $run;  $BIN/parl-like eval $run
END
