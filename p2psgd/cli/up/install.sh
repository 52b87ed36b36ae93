# What `p2psgd up` runs on a machine, as root, in the directory into which it has unpacked its files: the same that
# docs/how-to/operations.md does by hand. It changes what differs and prints a line for each change; a second run
# changes nothing. Arguments: the trainer's name, or nothing.
set -eu
trainer=${1:-}
fail() { echo "$*" >&2; exit 1; }
command -v systemctl >/dev/null || fail "this machine has no systemd"
restart= reload= units=

# There while what has changed is not in use yet: if this script is cut short, the next one restarts the services.
pending=/etc/p2psgd/up.pending
if [ -e "$pending" ]; then systemctl daemon-reload; restart=1; fi
install -d /etc/p2psgd
: >"$pending"

put() {  # MODE FILE PLACE: whether it had to be changed
  cmp -s "$2" "$3" && return 1
  install -D -m "$1" "$2" "$3" || fail "cannot write $3"  # `set -e` does not count in a condition
}

wheel=$(ls p2psgd-*.whl)
if [ "$(cat /opt/p2psgd/installed.sha256 2>/dev/null)" != "$(sha256sum "$wheel")" ]; then
  # One without pip was cut short, or python3-venv was missing.
  [ -x /opt/p2psgd/bin/pip ] || python3 -m venv /opt/p2psgd --clear >/dev/null ||
    fail "python3 -m venv fails: apt-get install python3-venv"
  pip() { /opt/p2psgd/bin/pip --disable-pip-version-check --quiet install ${links:-} "$@"; }
  [ ! -d wheels ] || links="--no-index --find-links wheels"
  pip "./$wheel"
  pip --force-reinstall --no-deps "./$wheel"  # also over a build of the same version
  ln -sf /opt/p2psgd/bin/p2psgd /usr/local/bin/p2psgd
  sha256sum "$wheel" >/opt/p2psgd/installed.sha256
  restart=1
  echo "program"
fi
getent group p2psgd-control >/dev/null || groupadd --system --force p2psgd-control
for unit in p2psgd.service p2psgd-trainer@.service; do
  ! put 644 "$unit" "/etc/systemd/system/$unit" || units=1
done
if [ -n "$units" ]; then systemctl daemon-reload; restart=1; echo "units"; fi
if put 644 node.toml /etc/p2psgd/node.toml; then restart=1; echo "options"; fi
install -d -m 700 /etc/p2psgd/tls
for file in ca.pem node.pem node.key; do
  mode=644; [ "$file" != node.key ] || mode=600
  if put "$mode" "tls/$file" "/etc/p2psgd/tls/$file"; then restart=1 certificate=1; fi
done
[ -z "${certificate:-}" ] || echo "certificate"
if put 644 hosts.txt /etc/p2psgd/hosts.txt; then reload=1; echo "list of hosts"; fi
if [ -n "$trainer" ] && [ -f trainer.env ] && put 644 trainer.env "/etc/p2psgd/trainer-$trainer.env"; then
  restart=1; echo "trainer's options"
fi

systemctl --quiet enable p2psgd.service ${trainer:+"p2psgd-trainer@$trainer.service"}
if ! systemctl --quiet is-active p2psgd.service; then
  systemctl start p2psgd.service; echo "started"; began=1
elif [ -n "$restart" ]; then
  systemctl restart p2psgd.service; echo "restarted"; began=1
elif [ -n "$reload" ]; then
  systemctl reload p2psgd.service
fi
unit=p2psgd-trainer@$trainer.service
has_done_its_work() {
  [ "$(systemctl show -P Result "$unit")" = success ] &&
    [ "$(systemctl show -P ExecMainExitTimestampMonotonic "$unit")" != 0 ]
}
if [ -n "$trainer" ] && ! systemctl --quiet is-active "$unit" && { [ -n "${began:-}" ] || ! has_done_its_work; }; then
  systemctl start "$unit"; echo "trainer started"
fi
rm -f "$pending"
