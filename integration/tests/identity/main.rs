//! Instance identity in real containers: what OpenSSL says of certificates, their replacement, a CA that cannot sign, and where the
//! keys are.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod authority;
mod delivered;
mod guide;
mod keys;
mod killed;
mod replaced;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use executor_proto::v1::{Container, Identity, RunRequest};
use integration::api::pid;
use integration::daemon::{Daemon, Setup};
use integration::{host, metrics};

/// Directory of the files in a container.
const DIR: &str = "/etc/cf-instance-credentials";
/// What the operator of these tests allows.
const POLICY: &str = "organizational_unit_prefixes = ['app:', 'space:']\ndns_suffixes = ['apps.internal']\n\
                      ip_networks = ['10.1.0.0/16', 'fd00::/8']\nspiffe_trust_domains = ['cell.example']\n";

/// The operator's CA, in files that are not the daemon's.
struct Ca(tempfile::TempDir);

impl Ca {
    /// A CA made by OpenSSL.
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let ca = Self(dir);
        ca.make(name, &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        ca
    }

    /// Makes certificate and key anew. The subject has two organizational units, which an issuer's name must repeat byte by byte.
    fn make(&self, name: &str, kind: &[&str]) {
        let (certificate, key) = (self.path("new.crt"), self.path("new.key"));
        let subject = format!("/O=Cell/OU=one/OU=two/CN={name}");
        let usage = "keyUsage=critical,keyCertSign,cRLSign";
        let words = ["-nodes", "-subj", &subject, "-addext", usage, "-keyout", &key, "-out", &certificate];
        openssl(&[&["req", "-x509", "-newkey"], kind, &words].concat());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(key, self.path("ca.key")).unwrap();
        fs::rename(certificate, self.path("ca.crt")).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// The table of the configuration.
    fn table(&self) -> String {
        format!("[identity]\nca_certificate = '{}'\nca_key = '{}'\n{POLICY}", self.path("ca.crt"), self.path("ca.key"))
    }

    fn daemon(&self) -> Daemon {
        let setup = Setup::default();
        let config = metrics::table(&setup) + &self.table();
        setup.config(&config).start()
    }
}

/// Runs OpenSSL, which must succeed.
fn openssl(arguments: &[&str]) -> String {
    let done = Command::new("openssl").args(arguments).output().unwrap();
    assert!(done.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// A request with an identity of this life.
fn with_identity(mut request: RunRequest, ttl: Option<i64>) -> RunRequest {
    let ttl = ttl.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
    request.identity = Some(Identity { organizational_units: vec!["app:1".into()], ttl, ..Identity::default() });
    request
}

/// Path of a container's file, as the host sees it.
fn file(container: &Container, name: &str) -> PathBuf {
    Path::new(&format!("/proc/{}/root{DIR}", pid(container))).join(name)
}

/// Pids of the processes that sign.
fn signers(daemon: &Daemon) -> Vec<i32> {
    let all = daemon.launcher().into_iter().flat_map(host::descendants);
    all.filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "executor-signer\n"))
        .collect()
}
