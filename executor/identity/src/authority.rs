//! Loads the CA's certificate and key, checks them, and signs certificates.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use executor_core::identity::{IdentityNames, IdentitySettings};
use executor_core::protocol::{PUBLIC_KEY_LENGTH, SignRequest, Signed, SignerReady};
use executor_core::validate::Violation;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

use crate::certificate::{self, Algorithm, Leaf};
use crate::pem;

/// Maximum size of a CA file in bytes. The chain must fit in one packet.
const FILE_MAX: u64 = 32 << 10;
/// Duration by which a certificate's validity begins before the time of signing, for peers whose clocks are slow.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);
/// Length of a serial number in bytes. 126 bits of it are random (RFC 5280, section 4.1.2.2).
const SERIAL_LENGTH: usize = 16;

/// Error for a CA that cannot be used. Contains no part of the key.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// A file cannot be used: wrong type, mode, owner, size or content; holds the path and the reason.
    #[error("{}: {}", .0.display(), .1)]
    Unsuitable(PathBuf, String),
}

/// Reason why a certificate is not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request is not allowed.
    #[error("the names or the validity period are not allowed")]
    Invalid(Vec<Violation>),
    /// The public key has an unsupported type or encoding.
    #[error("the public key is not an uncompressed point of P-256")]
    PublicKey,
    /// The CA's certificate is not valid at this time.
    #[error("{0}")]
    Time(String),
    /// The system returned no random numbers, or signing failed.
    #[error("cannot sign the certificate")]
    Failed,
}

enum SigningKey {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

/// A CA that is ready to sign.
pub struct Authority {
    settings: IdentitySettings,
    key: Box<SigningKey>,
    random: SystemRandom,
    /// DER-encoded subject of the CA's certificate.
    issuer: Vec<u8>,
    /// Subject key identifier of the CA's certificate, if it has one.
    key_id: Option<Vec<u8>>,
    not_before: u64,
    not_after: u64,
    subject: String,
    chain: String,
}

impl Authority {
    /// Reads and checks the CA's files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or other users can read the key file. Also returns an error if the
    /// certificate is not a CA certificate, is not valid now, or does not match the key.
    pub fn load(settings: &IdentitySettings, now: SystemTime) -> Result<Self, AuthorityError> {
        let path = &settings.ca_certificate;
        let unsuitable = |why: String| AuthorityError::Unsuitable(path.clone(), why);
        let text = read(path, false)?;
        let mut certificates = Vec::new();
        for block in Pem::iter_from_buffer(&text) {
            let block = block.map_err(|_| unsuitable("is not PEM".into()))?;
            if block.label != "CERTIFICATE" {
                return Err(unsuitable(format!("has a block {:?}; only CERTIFICATE is allowed", block.label)));
            }
            certificates.push(block.contents);
        }
        let first = certificates.first().ok_or_else(|| unsuitable("has no certificate".into()))?;
        for (index, der) in certificates.iter().enumerate() {
            let parsed = X509Certificate::from_der(der).is_ok_and(|(rest, _)| rest.is_empty());
            if !parsed {
                return Err(unsuitable(format!("certificate {} is not an X.509 certificate", index + 1)));
            }
        }
        let (_, ca) = X509Certificate::from_der(first).map_err(|error| unsuitable(error.to_string()))?;
        check_purpose(&ca).map_err(|why| unsuitable(why.into()))?;
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let validity = ca.validity();
        let (not_before, not_after) =
            (seconds(validity.not_before.timestamp()), seconds(validity.not_after.timestamp()));
        check_time(not_before, not_after, now).map_err(unsuitable)?;
        let key = SigningKey::load(&settings.ca_key)?;
        if key.public() != ca.public_key().subject_public_key.data.as_ref() {
            let why = format!("is not the key of the certificate {}", path.display());
            return Err(AuthorityError::Unsuitable(settings.ca_key.clone(), why));
        }
        Ok(Self {
            settings: settings.clone(),
            key: Box::new(key),
            random: SystemRandom::new(),
            issuer: ca.subject().as_raw().to_vec(),
            key_id: key_id(&ca),
            not_before,
            not_after,
            subject: ca.subject().to_string().chars().take(256).collect(),
            chain: certificates.iter().map(|der| pem("CERTIFICATE", der)).collect(),
        })
    }

