# `agent-cli audit` finds no residue: on ramfs, under systemd, in the journal.
. "$VM/lib.sh"
agent-cli audit --journal
agent-cli audit --rootfs "dir:$ROOTFS" --user app --json >/dev/null
