//! Options of `run` for the container's certificate.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::to_proto;
use executor_cli_kit::units;
use executor_client::v1::{Identity, RunRequest};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Identity")]
pub(crate) struct IdentityArgs {
    /// Give the container a certificate and its private key, signed by the operator's CA, as secret files
    ///
    /// The files are /etc/cf-instance-credentials/instance.crt and instance.key by default; CF_INSTANCE_CERT and
    /// CF_INSTANCE_KEY have their paths. executord replaces them before the certificate expires. The certificate
    /// contains the container's id, and the names of the other options of this section, each of which implies
    /// --identity. executord's configuration (`[identity]`) restricts the names.
    #[arg(long)]
    identity: bool,
    /// Organizational unit in the certificate's subject, such as app:GUID; can be repeated
    #[arg(long, value_name = "UNIT")]
    identity_ou: Vec<String>,
    /// DNS name in the certificate; can be repeated
    #[arg(long, value_name = "NAME")]
    identity_dns: Vec<String>,
    /// IP address in the certificate; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    identity_ip: Vec<IpAddr>,
    /// SPIFFE ID in the certificate: spiffe://TRUST-DOMAIN/PATH
    #[arg(long, value_name = "ID")]
    identity_spiffe: Option<String>,
    /// Lifetime of a certificate, at least 10s [default: executord's, 24h]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    identity_ttl: Option<Duration>,
}

impl IdentityArgs {
    /// Adds the request for a certificate to a run request, if an option asks for a certificate.
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
