# What checks have in common. Sourced: `. "$VM/lib.sh"`.

ROOTFS=/srv/rootfs/busybox

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

shims() {
    grep -lx executor-shim /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3 || true
}
