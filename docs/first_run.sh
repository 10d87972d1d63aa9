#!/usr/bin/env bash
# BIN=.venv/bin bash docs/first_run.sh EXPERIMENT [key=value ...]: trains it, films an episode, and says where everything is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
result=$("$BIN/parl-like" train "$@" --json)
run=$("$BIN/python" -c 'import json, sys; print(json.loads(sys.argv[1])["run"])' "$result")
film=$("$BIN/parl-like" play "$run" --json | "$BIN/python" -c 'import json, sys; print(json.load(sys.stdin)[0]["path"])')
cat <<END

learning curve  $run/plots/learning_curve.png
an episode      $film
results         $run/result.json
the command     $BIN/parl-like list     (after \`. $BIN/activate\`, or with $PWD/$BIN on PATH: parl-like list)
again           $BIN/parl-like train $1 seed=1;  $BIN/parl-like play $run;  $BIN/parl-like eval $run
END
