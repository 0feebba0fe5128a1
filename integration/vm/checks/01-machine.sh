# The machine has the properties that these checks need, and the daemon reports them.
. "$VM/lib.sh"
info=$(agent-cli info --json)
same v2 "$(printf %s "$info" | field '["cgroups"]')" cgroups
same ramfs "$(printf %s "$info" | field '["secret_mount_kind"]')" 'file system of secret files (no noswap before Linux 6.4)'
same notify "$(systemctl show -p Type --value executord.service)" 'the unit'
same "$(id -u executor)" "$(printf %s "$info" | field '["uid"]')" 'executord runs as'
note "Linux $(uname -r), $(systemctl --version | head -1), cgroup2 with $(cat /sys/fs/cgroup/cgroup.controllers)"
