# Creates the root file system for the containers of these checks.
. "$VM/lib.sh"
mkdir -p $ROOTFS
cd $ROOTFS
mkdir -p bin dev etc proc sys srv tmp root
cp /bin/busybox bin/busybox
for name in cat echo false grep head id kill ls mkdir mount rm sh sleep stat tail touch true; do
    ln -sf busybox "bin/$name"
done
printf 'root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/srv:/bin/sh\n' >etc/passwd
printf 'root:x:0:\napp:x:1234:\n' >etc/group