    /// Returns the properties of the CA that executord needs.
    pub fn ready(&self) -> SignerReady {
        SignerReady { subject: self.subject.clone(), not_after: self.not_after, chain: self.chain.clone() }
    }

    /// Signs a certificate. The certificate expires no later than the CA's certificate.
    ///
    /// # Errors
    /// Returns a [`SignError`] if the request is refused.
    pub fn sign(&self, request: SignRequest, now: SystemTime) -> Result<Signed, SignError> {
        let SignRequest { container_id, public_key, ttl_seconds, .. } = request;
        let names = IdentityNames {
            organizational_units: request.organizational_units,
            dns_names: request.dns_names,
            ip_addresses: request.ip_addresses,
            spiffe_id: request.spiffe_id,
        };
        let found = self.settings.evaluate(&container_id, &names, (ttl_seconds > 0).then_some(ttl_seconds));
        if !found.is_empty() {
            return Err(SignError::Invalid(found));
        }
        if public_key.len() != PUBLIC_KEY_LENGTH || public_key.first() != Some(&4) {
            return Err(SignError::PublicKey);
        }
        check_time(self.not_before, self.not_after, now)
            .map_err(|why| SignError::Time(format!("{}: {why}", self.settings.ca_certificate.display())))?;
        let ttl = if ttl_seconds > 0 { ttl_seconds } else { self.settings.ttl_seconds };
        let now = seconds_of(now);
        let not_before = now.saturating_sub(CLOCK_SKEW_MAX.as_secs()).max(self.not_before);
        let not_after = now.saturating_add(ttl).min(self.not_after);
        let mut serial = vec![0; SERIAL_LENGTH];
        self.random.fill(&mut serial).map_err(|_| SignError::Failed)?;
        // Make the number positive and of constant length.
        serial[0] = (serial[0] & 0x7f) | 0x40;
        let leaf = Leaf {
            serial: &serial,
            issuer: &self.issuer,
            issuer_key_id: self.key_id.as_deref(),
            not_before,
            not_after,
            common_name: &container_id,
            names: &names,
            public_key: &public_key,
        };
        let algorithm = self.key.algorithm();
        let to_sign = certificate::to_be_signed(&leaf, algorithm).ok_or(SignError::Failed)?;
        let signature = self.key.sign(&self.random, &to_sign).ok_or(SignError::Failed)?;
        let der = certificate::signed(&to_sign, algorithm, &signature);
        Ok(Signed { certificate: pem("CERTIFICATE", &der), serial, not_before, not_after })
    }
}

fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn check_time(not_before: u64, not_after: u64, now: SystemTime) -> Result<(), String> {
    let now = seconds_of(now);
    let reported = |seconds: u64| {
        executor_core::time::Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds))
            .rfc3339()
            .replace(".000000000", "")
    };
    if now >= not_after {
        return Err(format!("the CA's certificate expired at {}", reported(not_after)));
    }
    if now < not_before {
        return Err(format!("the CA's certificate is not valid before {}", reported(not_before)));
    }
    Ok(())
}

fn check_purpose(ca: &X509Certificate<'_>) -> Result<(), &'static str> {
    let constraints =
        ca.basic_constraints().map_err(|_| "the basic constraints of the first certificate cannot be read")?;
    if !constraints.is_some_and(|constraints| constraints.value.ca) {
        return Err("the first certificate is not a CA certificate (basicConstraints CA:TRUE is required)");
    }
    let usage = ca.key_usage().map_err(|_| "the key usage of the first certificate cannot be read")?;
    if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err("the first certificate may not sign certificates (keyUsage keyCertSign is required)");
    }
    Ok(())
}

fn key_id(ca: &X509Certificate<'_>) -> Option<Vec<u8>> {
    ca.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    })
}

