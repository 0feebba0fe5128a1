//! Debian's docker-registry.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::tool;
use crate::wait;

/// The user of a registry that wants one.
pub const USER: &str = "puller";
/// Its password.
pub const PASSWORD: &str = "canary-registry-pw-8e21";

/// Debian's registry on loopback.
pub struct Registry {
    child: Child,
    pub(super) port: u16,
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
        let config = dir.path().join("config.yml");
        let (store, address) = (dir.path().join("store"), format!("127.0.0.1:{port}"));
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n{auth}",
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

    /// The name of an image there, as people write it.
    pub fn name(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// The credentials that skopeo needs there, if any.
    pub(super) fn credentials(&self) -> Option<String> {
        self.closed.then(|| format!("{USER}:{PASSWORD}"))
    }

    /// A file for credentials as `docker login` writes it.
    pub fn auth_file(&self) -> PathBuf {
        let path = self.dir.path().join("config.json");
        // `puller:canary-registry-pw-8e21`
        let auth = "cHVsbGVyOmNhbmFyeS1yZWdpc3RyeS1wdy04ZTIx";
        fs::write(&path, format!(r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"{auth}"}}}}}}"#, self.port)).expect("write");
        path
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
