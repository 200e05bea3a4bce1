#!/usr/bin/env bash
# The harness of harness.py in bash, one completion after another.  Needs curl, and python3 to read and write JSON.
#
#     TTTDD_SOCKET=/run/tttdd/tttdd.sock ./harness.sh RUN
set -euo pipefail

run=$1
socket=${TTTDD_SOCKET:-/run/tttdd/tttdd.sock}
ask='{"messages": [{"role": "user", "content": "Write one line of digits from 0 to 9. The larger their sum, the better."}],
      "max_tokens": 64}'

call() {  # PATH [OPTION...]; a 503 says "ask again", which curl does by itself
  curl --silent --show-error --fail --retry 100 --retry-connrefused --unix-socket "$socket" "http://tttdd/v1/$@"
}

json() {  # PROGRAM: `it` is what stdin holds
  python3 -c "import json, sys; it = json.load(sys.stdin); $1"
}

while true; do
  grid=$(call "runs/$run/grid")
  read -r state step groups rollouts group rollout <<< "$(json '
place = (it["missing"] or [{"group": "none", "rollout": "none"}])[0]
print(it["state"], it["step"], it["groups"], it["rollouts"], place["group"], place["rollout"])' <<< "$grid")"
  case $state in
    finished) echo "$run is finished after $step steps"; exit 0 ;;
    failed | cancelled) echo "$run is $state" >&2; exit 1 ;;
  esac
  if [ "$group" = none ]; then sleep 1; continue; fi  # the step is trained and its release published
  completion=$(call chat/completions -H "x-tttdd-run: $run" -d "$ask") || { sleep 1; continue; }
  report=$(json '
answer = it["choices"][0]["message"]["content"]
print(json.dumps({
    "score": sum(int(character) for character in answer if character in "0123456789"),
    "references": [it["receipt"]],
    "report_id": it["receipt"],
    "metadata": {"step": '"$step"', "group": '"$group"', "rollout": '"$rollout"',
                 "groups_per_step": '"$groups"', "rollouts_per_group": '"$rollouts"'},
}))' <<< "$completion")
  call "runs/$run/reports" -d "$report" > /dev/null || sleep 1  # a 409: the run has gone on; the grid says what is next
done
