//! Images that others build and serve: umoci makes them, skopeo copies them, Debian's docker-registry serves them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::rootfs::Rootfs;
use crate::wait;

/// The user of a registry that wants one.
pub const USER: &str = "puller";
/// Its password.
pub const PASSWORD: &str = "canary-registry-pw-8e21";

/// An image in an OCI layout, as `1`: busybox below, and on top a layer that takes a file away and changes another. Its
/// configuration names an entrypoint, a command, variables, a directory, a user, a signal, a volume that it has and one that it has not.
pub struct Image {
    dir: TempDir,
}

fn tool(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error} (`cargo xtask test` installs it)"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

impl Image {
    /// Builds it.
    pub fn build() -> Self {
        let (image, rootfs) = (Self { dir: tempfile::tempdir().expect("a directory") }, Rootfs::busybox());
        // executord reads layouts and archives with its own rights.
        image.readable(true);
        let (layout, bundle) = (image.path("layout"), image.path("bundle"));
        let tagged = format!("{layout}:1");
        tool("umoci", &["init", "--layout", &layout]);
        tool("umoci", &["new", "--image", &tagged]);
        tool("umoci", &["unpack", "--image", &tagged, &bundle]);
        let root = PathBuf::from(&bundle).join("rootfs");
        let source = format!("{}/.", rootfs.path().display());
        tool("cp", &["-a", &source, &root.display().to_string()]);
        fs::write(root.join("srv/old"), "old").expect("write");
        fs::write(root.join("srv/changed"), "one").expect("write");
        fs::write(root.join("srv/private"), "of app").expect("write");
        fs::set_permissions(root.join("srv/private"), fs::Permissions::from_mode(0o600)).expect("chmod");
        std::os::unix::fs::chown(root.join("srv/private"), Some(1234), Some(1234)).expect("chown");
        tool("umoci", &["repack", "--refresh-bundle", "--image", &tagged, &bundle]);
        fs::remove_file(root.join("srv/old")).expect("remove");
        fs::write(root.join("srv/changed"), "two").expect("write");
        tool("umoci", &["repack", "--image", &tagged, &bundle]);
        tool(
            "umoci",
            &[
                "config",
                "--image",
                &tagged,
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
            ],
        );
        image
    }

    /// Opens the directory that it lies in to everybody, or closes it.
    pub fn readable(&self, open: bool) {
        // umoci's files are their owner's alone.
        let mode = if open { "a+rX" } else { "go-rwx" };
        tool("chmod", &["-R", mode, &self.dir.path().display().to_string()]);
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// How skopeo and a request refer to the layout.
    pub fn layout(&self) -> String {
        format!("oci:{}:1", self.path("layout"))
    }

    /// Copies it into an archive of a form (`docker-archive`, `oci-archive`), under a name; the archive's path.
    pub fn archive(&self, form: &str, name: &str) -> String {
        let path = self.path(&format!("{form}.tar"));
        let to = if name.is_empty() { format!("{form}:{path}") } else { format!("{form}:{path}:{name}") };
        tool("skopeo", &["copy", "--quiet", "--insecure-policy", &self.layout(), &to]);
        path
    }

    /// Pushes it to a registry; the digest that it has there.
    pub fn push(&self, registry: &Registry, name: &str) -> String {
        let to = format!("docker://{}", registry.name(name));
        let mut arguments = vec!["copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"];
        let credentials = format!("{USER}:{PASSWORD}");
        if registry.closed {
            arguments.extend(["--dest-creds", &credentials]);
        }
        let file = self.path("digest");
        let (layout, option) = (self.layout(), format!("--digestfile={file}"));
        arguments.extend([&*option, &layout, &to]);
        tool("skopeo", &arguments);
        fs::read_to_string(file).expect("a digest").trim().to_owned()
    }
}

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

/// Stands between a client and a registry, and holds an answer back in its middle, for as long as it is told to.
pub struct Holding {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: u16,
    /// Bytes of an answer after which it is held.
    after: usize,
    holds: AtomicBool,
    held: AtomicUsize,
    asked: Mutex<Vec<u8>>,
}

impl Holding {
    /// Begins to stand there.
    pub fn start(registry: &Registry, after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            upstream: registry.port,
            after,
            holds: AtomicBool::new(true),
            held: AtomicUsize::new(0),
            asked: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                thread::spawn(move || drop(shared.pass(client)));
            }
        });
        Self { port, shared }
    }

    /// The name of an image there.
    pub fn name(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// Waits until an answer is held.
    pub fn until_held(&self) {
        wait::until("an answer is held", || (self.shared.held.load(Ordering::SeqCst) > 0).then_some(()));
    }

    /// Holds nothing any more.
    pub fn release(&self) {
        self.shared.holds.store(false, Ordering::SeqCst);
    }

    /// Whether a text was in what clients sent.
    pub fn saw(&self, text: &str) -> bool {
        let asked = self.shared.asked.lock().expect("not poisoned");
        String::from_utf8_lossy(&asked).to_ascii_lowercase().contains(text)
    }
}

impl Shared {
    fn pass(self: Arc<Self>, mut client: TcpStream) -> std::io::Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", self.upstream))?;
        let (mut requests, mut to_server, this) = (client.try_clone()?, server.try_clone()?, Arc::clone(&self));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = requests.read(&mut buffer) {
                this.asked.lock().expect("not poisoned").extend_from_slice(&buffer[..n]);
                if to_server.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let (mut buffer, mut passed) = ([0; 4096], 0);
        loop {
            let n = server.read(&mut buffer)?;
            if n == 0 {
                return client.shutdown(Shutdown::Both);
            }
            passed += n;
            if passed > self.after && self.holds.load(Ordering::SeqCst) {
                self.held.fetch_add(1, Ordering::SeqCst);
                while self.holds.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            client.write_all(&buffer[..n])?;
        }
    }
}

/// The layers that lie unpacked in a state directory.
pub fn layers(state_dir: &Path) -> usize {
    fs::read_dir(state_dir.join("layers/sha256")).map_or(0, Iterator::count)
}
