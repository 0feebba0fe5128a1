//! Instance identity for tests: the operator's CA, requests with an identity, and a container's certificate and key.
//! Also searches memory for a key, in every encoding in which a process can have it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_proto::v1::{Container, Identity, RunRequest};
use executor_residue::Needles;
use rcgen::KeyPair;

use crate::daemon::{Daemon, Setup};
use crate::{host, metrics, wait};

/// Directory of the identity files in a container.
pub const DIR: &str = "/etc/cf-instance-credentials";
/// Names that the operator allows.
const POLICY: &str = "organizational_unit_prefixes = ['app:', 'space:']\ndns_suffixes = ['apps.internal']\n\
                      ip_networks = ['10.1.0.0/16', 'fd00::/8']\nspiffe_trust_domains = ['cell.example']\n";

/// The operator's CA, in files outside of the daemon's directories.
pub struct Ca(tempfile::TempDir);

impl Ca {
    /// Creates a CA with OpenSSL.
    ///
    /// # Panics
    /// Panics if OpenSSL fails.
    pub fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let ca = Self(dir);
        ca.make(name, &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        ca
    }

    /// Creates a new certificate and key. Issued certificates must repeat the subject byte by byte in their issuer
    /// field; two organizational units test this.
    ///
    /// # Panics
    /// Panics if OpenSSL fails.
    pub fn make(&self, name: &str, kind: &[&str]) {
        let (certificate, key) = (self.path("new.crt"), self.path("new.key"));
        let subject = format!("/O=Cell/OU=one/OU=two/CN={name}");
        let usage = "keyUsage=critical,keyCertSign,cRLSign";
        let words = ["-nodes", "-subj", &subject, "-addext", usage, "-keyout", &key, "-out", &certificate];
        openssl(&[&["req", "-x509", "-newkey"], kind, &words].concat());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("chmod");
        fs::rename(key, self.path("ca.key")).expect("rename");
        fs::rename(certificate, self.path("ca.crt")).expect("rename");
    }

    /// Returns the path of a file of the CA: `ca.crt` or `ca.key`.
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Returns the identity table of the configuration.
    pub fn table(&self) -> String {
        format!("[identity]\nca_certificate = '{}'\nca_key = '{}'\n{POLICY}", self.path("ca.crt"), self.path("ca.key"))
    }

    /// Starts a daemon that uses this CA and serves metrics.
    pub fn daemon(&self) -> Daemon {
        let setup = Setup::default();
        let config = metrics::table(&setup) + &self.table();
        setup.config(&config).start()
    }
}

/// Runs OpenSSL, which must succeed.
///
/// # Panics
/// Panics if OpenSSL fails.
pub fn openssl(arguments: &[&str]) -> String {
    let done = Command::new("openssl").args(arguments).output().expect("openssl");
    assert!(done.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("a text")
}

/// Adds an identity with a lifetime of `ttl` seconds to a request.
pub fn with_identity(mut request: RunRequest, ttl: Option<i64>) -> RunRequest {
    let ttl = ttl.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
    request.identity = Some(Identity { organizational_units: vec!["app:1".into()], ttl, ..Identity::default() });
    request
}

/// Returns the host path of a container's file. `pid` is a process in the container.
pub fn file(pid: i32, name: &str) -> PathBuf {
    Path::new(&format!("/proc/{pid}/root{DIR}")).join(name)
}

/// Returns the time at which a container's certificate is due for renewal.
///
/// # Panics
/// Panics if the container has no certificate.
pub fn due(container: &Container) -> SystemTime {
    let at = container.identity.as_ref().and_then(|identity| identity.renew_at).expect("a certificate");
    UNIX_EPOCH + Duration::new(at.seconds.unsigned_abs(), at.nanos.unsigned_abs())
}

/// Returns the pids of the signer processes.
pub fn signers(launcher: i32) -> Vec<i32> {
    let is_signer =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "executor-signer\n");
    host::descendants(launcher).into_iter().filter(is_signer).collect()
}

/// Certificate and key of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Certificate as PEM.
    pub certificate: String,
    /// Private key as PEM.
    pub key: String,
}

