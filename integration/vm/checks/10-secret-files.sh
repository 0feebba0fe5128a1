# Secret files of a container: their location, their readers, and their wipe.
. "$VM/lib.sh"
out=$(printf hunter2-and-more | run --keep --id files --user app --file db/password=@- --redact none -- sh -c '
    cd /etc/cf-service-bindings
    stat -L -c "%a %u:%g %s %n" . db db/password
    grep executor-secrets /proc/self/mountinfo
    cat db/password; echo
    (echo x >db/password) 2>&1; (echo x >new) 2>&1; rm db/password 2>&1; true')
has "$out" '^700 1234:1234 [0-9]+ \.$'
has "$out" '^600 1234:1234 16 db/password$'
has "$out" 'ro,nosuid,nodev,noexec,relatime - ramfs executor-secrets'
has "$out" '^hunter2-and-more$'
same 3 "$(printf '%s\n' "$out" | grep -c 'Read-only file system')" 'refused writes'
! grep executor-secrets /proc/self/mountinfo || fail 'a mount of secret files is visible on the host'
wipe=$(agent-cli inspect --json files | field '["result"]["wipe"]')
has "$wipe" "'verified': True"
has "$wipe" "'bytes': 16"
same 1 "$(printf hunter2-and-more | run --file a=@- -- cat /etc/cf-service-bindings/a | grep -c REDACTED)" 'masked output'
agent-cli rm files
