# Creates an image with other tools, a registry on loopback that serves it, and a network of CNI plugins. The package is
# not configured for them yet.
. "$VM/lib.sh"
mkdir -p $IMAGES/registry
cd $IMAGES
umoci init --layout layout
umoci new --image layout:1
umoci unpack --image layout:1 bundle
cp -a $ROOTFS/. bundle/rootfs
printf private >bundle/rootfs/srv/private
chmod 600 bundle/rootfs/srv/private
chown 1234:1234 bundle/rootfs/srv/private
umoci repack --refresh-bundle --image layout:1 bundle
rm bundle/rootfs/bin/tail
umoci repack --image layout:1 bundle
umoci config --image layout:1 --config.entrypoint /bin/sh --config.entrypoint -c --config.cmd 'echo of the image' \
    --config.env PATH=/bin --config.user app --config.workingdir /srv
rm -r bundle
at 'the image is built'

cat >registry.yml <<END
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $IMAGES/registry}}
http: {addr: ":5000"}
END
cat >/etc/systemd/system/check-registry.service <<END
[Service]
ExecStart=docker-registry serve $IMAGES/registry.yml
[Install]
WantedBy=multi-user.target
END
systemctl enable --quiet --now check-registry
pushed() {
    skopeo copy --quiet --insecure-policy --dest-tls-verify=false oci:layout:1 docker://$IMAGE
}
eventually 120 pushed
skopeo copy --quiet --insecure-policy oci:layout:1 docker-archive:app.tar:example/archived:1
at 'the image is in the registry and in an archive'

mkdir -p /etc/cni/net.d
cat >/etc/cni/net.d/10-blue.conflist <<END
{
  "cniVersion": "1.0.0",
  "name": "blue",
  "plugins": [
    {"type": "bridge", "bridge": "cni-blue", "isGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"}
  ]
}
END
