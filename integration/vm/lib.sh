# Functions that the checks share. Sourced: `. "$VM/lib.sh"`.

ROOTFS=/srv/rootfs/busybox
# The user of the image is `app`, and its entrypoint is `sh -c`.
IMAGES=/srv/images
IMAGE=127.0.0.1:5000/example/app:1

fail() {
    echo "FAILED: $*"
    exit 1
}

# Prints text that is shown even if all checks pass.
note() {
    echo "note: $*"
}

# Logs the time and progress of a long check, to explain a failure.
at() {
    echo "$(cut -d' ' -f1 /proc/uptime) s: $*"
}

# Prints seconds since the boot. A change of the clock does not change them.
uptime_seconds() {
    cut -d. -f1 /proc/uptime
}

# eventually SECONDS COMMAND...: repeats the command until it succeeds, because there is no notification.
eventually() {
    deadline=$(($(uptime_seconds) + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(uptime_seconds)" -lt $deadline ] || fail "command did not succeed before its deadline: $*"
        sleep 0.1
    done
}

# same EXPECTED GOT WHAT: fails unless the two values are equal.
same() {
    [ "$1" = "$2" ] || fail "$3: got '$2', expected '$1'"
}

# has TEXT PATTERN: fails unless a line of the text matches.
has() {
    printf '%s\n' "$1" | grep -Eq -- "$2" || fail "no line matches '$2' in: $1"
}

# status_of COMMAND...: prints the exit status; the output goes to the log of the check.
status_of() {
    code=0
    "$@" >&2 || code=$?
    echo $code
}

# Reads a field of the daemon's JSON response: field '["result"]["exit"]' < document
field() {
    python3 -c "import json, sys; print(json.load(sys.stdin)$1)"
}

# Runs a container from the busybox root file system.
run() {
    agent-cli run --rootfs "dir:$ROOTFS" "$@"
}

serves() {
    agent-cli info --json | grep -q '"launcher_connected": true'
}

# Prints the cgroup directories of containers, except warm containers.
cgroups() {
    find /sys/fs/cgroup/executor -mindepth 2 -type d 2>/dev/null | while read -r dir; do
        name=${dir#*/.shell-}
        [ -d "/run/executor/shells/${name%%/*}" ] || echo "$dir"
    done
}

# Prints the cgroup directory of a container.
cgroup_of() {
    echo "/sys/fs/cgroup/$(sed -n 's/.*"cgroup":"\([^"]*\)".*/\1/p' "/run/executor/containers/$1/container.json")"
}

# Prints all objects that plugins have created for containers, and the launcher's records of the objects.
network_left() {
    ip -o link show type veth
    iptables-save | grep -e ' id: ' -e CNI-DN- -e '10\.88\.' || true
    find /var/lib/cni/networks /run/executor/netns /var/lib/executor/networks -type f ! -name 'last_reserved_ip*' \
        ! -name lock 2>/dev/null || true
}

# Prints the files below the package's directories that back loop devices.
loop_devices() {
    grep -l /var/lib/executor /sys/block/loop*/loop/backing_file 2>/dev/null || true
}

shims() {
    grep -lx executor-shim /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3 || true
}
