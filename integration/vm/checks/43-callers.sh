# Callers: root and the package's group are served. Other users are refused at the socket.
. "$VM/lib.sh"
group=$(getent group executor | cut -d: -f3)
as() {
    # Contexts are read below HOME, and other users cannot read root's home.
    HOME=/nonexistent setpriv --reuid 4711 --regid 4711 "$@"
}
same 125 "$(status_of as --clear-groups agent-cli info)" 'a user outside of the group'
same 0 "$(status_of as --groups "$group" agent-cli info)" 'a member of the group'
