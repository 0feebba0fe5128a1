# A purge removes state and configuration; the user stays, as usual in Debian. The second purge happens while the
# daemons run.
. "$VM/lib.sh"
gone() {
    for path in /var/lib/executor /etc/executor /run/executor /sys/fs/cgroup/executor; do
        [ ! -e $path ] || fail "leftover files: $(find $path | head)"
    done
    left=$(find /etc/systemd /var/lib/systemd/deb-systemd-helper-* -name '*execut*' 2>/dev/null || true)
    same '' "$left" 'traces of the units'
    same 1 "$(dpkg -s executor 2>&1 | grep -c 'not installed')" 'dpkg reports the package as not installed'
    ! grep executor /etc/subuid /etc/subgid 2>/dev/null || fail 'ranges of user ids are still assigned'
    getent passwd executor >/dev/null || fail 'the user executor was removed'
    systemctl daemon-reload
    same '' "$(systemctl --failed --no-legend)" 'failed units'
}
dpkg -P executor
gone
dpkg -i /payload/executor.deb
eventually 60 serves
run -d --id late -- sleep 1000
dpkg -P executor
same '' "$(shims)" shims
gone
