//! Encodes container certificates in DER (RFC 5280). The certificates permit only digital signatures, for client and
//! server authentication.

use std::net::IpAddr;

use executor_core::identity::IdentityNames;
use ring::digest;
use time::OffsetDateTime;
use yasna::models::{GeneralizedTime, ObjectIdentifier, UTCTime};
use yasna::{DERWriter, DERWriterSeq, Tag};

/// Last year that is encoded in two digits (RFC 5280, section 4.1.2.5).
const UTC_TIME_YEAR_MAX: i32 = 2049;

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const ORGANIZATIONAL_UNIT: &[u64] = &[2, 5, 4, 11];
const EC_PUBLIC_KEY: &[u64] = &[1, 2, 840, 10045, 2, 1];
const PRIME256V1: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
const SUBJECT_KEY_ID: &[u64] = &[2, 5, 29, 14];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];

/// Algorithm with which the CA signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    EcdsaSha256,
    EcdsaSha384,
    Ed25519,
    RsaSha256,
}

impl Algorithm {
    fn write(self, writer: DERWriter<'_>) {
        let (id, has_null): (&[u64], bool) = match self {
            Self::EcdsaSha256 => (&[1, 2, 840, 10045, 4, 3, 2], false),
            Self::EcdsaSha384 => (&[1, 2, 840, 10045, 4, 3, 3], false),
            Self::Ed25519 => (&[1, 3, 101, 112], false),
            Self::RsaSha256 => (&[1, 2, 840, 113_549, 1, 1, 11], true),
        };
        writer.write_sequence(|writer| {
            writer.next().write_oid(&ObjectIdentifier::from_slice(id));
            if has_null {
                writer.next().write_null();
            }
        });
    }
}

/// Content of a container's certificate.
pub(crate) struct Leaf<'a> {
    pub(crate) serial: &'a [u8],
    /// DER-encoded subject of the CA's certificate.
    pub(crate) issuer: &'a [u8],
    pub(crate) issuer_key_id: Option<&'a [u8]>,
    /// Start of the validity, in seconds since the epoch.
    pub(crate) not_before: u64,
    /// End of the validity, in seconds since the epoch.
    pub(crate) not_after: u64,
    pub(crate) common_name: &'a str,
    pub(crate) names: &'a IdentityNames,
    /// Public key as an uncompressed point of P-256.
    pub(crate) public_key: &'a [u8],
}

/// Encodes the part that is signed. Returns `None` if a time or an address cannot be represented.
pub(crate) fn to_be_signed(leaf: &Leaf<'_>, algorithm: Algorithm) -> Option<Vec<u8>> {
    let (not_before, not_after) = (date(leaf.not_before)?, date(leaf.not_after)?);
    let addresses: Vec<IpAddr> = leaf.names.ip_addresses.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?;
    Some(yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_tagged(Tag::context(0), |writer| writer.write_i8(2)); // version 3
            writer.next().write_bigint_bytes(leaf.serial, true);
            algorithm.write(writer.next());
            writer.next().write_der(leaf.issuer);
            writer.next().write_sequence(|writer| {
                write_time(writer.next(), not_before);
                write_time(writer.next(), not_after);
            });
            write_subject(writer.next(), leaf);
            write_public_key(writer.next(), leaf.public_key);
            writer.next().write_tagged(Tag::context(3), |writer| {
                writer.write_sequence(|writer| write_extensions(writer, leaf, &addresses));
            });
        });
    }))
}

/// Encodes the complete certificate: signed part, algorithm and signature.
pub(crate) fn signed(to_be_signed: &[u8], algorithm: Algorithm, signature: &[u8]) -> Vec<u8> {
    yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_der(to_be_signed);
            algorithm.write(writer.next());
            writer.next().write_bitvec_bytes(signature, signature.len() * 8);
        });
    })
}

fn date(seconds: u64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()
}

