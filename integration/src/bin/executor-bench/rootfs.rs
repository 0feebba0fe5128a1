//! The rootfs of all contestants: a directory with two static programs of a few instructions.
//!
//! `true` exits immediately, so that the container is measured and not the program. `pause` sleeps until it is killed,
//! and is used for idle containers.

use std::ffi::CString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

const TRUE: &str = "int main(void) { return 0; }";
const PAUSE: &str = "#include <unistd.h>\nint main(void) { for (;;) pause(); }";
const DIRECTORIES: [&str; 8] = ["bin", "dev", "etc", "proc", "run", "sys", "tmp", "var"];
const PASSWD: &str = "root:x:0:0::/:/bin/true\nbench:x:1000:1000::/:/bin/true\n";
const GROUP: &str = "root:x:0:\nbench:x:1000:\n";

pub(crate) struct Rootfs {
    pub(crate) path: PathBuf,
    /// Path of the root file system as a C string, for system calls.
    pub(crate) c_path: CString,
}

impl Rootfs {
    /// Compiles the programs with the C compiler that Rust uses for linking.
    pub(crate) fn make(below: &Path) -> anyhow::Result<Self> {
        let path = below.join("rootfs");
        for directory in DIRECTORIES {
            std::fs::create_dir_all(path.join(directory))?;
        }
        std::fs::write(path.join("etc/passwd"), PASSWD)?;
        std::fs::write(path.join("etc/group"), GROUP)?;
        for (name, source) in [("true", TRUE), ("pause", PAUSE)] {
            compile(source, &path.join("bin").join(name))?;
        }
        // Containers do not run as the owner of the temporary directory.
        for directory in [below, &path] {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
        }
        let c_path = CString::new(path.as_os_str().as_bytes())?;
        Ok(Self { path, c_path })
    }
}

fn compile(source: &str, to: &Path) -> anyhow::Result<()> {
    let mut compiler = Command::new("cc")
        .args(["-static", "-Os", "-s", "-x", "c", "-", "-o"])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run cc")?;
    compiler.stdin.take().context("the child has no pipe")?.write_all(source.as_bytes())?;
    let status = compiler.wait()?;
    ensure!(status.success(), "cc cannot build the static program {}: {status}", to.display());
    Ok(())
}
