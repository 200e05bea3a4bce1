#!/bin/bash
# Runs inside the booted systemd: one line "name: what was seen" for each fact that tests/test_systemd.py asserts.
say() { echo "$1: ${*:2}"; }
property() { systemctl show tttdd.service --value -p "$1"; }
mode() { stat -c '%a %U %G' "$1" 2>&1; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
until_true() { for _ in $(seq 100); do "$@" && return; sleep 0.1; done; echo "gave up: $*"; }
active() { [ "$(property ActiveState)" = active ]; }
restarted() { [ "$(property NRestarts)" = "$1" ] && active; }
tttctl() { /opt/tttdd/bin/python -m tttctl "$@"; }

# What `python3 -m venv /opt/tttdd && /opt/tttdd/bin/pip install ...` leaves, made of what is installed already.
/opt/python/bin/python3 -m venv --without-pip /opt/tttdd
printf '/opt/source\n/opt/packages\n' >"$(echo /opt/tttdd/lib/python3*/site-packages)/tttdd.pth"

say verify "$(systemd-analyze verify tttdd.service tttdd.socket 2>&1)"
systemctl start tttdd.socket
say idle "$(property ActiveState)"
say socket "$(mode /run/tttdd/tttdd.sock)"

begun=$(milliseconds)
say status "$(tttctl status --json 2>&1 | tr '\n' ' ')"
say first_answer_ms $(($(milliseconds) - begun))
say started "$(property ActiveState) $(property User)"
say ready "$(systemctl show tttdd.service -p StatusText)"
say state "$(mode /var/lib/tttdd)"
say cache "$(mode /var/cache/tttdd)"
say member "$(setpriv --reuid=65534 --regid=65534 --groups="$(getent group tttdd | cut -d: -f3)" /opt/tttdd/bin/python -m tttctl status >/dev/null 2>&1; echo $?)"
say stranger "$(setpriv --reuid=65534 --regid=65534 --clear-groups /opt/tttdd/bin/python -m tttctl status 2>&1 >/dev/null | tail -1; echo "${PIPESTATUS[0]}")"

sleep 3
say beating "$(property NRestarts) $(property ActiveState)"
kill -STOP "$(property MainPID)"
until_true restarted 1
say hung "$(property NRestarts) $(journalctl -u tttdd -o cat --no-pager | grep -o 'Watchdog timeout' | head -1)"
kill -KILL "$(property MainPID)"
until_true restarted 2
say killed "$(property NRestarts) $(tttctl status >/dev/null 2>&1; echo $?)"

pids=$(cat /sys/fs/cgroup/systemd/"$(property ControlGroup)"/cgroup.procs /sys/fs/cgroup/"$(property ControlGroup)"/cgroup.procs 2>/dev/null | tr '\n' ' ')
say processes "$pids"
begun=$(milliseconds)
systemctl stop tttdd.service
say stop_ms $(($(milliseconds) - begun))
say stopped "$(property ActiveState) $(property Result) $(property ExecMainStatus)"
for pid in $pids; do [ -e "/proc/$pid" ] && say left "$(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
say socket_stays "$(mode /run/tttdd/tttdd.sock)"
say again "$(tttctl status >/dev/null 2>&1; echo $?) $(property ActiveState)"
say failed "$(systemctl --failed --no-legend | tr '\n' ' ')"
journalctl -u tttdd -o cat --no-pager | sed 's/^/journal: /'
echo "done:"
