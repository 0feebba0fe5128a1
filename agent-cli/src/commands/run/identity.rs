//! Options of `run` about the container's certificate.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use executor_client::v1::{Identity, RunRequest};

use crate::failure::Failure;
use crate::request::to_proto;
use crate::units;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Identity")]
pub(crate) struct IdentityArgs {
    /// Give the container a certificate and its private key, signed by the operator's CA, as secret files
    ///
    /// The files are /etc/cf-instance-credentials/instance.crt and instance.key by default; CF_INSTANCE_CERT and CF_INSTANCE_KEY have
    /// their paths. executord replaces them before the certificate's end. The certificate names the container's id, and what the other
    /// options of this section add, each of which has this one's effect, too. executord's configuration ([identity]) says what may be
    /// named.
    #[arg(long)]
    identity: bool,
    /// Organizational unit in the certificate's subject, such as app:GUID; may be repeated
    #[arg(long, value_name = "UNIT")]
    identity_ou: Vec<String>,
    /// DNS name in the certificate; may be repeated
    #[arg(long, value_name = "NAME")]
    identity_dns: Vec<String>,
    /// IP address in the certificate; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    identity_ip: Vec<IpAddr>,
    /// SPIFFE ID in the certificate: spiffe://TRUST-DOMAIN/PATH
    #[arg(long, value_name = "ID")]
    identity_spiffe: Option<String>,
    /// Life of a certificate, 10s at least [default: executord's, 24h]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    identity_ttl: Option<Duration>,
}

impl IdentityArgs {
    /// Puts them into a request.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        let Self { identity, identity_ou: units, identity_dns: dns, identity_ip: addresses, .. } = self;
        let (spiffe, ttl) = (self.identity_spiffe, self.identity_ttl);
        let is_wanted = identity
            || !(units.is_empty() && dns.is_empty() && addresses.is_empty() && spiffe.is_none() && ttl.is_none());
        if is_wanted {
            request.identity = Some(Identity {
                organizational_units: units,
                dns_names: dns,
                ip_addresses: addresses.iter().map(ToString::to_string).collect(),
                spiffe_id: spiffe.unwrap_or_default(),
                ttl: ttl.map(to_proto).transpose()?,
            });
        }
        Ok(())
    }
}
