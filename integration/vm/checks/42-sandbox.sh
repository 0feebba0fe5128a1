# Exposure of the units as rated by systemd, and executord inside the sandbox of its unit.
. "$VM/lib.sh"
for unit in executord executor-launcher; do
    level=$(systemd-analyze security --no-pager $unit.service | sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\).*/\1/p')
    [ -n "$level" ] || fail "systemd-analyze prints no exposure level for $unit"
    note "systemd-analyze security $unit.service: $level of 10"
    [ $unit != executord ] || [ "${level%.*}" -lt 2 ] || fail "exposure level of executord: $level, expected less than 2"
done
status=/proc/$(systemctl show -p MainPID --value executord)/status
for line in 'CapEff:	0000000000000000' 'CapBnd:	0000000000000000' 'NoNewPrivs:	1' 'Seccomp:	2'; do
    grep -qx "$line" "$status" || fail "expected $line, got $(grep "^${line%%:*}" "$status")"
done
mount=/proc/$(systemctl show -p MainPID --value executord)/mountinfo
has "$(cat "$mount")" ' / / ro'
