#!/bin/bash
# The first process of a machine of machines.py, until systemd takes its place: NAME, a directory for the disk, and one
# that all machines share. It has mount, pid, uts, ipc and cgroup namespaces of its own. What it writes to its disk,
# which begins as this machine's, is in memory and goes with it.
set -euo pipefail
name=$1 place=$2 shared=$3

hostname "$name"
mount -t tmpfs -o size=2G tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" "$place/root"
root=$place/root
mkdir -p "$root/shared" "$root/old"
mount --rbind "$shared" "$root/shared"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
umount "$root/sys/fs/cgroup" 2>/dev/null || true
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do cp -a "/dev/$device" "$root/dev/"; done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"
touch "$root/dev/console" "$root/dev/kmsg"
mount -t devpts devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for directory in run tmp var/log var/lib/private home root/.cache; do
  mkdir -p "$root/$directory"
  mount -t tmpfs -o mode=755 tmpfs "$root/$directory"
done
chmod 1777 "$root/tmp"
chmod 700 "$root/var/lib/private"

mount --make-rprivate /
cd "$root"
pivot_root . old
umount -l /old
[ "$(findmnt --noheadings --output FSTYPE /)" = overlay ]  # from here on nothing can reach the disk of the host

# A fresh machine: nothing of p2psgd, no service but the journal and those that are installed into it.
rm -rf /etc/p2psgd /opt/p2psgd /var/lib/p2psgd /usr/local/bin/p2psgd /etc/systemd/system
mkdir -p /etc/systemd/system /home/operator
: >/etc/fstab
echo "$name" >/etc/hostname
for unit in systemd-{udevd,udev-trigger,remount-fs,random-seed,sysctl,modules-load,sysusers,binfmt,update-utmp} \
  systemd-{tmpfiles-setup,tmpfiles-setup-dev,firstboot,machine-id-commit,logind,networkd,timesyncd,journal-flush} \
  kmod-static-nodes ifupdown-pre networking; do
  ln -s /dev/null /etc/systemd/system/$unit.service
done
for unit in systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-tmpfiles-clean.timer \
  dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
  sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount; do
  ln -s /dev/null /etc/systemd/system/$unit
done

# What p2psgd depends on is in /shared, not in the Internet.
library=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -f "$library/sitecustomize.py"
echo 'import sys; sys.path.append("/shared/packages")' >"$library/sitecustomize.py"
printf '[global]\nno-index = true\ndisable-pip-version-check = true\n' >/etc/pip.conf

# As systemd does where it is not in a container: what it mounts for a service's credentials is seen there.
mount --make-rshared /
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=basic.target --log-target=console --log-level=warning \
  >"/shared/$name.console" 2>&1 </dev/null
