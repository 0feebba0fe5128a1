# Every process of a container has the AppArmor profile that the container names. A profile that is not loaded or not
# listed is refused.
. "$VM/lib.sh"
same Y "$(cat /sys/module/apparmor/parameters/enabled)" 'AppArmor'
config=/etc/executor/executor.toml
made=$(mktemp -d)
cp $config "$made/executor.toml"
cat >"$made/profile" <<END
profile executor-check flags=(attach_disconnected,mediate_deleted) {
  file,
  capability,
  network,
  signal,
  ptrace,
  umount,
  deny /etc/group r,
}
END
restarted() {
    systemctl restart executor-launcher executord
    eventually 60 serves
}
restore() {
    agent-cli rm -f confined >/dev/null 2>&1 || true
    apparmor_parser --remove "$made/profile" || true
    cp "$made/executor.toml" $config
    rm -r "$made"
    restarted
}
trap restore EXIT
printf '\n[apparmor]\nprofiles = ["executor-check"]\n' >>$config
restarted

confined() {
    run --apparmor-profile executor-check "$@"
}
code=0
refused=$(confined -- true 2>&1) || code=$?
same 125 $code 'a profile that is not loaded'
has "$refused" 'executor-check.* is not loaded on this host'
apparmor_parser --replace "$made/profile"
attempt='cat /proc/self/attr/current; cat /etc/group >/dev/null 2>&1 || echo denied'
same "executor-check (enforce)
denied" "$(confined -- sh -c "$attempt")" 'a process'
confined -d --id confined -- sleep 1000
same "executor-check (enforce)
denied" "$(agent-cli exec confined -- sh -c "$attempt")" 'an executed process'
same "executor-check (enforce)" "$(cat "/proc/$(agent-cli inspect --json confined | field '["processes"][0]["pid"]')/attr/current")" 'the first process'
agent-cli rm -f confined
free=$(run -- sh -c "$attempt")
! printf '%s\n' "$free" | grep -q -e denied -e executor-check || fail "control failed: the container without a profile is confined: $free"
code=0
refused=$(run --apparmor-profile unconfined -- true 2>&1) || code=$?
same 125 $code 'a profile that is not listed'
has "$refused" "this daemon's configuration has executor-check"
