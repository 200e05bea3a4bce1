#!/bin/bash
# Runs inside the booted systemd: one line "name: what was seen" for each fact that tests/test_systemd.py asserts.
exec 2>&1
say() { echo "$1: ${*:2}"; }
property() { systemctl show tttdd.service --value -p "$1"; }
mode() { stat -c '%a %U %G' "$1"; }
now() { date +%s%3N; }
restarted() { [ "$(property NRestarts)" = "$1" ] && [ "$(property ActiveState)" = active ]; }
until_restarted() { for _ in $(seq 80); do restarted "$1" && return; sleep 0.1; done; }
until_said() { for _ in $(seq 100); do journalctl -u tttdd -o cat --no-pager | grep -qE "$1" && return; sleep 0.3; done; }
client() { /opt/tttdd/bin/python -m tttctl "$@"; }
nobody() { runuser -u nobody -- /opt/tttdd/bin/python -m tttctl status >/dev/null 2>&1; }
give_up() { echo "gave up: $1"; journalctl -u tttdd -o cat --no-pager; exit 1; }

# What `python3 -m venv /opt/tttdd && /opt/tttdd/bin/pip install ...` leaves, made of what is installed already.
export LD_LIBRARY_PATH=/opt/python/lib
/opt/python/bin/python3 -m venv --without-pip /opt/tttdd
printf '/opt/source\n/opt/packages\n' >"$(echo /opt/tttdd/lib/python3*/site-packages)/tttdd.pth"

# What systemd/README.md says to type, to the letter, but for the line above; then the tiny model.
typed() { sed -n '/^```shell$/,/^```$/p' /opt/source/systemd/README.md | grep -v '^```'; }
cd /opt/source || exit 1
while read -r line; do eval "$line" || say install_failed "$line"; done < <(typed | grep -v '^python3 -m venv\|^systemctl')
sed -i 's|^package = "llm-.*|path = "/opt/model"|' /etc/tttdd/tttdd.toml
systemctl daemon-reload

say verify "$(systemd-analyze --man=no verify tttdd.service tttdd.socket 2>&1)"
systemctl start tttdd.socket
say idle "$(property ActiveState)"
say socket "$(mode /run/tttdd/tttdd.sock)"

begun=$(now)
answer=$(client status --json)
say first_answer_ms $(($(now) - begun))
[ "$(property ActiveState)" = active ] || give_up "the service did not start: $answer"
for _ in $(seq 40); do client status --json | grep -q '"starting"' || break; sleep 0.2; done
say status "$(client status --json | tr '\n' ' ')"
client submit erdos_min_overlap --steps 1 --groups 1 --rollouts 3 --name r >/dev/null
say started "$(property ActiveState) $(property User)"
say state "$(mode /var/lib/tttdd)"
say cache "$(mode /var/cache/tttdd)"
nobody; say stranger $?
usermod -aG tttdd nobody
nobody; say member $?

until_said 'run r: (finished|failed)' # longer than WatchdogSec
say judged "$(client verify r --json | tr '\n' ' ')"
say run "$(client status r --json | tr '\n' ' ')"
say beating "$(property NRestarts) $(property ActiveState)"
kill -STOP "$(property MainPID)"
until_restarted 1
say hung "$(property NRestarts) $(journalctl -u tttdd -o cat --no-pager | grep -o 'Watchdog timeout' | head -1)"
kill -KILL "$(property MainPID)"
until_restarted 2
client status >/dev/null
say killed "$(property NRestarts) $?"

processes=$(systemd-cgls --no-pager -l -u tttdd.service | grep -oE '[├└]─ *[0-9]+' | grep -oE '[0-9]+' | tr '\n' ' ')
say processes "$processes"
begun=$(now)
systemctl stop tttdd.service
say stop_ms $(($(now) - begun))
say stopped "$(property ActiveState) $(property Result) $(property ExecMainStatus)"
for pid in $processes; do [ ! -e "/proc/$pid" ] || say left "$pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
say socket_stays "$(mode /run/tttdd/tttdd.sock)"

cp /etc/tttdd/tttdd.toml /run/good.toml
echo 'parralel = 2' >>/etc/tttdd/tttdd.toml
systemctl start tttdd.service
say refused "$? $(property ActiveState) $(property NRestarts) $(property ExecMainStatus)"
cp /run/good.toml /etc/tttdd/tttdd.toml
client status >/dev/null
say again "$? $(property ActiveState)"
eval "$(typed | grep '^systemctl')"
say enabled "$? $(property UnitFileState) $(property ActiveState)"
say failed "$(systemctl --failed --no-legend | tr '\n' ' ')"
say log "$(journalctl -u tttdd -o json --output-fields=PRIORITY,MESSAGE,_UID --no-pager | tr '\n' ',')"
journalctl -u tttdd -o cat --no-pager | sed 's/^/journal: /'
echo "done:"
