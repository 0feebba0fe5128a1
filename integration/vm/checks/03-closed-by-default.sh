# What the package's configuration does not name cannot be run from; what it names can. Then it is opened for the checks
# that use the machine's own programs.
. "$VM/lib.sh"
same 125 "$(status_of agent-cli run -- true)" 'rootfs host, as installed'
same 125 "$(status_of agent-cli run --rootfs dir:/ -- true)" 'rootfs dir:/, as installed'
journal_on_failure() {
    [ $? = 0 ] || { journalctl -u executor-launcher -u executord -n 25 --no-pager; dmesg | tail -15; }
}
trap journal_on_failure EXIT
same 3 "$(status_of run -- sh -c 'exit 3')" 'the control: the directory that is allowed'
sed -i 's/^allow_host_rootfs = false/allow_host_rootfs = true/' /etc/executor/executor.toml
systemctl restart executor-launcher executord
eventually 60 serves
same 3 "$(status_of agent-cli run -- sh -c 'exit 3')" 'rootfs host, once it is allowed'
