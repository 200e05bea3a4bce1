#!/usr/bin/env bash
# The harness of harness.py in bash, one completion after another.  Needs curl 7.76, and python3 to read and write JSON.
#
#     TTTDD_SOCKET=/run/tttdd/tttdd.sock ./harness.sh RUN
set -euo pipefail

run=$1
socket=${TTTDD_SOCKET:-/run/tttdd/tttdd.sock}
ask='{"messages": [{"role": "user", "content": "Write one line of digits from 0 to 9. The larger their sum, the better."}]}'
answer=$(mktemp)
trap 'rm "$answer"' EXIT

call() {  # PATH [OPTION...]: the answer is a file; a 503 says "ask again", which curl does by itself
  curl --silent --show-error --fail-with-body --retry 100 --retry-connrefused --output "$answer" \
    --unix-socket "$socket" "http://tttdd/v1/$@" || { cat "$answer" >&2; return 1; }
}

json() {  # PROGRAM: `it` is the answer
  python3 -c "import json, sys; it = json.load(sys.stdin); $1" < "$answer"
}

while true; do
  call "runs/$run/grid"
  read -r state step groups rollouts group rollout <<< "$(json '
place = (it["missing"] or [{"group": "none", "rollout": "none"}])[0]
print(it["state"], it["step"], it["groups"], it["rollouts"], place["group"], place["rollout"])')"
  case $state in
    finished) echo "$run is finished after $step steps"; exit 0 ;;
    failed | cancelled) echo "$run is $state" >&2; exit 1 ;;
  esac
  if [ "$group" = none ]; then sleep 1; continue; fi  # the step is trained and its release published
  call chat/completions -H "x-tttdd-run: $run" -d "$ask" || { sleep 1; continue; }
  report=$(json '
text = it["choices"][0]["message"]["content"]
print(json.dumps({
    "score": sum(int(character) for character in text if character in "0123456789"),
    "references": [it["receipt"]],
    "report_id": it["receipt"],
    "metadata": {"step": '"$step"', "group": '"$group"', "rollout": '"$rollout"',
                 "groups_per_step": '"$groups"', "rollouts_per_group": '"$rollouts"'},
}))')
  call "runs/$run/reports" -d "$report" || sleep 1  # a 409: the run has gone on; the grid says what is next
done
