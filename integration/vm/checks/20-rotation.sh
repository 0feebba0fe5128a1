# Secret files are replaced while a container runs, and the container reads the new files.
. "$VM/lib.sh"
printf old-value-1 | run -d --id web --file db/password=@- --redact none -- sh -c '
    trap "cat /etc/cf-service-bindings/db/password; echo" HUP
    echo up; while :; do sleep 0.1; done'
said() {
    agent-cli logs web | grep -q "$1"
}
eventually 60 said up
generation=$(agent-cli inspect --json web | field '["files_generation"]')
printf new-value-2 | agent-cli rotate web --file db/password=@- --signal HUP
eventually 60 said new-value-2
! said old-value-1 || fail 'the container printed the old value after the rotation'
now=$(agent-cli inspect --json web | field '["files_generation"]')
[ "$now" -gt "$generation" ] || fail "generation after the rotation: $now, expected more than $generation"
agent-cli rm -f web
