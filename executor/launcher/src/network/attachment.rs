//! Data of a container on a bridge network.

use std::net::IpAddr;

use executor_core::bridge::BridgeNetwork;
use executor_core::cni::{Address, Addresses, Capabilities};
use executor_core::plan::PublishedPort;
use serde::{Deserialize, Serialize};

/// First bytes of a container's hardware address: locally administered.
const HARDWARE_PREFIX: [u8; 2] = [0x02, 0x65];

/// A container that is, or may be, on a bridge network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BridgeAttachment {
    /// Id of the container, or the name of a warm one.
    pub id: String,
    /// Boot in which the interface exists.
    pub boot_id: String,
    /// Name of the network.
    pub network: String,
    /// Interface of the bridge, by which the tables are named too.
    pub interface: String,
    /// Interface of the host that is the container's port of the bridge.
    pub device: String,
    /// Number of the addresses in the pools.
    pub number: u32,
    /// Addresses of the container.
    pub addresses: Vec<Address>,
    /// Addresses of the gateways.
    pub gateways: Vec<IpAddr>,
    /// Published ports.
    pub ports: Vec<PublishedPort>,
    /// Published ports and name servers, as CNI plugins get them.
    pub asked: Capabilities,
    /// True if the container has ended and its rules are removed: they are not made again.
    #[serde(default)]
    pub is_leaving: bool,
}

impl BridgeAttachment {
    /// Returns the addresses of the container and of its gateways.
    pub(super) fn addresses(&self) -> Addresses {
        Addresses { own: self.addresses.clone(), gateways: self.gateways.clone(), ..Addresses::default() }
    }

    /// Returns true if the addresses are of this network as it is configured now.
    pub(super) fn is_of(&self, network: &BridgeNetwork) -> bool {
        self.interface == network.interface && self.addresses == network.addresses(self.number)
    }

    /// Returns the hardware address, which is the same for each container that has these addresses: peers remember it.
    pub(super) fn hardware(&self) -> [u8; 6] {
        hardware(&self.addresses)
    }
}

/// Returns the hardware address that belongs to these addresses: with the IPv4 address, or else the end of the other.
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
