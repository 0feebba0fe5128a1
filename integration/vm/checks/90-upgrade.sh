# An upgrade replaces both daemons, and keeps the container and the operator's configuration.
. "$VM/lib.sh"
printf secret-of-the-old | run -d --id old --file a=@- -- sh -c "trap 'exit 5' USR1; echo up; while :; do sleep 0.2; done"
pid=$(agent-cli inspect --json old | field '["processes"][0]["pid"]')
before="$(systemctl show -p MainPID --value executord) $(systemctl show -p MainPID --value executor-launcher)"
sums=$(md5sum /etc/executor/executor.toml)
at "dpkg -i"
dpkg -i --force-confold /payload/executor.deb
at "installed"
eventually 60 serves
for was in $before; do
    for unit in executord executor-launcher; do
        [ "$was" != "$(systemctl show -p MainPID --value $unit)" ] || fail "$unit was not restarted by the upgrade"
    done
done
same "$sums" "$(md5sum /etc/executor/executor.toml)" 'the configuration'
same "$pid" "$(agent-cli inspect --json old | field '["processes"][0]["pid"]')" 'the same process'
agent-cli signal old USR1
same 5 "$(status_of agent-cli wait old)" 'its exit code'
agent-cli rm old
