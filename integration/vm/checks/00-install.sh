# The package installs on a minimal Debian, and its daemons start.
. "$VM/lib.sh"
dpkg -i /payload/executor.deb
for unit in executord.service executord.socket executor-launcher.service; do
    same active "$(systemctl is-active $unit)" "$unit"
    same enabled "$(systemctl is-enabled $unit)" "$unit"
done
eventually 60 serves
same 'executor' "$(id -un executor)" 'the user'
agent-cli kube --help | grep -q 'agent-cli kube' || fail 'agent-cli kube is not found'
agent-cli cnab --help | grep -q 'agent-cli cnab' || fail 'agent-cli cnab is not found'
same docker,oci "$(cnab-executor --handles)" 'the driver of bundles'
same 644 "$(stat -c %a /etc/executor/executor.toml)" 'the configuration'
# (A setting of dpkg on this machine excludes documentation.)
foreign=$(dpkg -L executor | grep -v -e ^/usr/share/doc -e ^/usr/share/man | xargs stat -c '%u:%g %n' | grep -v '^0:0 ' || true)
same '' "$foreign" "files that are not root's"
dpkg -L executor | grep -qx /usr/share/doc/executor/html/docs/index.html || fail 'the package has no book'
note "$(dpkg -s executor | grep -E '^(Version|Installed-Size)' | tr '\n' ' ')"
