# What checks have in common. Sourced: `. "$VM/lib.sh"`.

ROOTFS=/srv/rootfs/busybox
# Its user is `app`, its entrypoint a shell's -c.
IMAGES=/srv/images
IMAGE=127.0.0.1:5000/example/app:1

fail() {
    echo "FAILED: $*"
    exit 1
}

# Something to be shown even if all is well.
note() {
    echo "note: $*"
}

# How far a long check is, and when: for whoever reads why it failed.
at() {
    echo "$(cut -d' ' -f1 /proc/uptime) s: $*"
}

# eventually SECONDS COMMAND...: until the command succeeds. Nothing announces what it waits for.
eventually() {
    deadline=$(($(date +%s) + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt $deadline ] || fail "it never came: $*"
        sleep 0.1
    done
}

# same WANTED GOT WHAT
same() {
    [ "$1" = "$2" ] || fail "$3: wanted '$1', got '$2'"
}

# has TEXT PATTERN: a line of the text matches.
has() {
    printf '%s\n' "$1" | grep -Eq -- "$2" || fail "no line matches '$2' in: $1"
}

# status_of COMMAND...: its exit status, printed; what it says goes to the log of the check.
status_of() {
    code=0
    "$@" >&2 || code=$?
    echo $code
}

# The daemon's own answer, as JSON: field '["result"]["exit"]' < document
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

# Directories of containers' cgroups.
cgroups() {
    find /sys/fs/cgroup/executor -mindepth 2 -type d 2>/dev/null || true
}

# What plugins have made for containers, and what the launcher keeps of it.
network_left() {
    ip -o link show type veth
    iptables-save | grep -e ' id: ' -e CNI-DN- -e '10\.88\.' || true
    find /var/lib/cni/networks /run/executor/netns /var/lib/executor/networks -type f ! -name 'last_reserved_ip*' \
        ! -name lock 2>/dev/null || true
}

# Files below the package's directories that are loop devices.
loop_devices() {
    grep -l /var/lib/executor /sys/block/loop*/loop/backing_file 2>/dev/null || true
}

shims() {
    grep -lx executor-shim /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3 || true
}