impl Pair {
    /// Reads the pair. The certificate is read before and after the key and must be unchanged, so that both belong to
    /// the same generation.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, for example because the container has exited.
    pub fn read(pid: i32) -> std::io::Result<Self> {
        let certificate = || fs::read_to_string(file(pid, "instance.crt"));
        wait::within(wait::DEFAULT_TIMEOUT, || {
            let pair = certificate()
                .and_then(|certificate| Ok(Self { certificate, key: fs::read_to_string(file(pid, "instance.key"))? }));
            match (pair, certificate()) {
                (Ok(pair), Ok(again)) if pair.certificate != again => Err(()),
                (pair, again) => Ok(pair.and_then(|pair| again.map(|_| pair))),
            }
        })
        .unwrap_or_else(|()| Err(std::io::Error::other("the certificate changed during each reading")))
    }

    /// Checks that the key belongs to the certificate.
    ///
    /// # Errors
    /// Returns a description of the mismatch if the key does not match.
    pub fn check(&self) -> Result<(), String> {
        let key = KeyPair::from_pem(&self.key).map_err(|error| format!("the key: {error}"))?;
        let (public, certificate) = (key.public_key_raw(), der(&self.certificate));
        let certified = certificate.windows(public.len()).any(|window| window == public);
        if certified {
            Ok(())
        } else {
            Err(format!("the key does not belong to the certificate: {}", self.certificate))
        }
    }

    /// Returns true if the certificate has the serial number `number` (hexadecimal).
    pub fn has_serial(&self, number: &str) -> bool {
        let number = hex::decode(number).unwrap_or_default();
        !number.is_empty() && der(&self.certificate).windows(number.len()).any(|window| window == number)
    }
}

/// Decodes the first object of a PEM string.
fn der(pem: &str) -> Vec<u8> {
    let lines = pem.lines().skip(1).take_while(|line| !line.starts_with('-'));
    STANDARD.decode(lines.collect::<String>()).unwrap_or_default()
}

/// Number of bytes before the private scalar in a PKCS#8 file of P-256. These bytes are the same in all files.
const HEAD: usize = 36;
/// Length of a private scalar in bytes.
const LENGTH: usize = 32;
/// Order of P-256, big-endian.
const ORDER: [u8; LENGTH] = [
    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad, 0xa7,
    0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];

/// Adds a P-256 key to `needles` in every encoding in which a process can have it: the PEM text of its file, the
/// private scalar in both byte orders, and the Montgomery form that ring computes with.
///
/// # Panics
/// Panics if the PEM text is not a P-256 key.
pub fn add_key(needles: &mut Needles, label: &str, pem: &str) {
    let whole = der(pem);
    assert!(whole.len() >= HEAD + LENGTH, "{label} is a key of P-256: {} bytes", whole.len());
    // PEM text of the private scalar. The text contains a line break; the public key follows.
    let text = pem.split_once('\n').map_or(pem, |(_, text)| text).as_bytes();
    needles.add(&format!("{label}, its text"), &text[HEAD * 4 / 3..=(HEAD + LENGTH) * 4 / 3]);
    let mut number: [u8; LENGTH] = std::array::from_fn(|index| whole[HEAD + index]);
    let mut add = |form: &str, bytes: &[u8]| needles.add(&format!("{label}, {form}"), bytes);
    add("big-endian", &number);
    number.reverse();
    add("little-endian", &number);
    number.reverse();
    (0..LENGTH * 8).for_each(|_| double(&mut number));
    number.reverse();
    add("Montgomery", &number);
}

/// Doubles a number modulo [`ORDER`]. The number must be below `ORDER`.
fn double(number: &mut [u8; LENGTH]) {
    let mut carry = 0;
    for byte in number.iter_mut().rev() {
        (*byte, carry) = (*byte << 1 | carry, *byte >> 7);
    }
    if carry == 1 || *number >= ORDER {
        let mut borrow = false;
        for (byte, of_order) in number.iter_mut().zip(ORDER).rev() {
            let (once, first) = byte.overflowing_sub(of_order);
            let (twice, second) = once.overflowing_sub(u8::from(borrow));
            (*byte, borrow) = (twice, first || second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_doubled_modulo_the_order() {
        let mut number = [0; LENGTH];
        number[LENGTH - 1] = 1;
        (0..LENGTH * 8).for_each(|_| double(&mut number));
        // 2^256 minus the order, for an input above half of the order.
        let expected = "00000000ffffffff00000000000000004319055258e8617b0c46353d039cdaaf";
        assert_eq!(hex::encode(number), expected);
    }

    #[test]
    fn pair_of_two_keys_is_reported() {
        let signed = |key: &KeyPair| rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(key).unwrap().pem();
        let (one, two) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let pair = |certificate: &KeyPair| Pair { certificate: signed(certificate), key: one.serialize_pem() };
        pair(&one).check().unwrap();
        pair(&two).check().unwrap_err();
    }
}
