//! Reads sigstore bundles (protobuf-specs, `sigstore_bundle.proto`, 0.3): JSON documents with signed content and
//! signer. Only the signature itself is used; the signer's identity is ignored.

use executor_core::text::printable;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::image::{Algorithm, Digest};
use serde::Deserialize;

use super::Signed;
use crate::hash;

/// Prefix of the media types of bundles. Suffixes are `.v0.3+json` and `+json;version=0.3`, for example.
pub(super) const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle";
/// Payload type of an envelope (in-toto attestation framework).
const STATEMENT: &str = "application/vnd.in-toto+json";
/// Predicate type of a plain signature. Other predicates describe the build of an image, or scan results. Some tools
/// also use this string as the artifact type of a bundle with a signature.
pub(super) const SIGNS: &str = "https://sigstore.dev/cosign/sign/v1";
/// Maximum number of signatures in an envelope.
const SIGNATURES_MAX: usize = 16;
/// Maximum number of subjects in a statement.
const SUBJECTS_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    dsse_envelope: Option<Envelope>,
    message_signature: Option<MessageSignature>,
}

/// Dead Simple Signing Envelope 1.0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageSignature {
    message_digest: Option<MessageDigest>,
    signature: String,
}

#[derive(Deserialize)]
struct MessageDigest {
    digest: String,
}

/// in-toto statement: a predicate about its subjects, which are images.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    #[serde(default)]
    name: String,
    digest: BTreeMap<String, String>,
}

/// Returns a bundle's signature if the signature is for `manifest`, whose digest is `of`.
pub(super) fn read(bundle: &[u8], (of, manifest): (&Digest, &[u8])) -> Result<Signed, String> {
    let bundle: Bundle = serde_json::from_slice(bundle).map_err(|error| format!("the bundle is malformed: {error}"))?;
    if !bundle.media_type.starts_with(MEDIA_TYPE) {
        let media_type = printable(&bundle.media_type, 100);
        return Err(format!("media type \"{media_type}\" is not the media type of a sigstore bundle"));
    }
    match (bundle.dsse_envelope, bundle.message_signature) {
        (Some(envelope), None) => read_envelope(&envelope, of),
        (None, Some(signature)) => read_message_signature(&signature, manifest),
        _ => Err("the bundle must have exactly one of dsseEnvelope and messageSignature".into()),
    }
}

/// Reads a signature of the bytes of the manifest.
fn read_message_signature(signed: &MessageSignature, manifest: &[u8]) -> Result<Signed, String> {
    if let Some(MessageDigest { digest }) = &signed.message_digest {
        let own = hash::digest(Algorithm::Sha256, manifest);
        if hex::encode(decoded(digest, "messageDigest")?) != own.hex() {
            return Err("messageDigest is the digest of another image".into());
        }
    }
    let signatures = vec![decoded(&signed.signature, "signature")?];
    Ok(Signed { message: manifest.to_vec(), signatures, name: None })
}

fn read_envelope(envelope: &Envelope, of: &Digest) -> Result<Signed, String> {
    let Envelope { payload, payload_type, signatures } = envelope;
    if payload_type != STATEMENT {
        return Err(format!("the envelope's payload has the unsupported type \"{}\"", printable(payload_type, 100)));
    }
    if signatures.len() > SIGNATURES_MAX {
        return Err(format!("the envelope has {} signatures; the maximum is {SIGNATURES_MAX}", signatures.len()));
    }
    let payload = decoded(payload, "payload")?;
    let statement: Statement =
        serde_json::from_slice(&payload).map_err(|error| format!("the statement is malformed: {error}"))?;
    if !statement.kind.starts_with("https://in-toto.io/Statement/v") || statement.predicate_type != SIGNS {
        let kind = printable(&statement.predicate_type, 100);
        return Err(format!("the statement has the type {kind:?}; an image signature has {SIGNS:?}"));
    }
    if statement.subject.len() > SUBJECTS_MAX {
        return Err(format!("the statement has {} subjects; the maximum is {SUBJECTS_MAX}", statement.subject.len()));
    }
    let is_it = |subject: &&Subject| subject.digest.get(of.algorithm().name()).is_some_and(|digest| digest == of.hex());
    let subject = statement.subject.iter().find(is_it).ok_or("the statement names another image")?;
    let name = Some(subject.name.clone()).filter(|name| !name.is_empty());
    // Pre-authentication encoding (PAE) of DSSE.
    let mut message = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    message.extend_from_slice(&payload);
    let signatures = signatures.iter().map(|signature| decoded(&signature.sig, "sig")).collect::<Result<_, _>>()?;
    Ok(Signed { message, signatures, name })
}

fn decoded(text: &str, what: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("{what} is not base64: {error}"))
}