fn write_time(writer: DERWriter<'_>, time: OffsetDateTime) {
    if time.year() <= UTC_TIME_YEAR_MAX {
        writer.write_utctime(&UTCTime::from_datetime(time));
    } else {
        writer.write_generalized_time(&GeneralizedTime::from_datetime(time));
    }
}

/// Writes the organizational units, each as a separate relative distinguished name, and then the common name.
fn write_subject(writer: DERWriter<'_>, leaf: &Leaf<'_>) {
    let part = |writer: DERWriter<'_>, id: &[u64], text: &str| {
        writer.write_set(|writer| {
            writer.next().write_sequence(|writer| {
                writer.next().write_oid(&ObjectIdentifier::from_slice(id));
                writer.next().write_utf8_string(text);
            });
        });
    };
    writer.write_sequence(|writer| {
        for unit in &leaf.names.organizational_units {
            part(writer.next(), ORGANIZATIONAL_UNIT, unit);
        }
        part(writer.next(), COMMON_NAME, leaf.common_name);
    });
}

fn write_public_key(writer: DERWriter<'_>, point: &[u8]) {
    writer.write_sequence(|writer| {
        writer.next().write_sequence(|writer| {
            writer.next().write_oid(&ObjectIdentifier::from_slice(EC_PUBLIC_KEY));
            writer.next().write_oid(&ObjectIdentifier::from_slice(PRIME256V1));
        });
        writer.next().write_bitvec_bytes(point, point.len() * 8);
    });
}

fn write_extensions(writer: &mut DERWriterSeq<'_>, leaf: &Leaf<'_>, addresses: &[IpAddr]) {
    // The default is "not a CA", so the sequence is empty.
    extension(writer, BASIC_CONSTRAINTS, true, |writer| writer.write_sequence(|_| ()));
    // digitalSignature is the first bit.
    extension(writer, KEY_USAGE, true, |writer| writer.write_bitvec_bytes(&[0x80], 1));
    extension(writer, EXTENDED_KEY_USAGE, false, |writer| {
        writer.write_sequence(|writer| {
            writer.next().write_oid(&ObjectIdentifier::from_slice(CLIENT_AUTH));
            writer.next().write_oid(&ObjectIdentifier::from_slice(SERVER_AUTH));
        });
    });
    let names = leaf.names;
    if !names.dns_names.is_empty() || !addresses.is_empty() || !names.spiffe_id.is_empty() {
        extension(writer, SUBJECT_ALT_NAME, false, |writer| {
            writer.write_sequence(|writer| {
                let mut name = |tag: u64, bytes: &[u8]| {
                    writer.next().write_tagged_implicit(Tag::context(tag), |writer| writer.write_bytes(bytes));
                };
                names.dns_names.iter().for_each(|text| name(2, text.as_bytes()));
                if !names.spiffe_id.is_empty() {
                    name(6, names.spiffe_id.as_bytes());
                }
                for address in addresses {
                    match address {
                        IpAddr::V4(address) => name(7, &address.octets()),
                        IpAddr::V6(address) => name(7, &address.octets()),
                    }
                }
            });
        });
    }
    // RFC 7093, section 2, method 1.
    let key_id = &digest::digest(&digest::SHA256, leaf.public_key);
    extension(writer, SUBJECT_KEY_ID, false, |writer| writer.write_bytes(&key_id.as_ref()[..20]));
    if let Some(id) = leaf.issuer_key_id {
        extension(writer, AUTHORITY_KEY_ID, false, |writer| {
            writer.write_sequence(|writer| {
                writer.next().write_tagged_implicit(Tag::context(0), |writer| writer.write_bytes(id));
            });
        });
    }
}

fn extension(writer: &mut DERWriterSeq<'_>, id: &[u64], critical: bool, value: impl FnOnce(DERWriter<'_>)) {
    writer.next().write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(id));
        if critical {
            writer.next().write_bool(true);
        }
        writer.next().write_bytes(&yasna::construct_der(value));
    });
}
