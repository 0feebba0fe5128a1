//! Builds an image with a small program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::Image;
use crate::rootfs::Rootfs;

impl Image {
    /// Builds an image with busybox as its lower layer, and an upper layer that removes a file and changes another. The
    /// configuration sets an entrypoint, a command, variables, a working directory, a user, a stop signal, and volumes
    /// at an existing and at a missing path.
    pub fn build() -> Self {
        let (image, rootfs) = (Self::new(), Rootfs::busybox());
        image.copy(rootfs.path());
        let root = image.root();
        fs::write(root.join("srv/old"), "old").expect("write");
        fs::write(root.join("srv/changed"), "one").expect("write");
        fs::write(root.join("srv/private"), "of app").expect("write");
        fs::set_permissions(root.join("srv/private"), fs::Permissions::from_mode(0o600)).expect("chmod");
        std::os::unix::fs::chown(root.join("srv/private"), Some(1234), Some(1234)).expect("chown");
        image.commit();
        fs::remove_file(root.join("srv/old")).expect("remove");
        fs::write(root.join("srv/changed"), "two").expect("write");
        image.commit();
        image.config(&[
            "--config.entrypoint",
            "/bin/sh",
            "--config.entrypoint",
            "-c",
            "--config.cmd",
            "echo $GREETING from $PWD as $(id -u)",
            "--config.env",
            "PATH=/bin",
            "--config.env",
            "GREETING=hello",
            "--config.workingdir",
            "/srv",
            "--config.user",
            "app",
            "--config.stopsignal",
            "SIGQUIT",
            "--config.label",
            "team=red",
            "--config.volume",
            "/tmp/data",
            "--config.volume",
            "/srv",
        ]);
        image
    }
}
