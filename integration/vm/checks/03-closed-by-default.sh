# The package's configuration allows only the root file systems that it names. Then it is extended for the checks
# that use the machine's own programs.
. "$VM/lib.sh"
same 125 "$(status_of agent-cli run -- true)" 'rootfs host, as installed'
same 125 "$(status_of agent-cli run --rootfs dir:/ -- true)" 'rootfs dir:/, as installed'
for image in docker://docker.io/library/debian oci:/srv/layout:1 docker-archive:/srv/app.tar; do
    same 125 "$(status_of agent-cli run $image -- true)" "$image, as installed"
done
same 125 "$(status_of agent-cli image pull docker.io/library/debian)" 'image pull, as installed'
same 125 "$(status_of agent-cli image import /etc/hostname)" 'image import, as installed'
has "$(agent-cli info)" 'images +no repository; no imports; no archives'
closed=$(status_of agent-cli run --rootfs "dir:$ROOTFS" --publish 8080:80 --network blue -- true 2>&1)
has "$closed" 'ports_allowed'
same 3 "$(status_of run -- sh -c 'exit 3')" 'control: an allowed directory'
sed -i -e 's/^allow_host_rootfs = false/allow_host_rootfs = true/' -e 's/^allow = \[\]/allow = ["*"]/' \
    -e 's/^\(allow_import\|allow_archives\) = false/\1 = true/' \
    -e 's/^ports_allowed = \[\]/ports_allowed = ["8000-8099"]/' /etc/executor/executor.toml
systemctl restart executor-launcher executord
eventually 60 serves
same 3 "$(status_of agent-cli run -- sh -c 'exit 3')" 'rootfs host, once it is allowed'
