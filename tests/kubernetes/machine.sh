#!/bin/sh
# The first process of a machine of a test cluster. It has mount and process namespaces of its own,
# so what it changes here the system around it does not see, and all that the machine runs ends with
# it. It ends with its input.
#
# machine.sh FOLDER CGROUP
#   FOLDER  for the machine's files
#   CGROUP  the control group of its pods, relative to the root of each hierarchy
set -eu
folder=$1
cgroup=$2

# As on a machine that systemd has started: the kubelet's mounts reach its containers.
mount --make-rshared /
mount -t tmpfs -o mode=755 run /run
for path in /etc /var/lib /var/log; do
    mkdir -p "$folder/new$path" "$folder/work$path"
    mount -t overlay -o "lowerdir=$path,upperdir=$folder/new$path,workdir=$folder/work$path" overlay "$path"
done
# containerd's snapshots are overlays by themselves, which do not lie on another one.
for path in /var/lib/containerd /var/lib/kubelet; do
    mkdir -p "$path" "$folder/own$path"
    mount --bind "$folder/own$path" "$path"
done

# The kubelet writes these, and they are not the machine's alone.
mkdir -p "$folder/sysctl"
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    file="$folder/sysctl/$(echo "$name" | tr / .)"
    cat "/proc/sys/$name" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done
# This one belongs to the network namespace.
echo 1 >/proc/sys/net/ipv4/ip_forward

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$cgroup"
else
    for hierarchy in /sys/fs/cgroup/*/; do
        [ -e "$hierarchy/cgroup.procs" ] || continue
        mkdir -p "$hierarchy/$cgroup"
        # A group of version 1 has no processors at first.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$cgroup/$file"
        done
    done
fi

echo ready
# The shell waits for what has lost its parent, too.
cat >/dev/null
