//! Debian's docker-registry.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::{Endpoint, auth_file, tool};
use crate::wait;

/// The user of a registry that wants one.
pub const USER: &str = "puller";
/// Its password: long enough to be searched for in memory.
pub const PASSWORD: &str = "canary-registry-pw-8e21f07c5a3b49d6b1c2e87a90d4";

/// Debian's registry on loopback.
pub struct Registry {
    child: Child,
    port: u16,
    closed: bool,
    dir: TempDir,
}

impl Registry {
    /// Starts it, open to all or to [`USER`] alone.
    pub fn start(closed: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let auth = if closed {
            let users = dir.path().join("users");
            fs::write(&users, tool("htpasswd", &["-Bbn", USER, PASSWORD])).expect("write");
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", users.display())
        } else {
            String::new()
        };
        Self::serve(dir, port, closed, &auth)
    }

    /// Starts one that is encrypted, under a name and at a port; its certificate comes back as PEM.
    pub fn encrypted(name: &str, port: u16) -> (Self, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let [certificate, key] = ["certificate", "key"].map(|file| dir.path().join(file));
        fs::write(&certificate, made.cert.pem()).expect("write");
        fs::write(&key, made.signing_key.serialize_pem()).expect("write");
        let tls = format!("  tls:\n    certificate: {}\n    key: {}\n", certificate.display(), key.display());
        (Self::serve(dir, port, false, &tls), made.cert.pem())
    }

    /// `more` goes on where the configuration's section `http` ends.
    fn serve(dir: TempDir, port: u16, closed: bool, more: &str) -> Self {
        let config = dir.path().join("config.yml");
        let (store, address) = (dir.path().join("store"), format!("127.0.0.1:{port}"));
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n{more}",
            store.display()
        );
        fs::write(&config, text).expect("write");
        let log = fs::File::create(dir.path().join("log")).expect("a log");
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("docker-registry is installed (`cargo xtask test`)");
        wait::until_ok("the registry answers", || TcpStream::connect(&address));
        Self { child, port, closed, dir }
    }

    /// The credentials that skopeo needs there, if any.
    pub(super) fn credentials(&self) -> Option<String> {
        self.closed.then(|| format!("{USER}:{PASSWORD}"))
    }

    /// A file for credentials as `docker login` writes it.
    pub fn auth_file(&self) -> PathBuf {
        let path = self.dir.path().join("config.json");
        fs::write(&path, auth_file(self)).expect("write");
        path
    }
}

impl Endpoint for Registry {
    fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