/// Reads a file of the CA. If `is_secret` is true, only root (or this user) may have access to the file.
fn read(path: &Path, is_secret: bool) -> Result<Zeroizing<Vec<u8>>, AuthorityError> {
    let failed = |error| AuthorityError::Read(path.to_owned(), error);
    let unsuitable = |why: String| AuthorityError::Unsuitable(path.to_owned(), why);
    // Check the type first, because opening a pipe would block.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(unsuitable("is not a regular file".into()));
    }
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > FILE_MAX {
        return Err(unsuitable(format!("must be a regular file of at most {FILE_MAX} bytes")));
    }
    if is_secret {
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            let why =
                format!("has mode {mode:04o}: users other than its owner can access it; the mode must be 0600 or 0400");
            return Err(unsuitable(why));
        }
        let own = std::fs::metadata("/proc/self").map_err(failed)?.uid();
        if metadata.uid() != 0 && metadata.uid() != own {
            return Err(unsuitable(format!("belongs to user {}; it must belong to root", metadata.uid())));
        }
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize + 1));
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(unsuitable(format!("must be a regular file of at most {FILE_MAX} bytes")));
    }
    Ok(bytes)
}

impl SigningKey {
    fn load(path: &Path) -> Result<Self, AuthorityError> {
        let unsuitable = |why: &str| AuthorityError::Unsuitable(path.to_owned(), why.to_owned());
        let text = read(path, true)?;
        let mut found = None;
        for block in Pem::iter_from_buffer(&text) {
            let Pem { label, contents } = block.map_err(|_| unsuitable("is not PEM"))?;
            let der = Zeroizing::new(contents);
            match &*label {
                "PRIVATE KEY" => found = Some(Self::from_pkcs8(&der)),
                "RSA PRIVATE KEY" => found = Some(RsaKeyPair::from_der(&der).ok().map(Self::Rsa)),
                "EC PRIVATE KEY" => {
                    return Err(unsuitable(
                        "is an EC PRIVATE KEY; convert it to PKCS#8: openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW",
                    ));
                }
                "ENCRYPTED PRIVATE KEY" => return Err(unsuitable("is encrypted; use a key without a password")),
                _ => {}
            }
        }
        let kinds = "ECDSA P-256 or P-384, Ed25519, or RSA of 2048 to 4096 bits";
        match found {
            None => Err(unsuitable("has no private key (PRIVATE KEY)")),
            Some(None) => Err(unsuitable(&format!("has no supported key; supported are {kinds}"))),
            Some(Some(key)) => Ok(key),
        }
    }

