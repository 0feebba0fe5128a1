# Runs in the demo's container. Prints facts, one per line (name, tab, value), then waits for SIGTERM.
# The secret stays in a variable: a process that uses a password also holds it in memory.
file=/etc/cf-service-bindings/db/password
password=$(cat "$file")
fact() { printf '%s\t%s\n' "$1" "$2"; }

fact 'user' "$(id -u):$(id -g), process $$ in its pid namespace"
fact 'file' "$file"
# -L follows the links, which make a rotation of all files atomic.
fact 'size' "$(stat -L -c %s "$file") bytes"
fact 'mode and owner' "$(stat -L -c '%a %u:%g' "$file")"
fact 'directory' "$(stat -L -c '%a %u:%g' "$(dirname "$file")")"
fact 'sha256' "$(printf %s "$password" | sha256sum | cut -d' ' -f1)"
fact 'printed' "$password"
fact 'write' "$( (echo x >"$file") 2>&1)"
mount_point=$(df --output=target "$file" | tail -n 1)
fact 'mount' "$(grep -F " $mount_point " /proc/self/mountinfo | tail -n 1)"
fact 'network' "$(sed -n 's/^ *\([^:]*\):.*/\1/p' /proc/net/dev | tr '\n' ' ' | sed 's/ $//')"
# No awk: it is a link through /etc/alternatives, and the container's /etc is not the host's.
status() { sed -n "s/^$1:[^0-9]*//p" /proc/self/status; }
fact 'seccomp, no_new_privs' "$(status Seccomp) $(status NoNewPrivs)"

trap 'exit 0' TERM
echo ready
while :; do
    sleep 3600 &
    wait
done
