# Runs in the demo's container. Tells facts, a line each (name, tabulator, value), then waits for SIGTERM.
# The secret stays in a variable: the process that uses a password holds it in memory, too.
file=/etc/cf-service-bindings/db/password
password=$(cat "$file")
fact() { printf '%s\t%s\n' "$1" "$2"; }

fact 'user' "$(id -u):$(id -g), process $$ in its pid namespace"
fact 'file' "$file"
fact 'size' "$(stat -c %s "$file") bytes"
fact 'mode and owner' "$(stat -c '%a %u:%g' "$file")"
fact 'directory' "$(stat -c '%a %u:%g' "$(dirname "$file")")"
fact 'sha256' "$(printf %s "$password" | sha256sum | cut -d' ' -f1)"
fact 'write' "$( (echo x >"$file") 2>&1)"
mount_point=$(df --output=target "$file" | tail -n 1)
fact 'mount' "$(grep -F " $mount_point " /proc/self/mountinfo | tail -n 1)"
fact 'network' "$(ls /sys/class/net | tr '\n' ' ' | sed 's/ $//')"
fact 'seccomp, no_new_privs' "$(awk '/^Seccomp:/ { s = $2 } /^NoNewPrivs:/ { n = $2 } END { print s, n }' /proc/self/status)"

trap 'exit 0' TERM
echo ready
while :; do
    sleep 3600 &
    wait
done
