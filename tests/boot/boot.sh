#!/bin/bash
# Boot a real systemd over a throw-away overlay of this machine's own root, run check.sh inside, which installs this
# checkout as systemd/README.md says, and print its log.  No image is built and nothing outside is changed.
#   boot.sh PYTHON_PREFIX SITE_PACKAGES MODEL       exit 77: this machine cannot do it, the reason is the last line
set -euo pipefail
prefix=$1 packages=$2 model=$3
here=$(dirname "$(readlink -f "$0")")
source=$(dirname "$(dirname "$here")")

cannot() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || cannot "needs root"
for tool in systemd-nspawn systemd-sysusers systemd-tmpfiles; do
    command -v "$tool" >/dev/null || cannot "needs $tool (apt-get install systemd systemd-container)"
done

work=$(mktemp -d /mnt/tttdd-boot.XXXXXX)
finish() { umount -q "$work/root" || true; umount -q "$work" || true; rmdir "$work"; }
trap finish EXIT
mount -t tmpfs tttdd-boot "$work" || cannot "needs the right to mount"
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" || cannot "needs overlayfs"

root=$work/root units=$work/root/etc/systemd/system
cp -r "$model" "$root/opt/model" && chmod -R a+rX "$root/opt/model"
install -D "$here/check.sh" "$root/opt/check.sh"
mkdir -p "$units/tttdd.service.d"
cat >"$units/tttdd.service.d/test.conf" <<UNIT
[Service]
WatchdogSec=3
RestartSec=0
Environment=LD_LIBRARY_PATH=/opt/python/lib
UNIT
cat >"$units/tttdd-check.service" <<UNIT
[Unit]
After=basic.target
[Service]
Type=oneshot
TimeoutStartSec=60
StandardOutput=file:/var/log/tttdd-check.log
StandardError=inherit
ExecStart=/opt/check.sh
ExecStopPost=/bin/systemctl poweroff --force
UNIT
printf '[Unit]\nRequires=basic.target tttdd-check.service\n' >"$units/tttdd-check.target"

timeout -k 5 90 systemd-nspawn --quiet -D "$root" --boot --register=no --keep-unit --private-network --console=pipe \
    --bind-ro="$prefix:/opt/python" --bind-ro="$packages:/opt/packages" --bind-ro="$source:/opt/source" \
    systemd.unit=tttdd-check.target </dev/null >"$work/console" 2>&1 || tail -50 "$work/console"
cat "$root/var/log/tttdd-check.log"
