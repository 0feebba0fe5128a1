//! Defines the stored data of a container that is attached to a bridge network.

use std::net::IpAddr;

use executor_core::bridge::BridgeNetwork;
use executor_core::cni::{Address, Addresses, Capabilities};
use executor_core::plan::PublishedPort;
use serde::{Deserialize, Serialize};

/// First bytes of a container's hardware address, which mark the address as locally administered.
const HARDWARE_PREFIX: [u8; 2] = [0x02, 0x65];

/// A container that is attached to a bridge network, or whose attachment has begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BridgeAttachment {
    /// Container id, or record name of a warm container.
    pub id: String,
    /// Boot id of the boot in which the interface exists.
    pub boot_id: String,
    pub network: String,
    /// Name of the bridge interface. The nf_tables tables have the same name.
    pub interface: String,
    /// Name of the host's interface for the container, which is a port of the bridge.
    pub device: String,
    /// Position of the addresses in the network's pools.
    pub number: u32,
    /// Addresses of the container.
    pub addresses: Vec<Address>,
    /// Addresses of the gateways.
    pub gateways: Vec<IpAddr>,
    pub ports: Vec<PublishedPort>,
    /// Published ports and name servers in the format for CNI plugins.
    pub asked: Capabilities,
    /// True if the container has exited and its rules are deleted. The rules must not be created again.
    #[serde(default)]
    pub is_leaving: bool,
}

impl BridgeAttachment {
    /// Returns the addresses of the container and of its gateways.
    pub(super) fn addresses(&self) -> Addresses {
        Addresses { own: self.addresses.clone(), gateways: self.gateways.clone(), ..Addresses::default() }
    }

    /// Returns true if the addresses belong to this network in its current configuration.
    pub(super) fn is_of(&self, network: &BridgeNetwork) -> bool {
        self.interface == network.interface && self.addresses == network.addresses(self.number)
    }

    /// Returns the hardware address, which depends only on the addresses, because peers cache the pair of hardware and
    /// IP address.
    pub(super) fn hardware(&self) -> [u8; 6] {
        hardware(&self.addresses)
    }
}

/// Returns the hardware address for these addresses: the prefix and the first IPv4 address, or the last four bytes of
/// an IPv6 address.
pub(super) fn hardware(addresses: &[Address]) -> [u8; 6] {
    let last = match addresses.first().map(|address| address.ip) {
        Some(IpAddr::V4(ip)) => ip.octets(),
        Some(IpAddr::V6(ip)) => (u128::from(ip) as u32).to_be_bytes(),
        None => [0; 4],
    };
    let [first, second] = HARDWARE_PREFIX;
    let [a, b, c, d] = last;
    [first, second, a, b, c, d]
}
