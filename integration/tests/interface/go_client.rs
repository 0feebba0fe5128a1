//! A client in Go, with the code that `protoc` generates for it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use integration::guide::{Guide, GuideShell, packaged_daemon};
use integration::rootfs::Rootfs;

/// Returns the directory that an environment variable names. `cargo xtask test` prepares it.
fn prepared(variable: &str) -> PathBuf {
    env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run `cargo xtask test`")).into()
}

/// The commands of docs/guides/go.md work as written, with the configuration of the package.
#[test]
fn go_guide_works_as_written() {
    let rootfs = Rootfs::busybox();
    let daemon = packaged_daemon(&rootfs);
    let dir = tempfile::tempdir().unwrap();
    let guide = Guide::read("docs/guides/go.md");
    assert!(guide.commands() > 5, "there is something to be tried");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::os::unix::fs::symlink(repository.join("proto"), dir.path().join("proto")).unwrap();
    let go = prepared("EXECUTOR_GO");
    // The compiler of grpcio-tools is protoc.
    let own = tempfile::tempdir().unwrap();
    let protoc = own.path().join("protoc");
    let python = prepared("EXECUTOR_PYTHON");
    fs::write(&protoc, format!("#!/bin/sh\nexec {} -m grpc_tools.protoc \"$@\"\n", python.display())).unwrap();
    fs::set_permissions(&protoc, fs::Permissions::from_mode(0o755)).unwrap();
    let path = env::var_os("PATH").unwrap();
    let path = [own.path().to_owned(), go.join("bin")].into_iter().chain(env::split_paths(&path));
    guide.run(&GuideShell {
        dir: dir.path().into(),
        env: vec![
            ("EXECUTOR_SOCKET", daemon.socket().into()),
            ("EXECUTOR_ROOTFS", rootfs.reference().into()),
            ("PATH", env::join_paths(path).unwrap()),
            ("GOMODCACHE", go.join("mod").into()),
            ("GOCACHE", go.join("cache").into()),
            ("GOTOOLCHAIN", "local".into()),
        ],
    });
}
