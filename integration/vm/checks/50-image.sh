# An image from a registry, run by the package in a user namespace as the image's user, who reads the secrets. The image
# is available after a restart and without the registry, cannot be removed while in use, and is removed completely.
. "$VM/lib.sh"
digest=$(agent-cli image pull --quiet $IMAGE)
has "$digest" '^sha256:[0-9a-f]{64}$'
same 'of the image' "$(agent-cli run $IMAGE)" "the image's own command"
out=$(printf secret-of-the-image | agent-cli run --file a=@- --redact none $IMAGE -- '
    id -u; cat private; echo; cat /etc/cf-service-bindings/a; echo; ls /bin/tail 2>&1; cat /proc/self/uid_map')
same 1234 "$(printf '%s\n' "$out" | head -1)" 'the user'
has "$out" '^private$'
has "$out" '^secret-of-the-image$'
has "$out" 'tail: No such file'
has "$out" '^ *0 +1[89][0-9]{8} +65536$'
same 1234 "$(find /var/lib/executor/layers -name private -exec stat -c %u {} +)" 'the owner on disk'

agent-cli run -d --id used --disk 32M $IMAGE -- 'exec sleep 1000'
pid=$(agent-cli inspect --json used | field '["processes"][0]["pid"]')
owner=$(stat -c %u "/proc/$pid")
[ "$owner" -gt 1879048192 ] || fail "user id of the container on the host: $owner, expected more than 1879048192"
agent-cli inspect --json used | grep -q "$digest" || fail 'agent-cli inspect does not report the digest'
systemctl stop check-registry
systemctl restart executor-launcher executord
eventually 60 serves
same "$digest" "$(agent-cli image ls -q)" 'images after a restart'
same "$pid" "$(agent-cli inspect --json used | field '["processes"][0]["pid"]')" 'the same process'
same 'of the image' "$(agent-cli run $IMAGE)" 'without the registry'
same 125 "$(status_of agent-cli image rm $IMAGE)" 'the removal of an image in use'
agent-cli rm -f used
agent-cli image rm $IMAGE
same '' "$(agent-cli image ls -q)" 'images'
empty() {
    [ -z "$(find /var/lib/executor/layers/sha256 /var/lib/executor/images -type f)" ]
}
eventually 60 empty

same 125 "$(status_of agent-cli run --pull never $IMAGE)" 'control: the image is not stored any more'
agent-cli image import - <$IMAGES/app.tar
same 'of the image' "$(agent-cli run --pull never example/archived:1)" 'from an archive'
agent-cli image rm example/archived:1
systemctl start check-registry
eventually 60 agent-cli image pull $IMAGE
