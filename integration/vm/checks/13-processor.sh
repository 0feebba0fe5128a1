# A limit of a quarter of a processor is enforced: the quota is set, and a run of three seconds does not exceed it.
. "$VM/lib.sh"
used() {
    sed -n 's/^usage_usec //p' "$1/cpu.stat"
}
for cpus in 0.25 1; do
    run -d --id busy --cpus $cpus -- sh -c 'while :; do :; done'
    dir=$(cgroup_of busy)
    [ $cpus = 1 ] || same '25000 100000' "$(cat "$dir/cpu.max")" cpu.max
    before=$(used "$dir") began=$(date +%s%N)
    sleep 3
    after=$(used "$dir") ended=$(date +%s%N)
    percent=$(((after - before) * 100000 / (ended - began)))
    note "--cpus $cpus: $percent % of a processor was used"
    if [ $cpus = 1 ]; then
        [ $percent -gt 50 ] || fail "control failed: without a tight quota the container used $percent % of a processor, expected more than 50 %"
    else
        [ $percent -le 32 ] || fail "the container used $percent % of a processor; the maximum is 32 %"
    fi
    agent-cli rm -f busy
done