    fn from_pkcs8(der: &[u8]) -> Option<Self> {
        let random = SystemRandom::new();
        let p256 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random).map(Self::P256);
        let p384 = || EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_ASN1_SIGNING, der, &random).map(Self::P384);
        let ed25519 = || Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map(Self::Ed25519);
        let rsa = || RsaKeyPair::from_pkcs8(der).map(Self::Rsa);
        p256.or_else(|_| p384()).or_else(|_| ed25519()).or_else(|_| rsa()).ok()
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::P256(key) | Self::P384(key) => key.public_key().as_ref(),
            Self::Ed25519(key) => key.public_key().as_ref(),
            Self::Rsa(key) => key.public_key().as_ref(),
        }
    }

    fn algorithm(&self) -> Algorithm {
        match self {
            Self::P256(_) => Algorithm::EcdsaSha256,
            Self::P384(_) => Algorithm::EcdsaSha384,
            Self::Ed25519(_) => Algorithm::Ed25519,
            Self::Rsa(_) => Algorithm::RsaSha256,
        }
    }

    fn sign(&self, random: &SystemRandom, message: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::P256(key) | Self::P384(key) => Some(key.sign(random, message).ok()?.as_ref().to_vec()),
            Self::Ed25519(key) => Some(key.sign(message).as_ref().to_vec()),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, random, message, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use executor_core::identity::COMMON_NAME_MAX;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
    use ring::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm,
    };

    use super::*;

    fn settings(dir: &Path, key: &KeyPair, params: &CertificateParams) -> IdentitySettings {
        let (ca_certificate, ca_key) = (dir.join("ca.crt"), dir.join("ca.key"));
        std::fs::write(&ca_certificate, params.self_signed(key).unwrap().pem()).unwrap();
        std::fs::write(&ca_key, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&ca_key, std::fs::Permissions::from_mode(0o600)).unwrap();
        IdentitySettings {
            ca_certificate,
            ca_key,
            organizational_unit_prefixes: vec!["app:".into()],
            ..IdentitySettings::default()
        }
    }

    fn ca() -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    fn request(id: &str, units: &[&str]) -> SignRequest {
        let mut public_key = vec![7; PUBLIC_KEY_LENGTH];
        public_key[0] = 4;
        let units = units.iter().map(|unit| (*unit).to_owned()).collect();
        SignRequest { container_id: id.into(), public_key, organizational_units: units, ..SignRequest::default() }
    }

    /// A CA key of type P-256, P-384 or Ed25519 signs a correct certificate. If there are several organizational units,
    /// the subject contains them in order.
    #[test]
    fn ca_signs_certificates_for_every_key_type() {
        let kinds: [(KeyPair, &dyn VerificationAlgorithm); 3] = [
            (KeyPair::generate().unwrap(), &ECDSA_P256_SHA256_ASN1),
            (KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(), &ECDSA_P384_SHA384_ASN1),
            (KeyPair::generate_for(&PKCS_ED25519).unwrap(), &ED25519),
        ];
        for (key, algorithm) in kinds {
            let dir = tempfile::tempdir().unwrap();
            let now = SystemTime::now();
            let authority = Authority::load(&settings(dir.path(), &key, &ca()), now).unwrap();
            let signed = authority.sign(request("c", &["app:2", "app:1"]), now).unwrap();
            let block = Pem::iter_from_buffer(signed.certificate.as_bytes()).next().unwrap().unwrap();
            let leaf = block.parse_x509().unwrap();
            assert_eq!(leaf.subject().to_string(), "OU=app:2, OU=app:1, CN=c");
            assert_eq!((leaf.raw_serial(), leaf.is_ca()), (&signed.serial[..], false));
            assert_eq!(leaf.issuer().as_raw(), &authority.issuer[..]);
            assert_eq!(signed.not_after - seconds_of(now), 86_400);
            let public = UnparsedPublicKey::new(algorithm, authority.key.public());
            public.verify(leaf.tbs_certificate.as_ref(), &leaf.signature_value.data).unwrap();
        }
    }

    #[test]
    fn names_beyond_the_settings_are_not_signed() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let authority = Authority::load(&settings(dir.path(), &KeyPair::generate().unwrap(), &ca()), now).unwrap();
        assert!(authority.sign(request("c", &["app:1"]), now).is_ok(), "control failed");
        let long = "c".repeat(COMMON_NAME_MAX + 1);
        for bad in [request("c", &["org:1"]), request(&long, &[]), SignRequest { ttl_seconds: 1, ..request("c", &[]) }]
        {
            assert!(matches!(authority.sign(bad, now), Err(SignError::Invalid(found)) if found.len() == 1));
        }
        let short = SignRequest { public_key: vec![4; 64], ..request("c", &[]) };
        assert!(matches!(authority.sign(short, now), Err(SignError::PublicKey)));
    }

    /// A certificate expires no later than its CA, and an expired CA signs no certificate.
    #[test]
    fn certificate_expires_no_later_than_ca() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let mut params = ca();
        let end = time::OffsetDateTime::from(now) + time::Duration::hours(1);
        params.not_after = end;
        let settings = settings(dir.path(), &KeyPair::generate().unwrap(), &params);
        let authority = Authority::load(&settings, now).unwrap();
        let signed = authority.sign(request("c", &[]), now).unwrap();
        assert_eq!(i64::try_from(signed.not_after).unwrap(), end.unix_timestamp());
        let later = now + Duration::from_secs(3601);
        assert!(
            matches!(authority.sign(request("c", &[]), later), Err(SignError::Time(why)) if why.contains("expired"))
        );
        assert!(Authority::load(&settings, later).is_err_and(|error| error.to_string().contains("expired")));
    }
}
