//! Attaches containers to built-in bridge networks. No program is started: links are created through route netlink,
//! rules through nf_tables.
//!
//! ```text
//! attach   store      writes the record for detaching to disk, before anything else       (../store.rs)
//!          pool       leases addresses                                                     (pool.rs)
//!          make       creates the bridge and its tables, if they do not exist              (link.rs, rules.rs)
//!          rules      adds rules for the container's packets and its published ports       (rules.rs)
//!          link       creates a pair of interfaces with addresses and routes               (link.rs)
//! detach   rules and interface are removed, tracked UDP flows are deleted                  (conntrack.rs)
//!          then the lease is released, then the record is removed
//! ```
//! Records and leases are not synced to disk, because interfaces and rules do not survive a reboot either.

mod conntrack;
mod link;
mod pool;
mod rules;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use executor_core::bridge::BridgeNetwork;
use executor_core::cni::{Addresses, Capabilities};
use executor_core::ident::ContainerId;
use executor_core::plan::{Protocol, PublishedPort};
use executor_core::protocol::ListedBridge;
use executor_core::record::ContainerRecord;
use executor_sys::{identity, process};
use sha2::{Digest, Sha256};

use super::attachment::{BridgeAttachment, hardware};
use super::netlink::NetlinkSocket;
use super::ports::Reserved;
use super::store::{Durability, Stored};
use super::{NetworkError, nft, store};
use crate::host::Host;
use crate::log::{self, Level};
use crate::sysctl;
pub(super) use link::host_addresses;

/// Prefix of the names of bridge ports. A name consists of this prefix, digits for the bridge, and the number of the
/// container's addresses: at most 15 bytes, the kernel's limit.
const DEVICE_PREFIX: &str = "ex";
/// Number of hexadecimal digits that distinguish bridges in the names of bridge ports.
const DEVICE_DIGITS: usize = 6;
/// Number of hexadecimal digits that distinguish installations.
const INSTALLATION_DIGITS: usize = 12;
/// Maximum length of an interface description that the kernel accepts, in bytes.
const ALIAS_MAX: usize = 255;
/// Settings for interfaces in the container, set before the interfaces exist: ignore router advertisements, use
/// addresses immediately, derive the link-local address from the hardware address.
const INSIDE: [(&str, &str); 3] = [
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/addr_gen_mode", "0"),
];

/// Attaches a container to a network. `init` is a pidfd of the container's init, which waits in its network namespace.
///
/// # Errors
/// Returns an error if a step fails. The caller must then call [`detach`], which undoes a partial attachment.
pub(super) fn attach(
    host: &Host,
    record: &ContainerRecord,
    network: &BridgeNetwork,
    asked: Capabilities,
    init: BorrowedFd<'_>,
) -> Result<(Addresses, Reserved), NetworkError> {
    let (id, ports) = (record.plan.id.as_str(), &record.plan.connectivity.ports);
    let (lock, reserved) = reserve_ports(host, id, ports, &asked)?;
    let attachment = lease(host, (id, &record.shim.boot_id), network, (ports.clone(), asked))?;
    drop(lock);
    connect(host, network, &attachment, init)?;
    publish(host, network, &attachment)?;
    Ok((attachment.addresses(), reserved))
}

/// Attaches a warm container, whose record has this name.
///
/// # Errors
/// Returns an error if a step fails. The caller must then call [`detach`], which undoes a partial attachment.
pub(super) fn attach_warm(
    host: &Host,
    (name, boot_id): (&str, &str),
    network: &BridgeNetwork,
    init: BorrowedFd<'_>,
) -> Result<BridgeAttachment, NetworkError> {
    let lock = store::lock(host).map_err(|error| NetworkError::System("cannot lock the state directory", error))?;
    let attachment = lease(host, (name, boot_id), network, (Vec::new(), Capabilities::default()))?;
    drop(lock);
    connect(host, network, &attachment, init)?;
    Ok(attachment)
}

/// Transfers the lease of a warm container to a container.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn adopt(host: &Host, warm: BridgeAttachment, id: &ContainerId) -> io::Result<BridgeAttachment> {
    let name = warm.id.clone();
    let adopted = BridgeAttachment { id: id.to_string(), ..warm };
    let _lock = store::lock(host)?; // `make` reads either record
    store::write(host, id.as_str(), &Stored::Bridge(adopted.clone()), Durability::Unsynced)?;
    pool::transfer(host, &adopted.network, adopted.number, id.as_str())?;
    store::remove(host, &name, &adopted.asked)?;
    Ok(adopted)
}

/// Publishes the ports of a container that was attached while it was warm.
///
/// # Errors
/// Returns an error if a step fails. The caller must then call [`detach`], which undoes a partial attachment.
pub(super) fn complete(
    host: &Host,
    record: &ContainerRecord,
    adopted: BridgeAttachment,
    asked: Capabilities,
) -> Result<(Addresses, Reserved), NetworkError> {
    let network = host.networks.get(&adopted.network).ok_or(NetworkError::Removed)?;
    let ports = &record.plan.connectivity.ports;
    if ports.is_empty() {
        ensure(host, network, &adopted)?;
        return Ok((adopted.addresses(), Reserved::default()));
    }
    let (lock, reserved) = reserve_ports(host, &adopted.id, ports, &asked)?;
    let attachment = BridgeAttachment { ports: ports.clone(), asked, ..adopted };
    store::write(host, &attachment.id, &Stored::Bridge(attachment.clone()), Durability::Unsynced)
        .map_err(|error| NetworkError::System("cannot write the stored network data", error))?;
    drop(lock);
    ensure(host, network, &attachment)?;
    publish(host, network, &attachment)?;
    Ok((attachment.addresses(), reserved))
}

/// Checks that no other container and no program on the host uses the ports, and reserves them. Hold the returned lock
/// until the record is written. The lock excludes other checks of ports, and [`make`], which deletes the elements of
/// containers without a record.
fn reserve_ports(
    host: &Host,
    id: &str,
    ports: &[PublishedPort],
    asked: &Capabilities,
) -> Result<(File, Reserved), NetworkError> {
    let system = |error: io::Error| NetworkError::System("cannot reserve ports in the state directory", error);
    if ports.is_empty() {
        return Ok((store::lock(host).map_err(system)?, Reserved::default()));
    }
    let checked = store::check_ports(host, id, asked).map_err(system)?;
    let lock = checked.map_err(|(port, other)| NetworkError::Port(port, other))?;
    Ok((lock, Reserved::from_ports(ports)?))
}

/// Creates the interfaces of a container, with addresses and routes.
fn connect(
    host: &Host,
    network: &BridgeNetwork,
    attachment: &BridgeAttachment,
    init: BorrowedFd<'_>,
) -> Result<(), NetworkError> {
    let system = |what: &'static str| move |error: io::Error| NetworkError::System(what, error);
    let bridge = ensure(host, network, attachment)?;
    let inside = process::within_network(init, || {
        for (name, value) in INSIDE {
            write_setting(host, name, value)?;
        }
        Ok((NetlinkSocket::route()?, File::open("/proc/thread-self/ns/net")?))
    });
    let (inside, namespace) = inside.map_err(system("cannot enter the container's network namespace"))?;
    let pair = link::Pair {
        name: &attachment.device,
        bridge: bridge.index,
        mtu: bridge.mtu,
        hardware: attachment.hardware(),
        namespace: namespace.as_fd(),
    };
    let made = match pair.make() {
        // This container has the lease, so the interface is a leftover of a container whose record was damaged.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            link::remove(&attachment.device).and_then(|()| pair.make())
        }
        made => made,
    };
    made.map_err(system("cannot create the interface of the container"))?;
    link::configure_inside(&inside, &attachment.addresses, &network.gateways())
        .map_err(system("cannot set the addresses of the container"))
}

/// Adds the container to the network's tables and returns the bridge. Creates the bridge or the tables again if they
/// were deleted.
fn ensure(
    host: &Host,
    network: &BridgeNetwork,
    attachment: &BridgeAttachment,
) -> Result<link::FoundLink, NetworkError> {
    let found = link::find(&network.interface)
        .map_err(|error| NetworkError::System("cannot find the interface of the network", error))?;
    let bridge = match found {
        Some(found) if found.is_up && found.alias == alias(host, network) => found,
        _ => make(host, network)?,
    };
    match rules::add(attachment) {
        // The tables were deleted, for example by `nft flush ruleset`.
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(host, network),
        added => added.map(|()| bridge).map_err(NetworkError::Rules),
    }
}

/// Completes the publication of ports after the map elements were added. Handles replies to `::1`, connections of the
/// container to itself, and UDP flows that are already tracked.
fn publish(host: &Host, network: &BridgeNetwork, attachment: &BridgeAttachment) -> Result<(), NetworkError> {
    let system = |what: &'static str| move |error: io::Error| NetworkError::System(what, error);
    if attachment.ports.is_empty() {
        return Ok(());
    }
    link::enable_hairpin(&attachment.device).map_err(system("cannot configure the interface of the container"))?;
    if let Some(alias) = network.loopback_alias() {
        rules::answer_loopback(attachment, alias).map_err(NetworkError::Rules)?;
    }
    for port in attachment.ports.iter().filter(|port| port.protocol == Protocol::Udp) {
        conntrack::delete_udp_port(host, port.host_port)
            .map_err(system("cannot delete tracked connections of a published UDP port"))?;
    }
    Ok(())
}

/// Leases addresses and writes the attachment's record under `name`.
fn lease(
    host: &Host,
    (name, boot_id): (&str, &str),
    network: &BridgeNetwork,
    (ports, asked): (Vec<PublishedPort>, Capabilities),
) -> Result<BridgeAttachment, NetworkError> {
    let mut attachment = BridgeAttachment {
        id: name.to_owned(),
        boot_id: boot_id.to_owned(),
        network: network.name.clone(),
        interface: network.interface.clone(),
        device: String::new(),
        number: 0,
        addresses: Vec::new(),
        gateways: network.gateways().iter().map(|gateway| gateway.ip).collect(),
        ports,
        asked,
        is_leaving: false,
    };
    pool::make_dir(host, &network.name)
        .and_then(|()| {
            pool::lease(host, &network.name, &network.numbers(), name, |number| {
                attachment.number = number;
                attachment.device = format!("{}{number:x}", device_prefix(&network.interface));
                attachment.addresses = network.addresses(number);
                store::write(host, name, &Stored::Bridge(attachment.clone()), Durability::Unsynced)
            })
        })
        .map_err(|error| NetworkError::System("cannot lease addresses", error))?
        .ok_or_else(|| NetworkError::Full(network.capacity()))?;
    Ok(attachment)
}

/// Returns true if at least `count` addresses of a network are free.
pub(super) fn has_free(host: &Host, network: &BridgeNetwork, count: usize) -> bool {
    let leased = pool::count(host, &network.name).unwrap_or(usize::MAX);
    leased.saturating_add(count) <= network.capacity() as usize
}

/// Returns the common prefix of the names of a bridge's ports.
fn device_prefix(interface: &str) -> String {
    format!("{DEVICE_PREFIX}{}", &hex::encode(Sha256::digest(interface))[..DEVICE_DIGITS])
}

/// Detaches a container. After an error, this function can be called again.
///
/// # Errors
/// Returns a description of the failure if the container cannot be detached.
pub(super) fn detach(host: &Host, attachment: &BridgeAttachment) -> Result<(), String> {
    let failed = |what: &'static str| {
        move |error: io::Error| format!("network `{}`: {what}: {}", attachment.network, crate::errors::plain(&error))
    };
    // Interfaces and rules can exist only if the container has the lease.
    let has_lease = identity::boot_id().is_ok_and(|boot| boot == attachment.boot_id)
        && pool::owner(host, &attachment.network, attachment.number)
            .map_err(failed("cannot read the address leases"))?
            .is_some_and(|owner| owner == attachment.id);
    if has_lease {
        if !attachment.is_leaving {
            leave(host, attachment)?;
        }
        if attachment.is_leaving || !attachment.ports.is_empty() {
            rules::delete_loopback_answers(attachment).map_err(failed("cannot delete nf_tables rules"))?;
        }
        link::remove(&attachment.device).map_err(failed("cannot remove the interface of the container"))?;
        for address in &attachment.addresses {
            let udp =
                rules::has_udp(&attachment.interface, address.ip).map_err(failed("cannot read nf_tables rules"))?;
            if udp != (false, false) {
                conntrack::delete_address(address.ip, udp).map_err(failed("cannot delete tracked connections"))?;
                rules::delete_udp(&attachment.interface, address.ip)
                    .map_err(failed("cannot delete nf_tables rules"))?;
            }
        }
    }
    let _lock = store::lock(host).map_err(failed("cannot lock the state directory"))?;
    pool::release(host, &attachment.network, attachment.number, &attachment.id)
        .and_then(|()| store::remove(host, &attachment.id, &attachment.asked))
        .map_err(failed("cannot release the addresses"))
}

/// Frees the published ports of an exited container by deleting its map elements. [`detach`] removes the other
/// resources, and takes longer.
///
/// # Errors
/// Returns a description of the failure if a step fails.
pub(super) fn leave(host: &Host, attachment: &BridgeAttachment) -> Result<(), String> {
    let failed = |what: &'static str| {
        move |error: io::Error| format!("network `{}`: {what}: {}", attachment.network, crate::errors::plain(&error))
    };
    // `make` holds this lock too, and creates no rules for containers that are leaving.
    let _lock = store::lock(host).map_err(failed("cannot lock the state directory"))?;
    match rules::delete(attachment) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {} // the tables were deleted
        deleted => deleted.map_err(failed("cannot delete nf_tables rules"))?,
    }
    let leaving =
        BridgeAttachment { ports: Vec::new(), asked: Capabilities::default(), is_leaving: true, ..attachment.clone() };
    store::write(host, &attachment.id, &Stored::Bridge(leaving), Durability::Unsynced)
        .and_then(|()| store::free_ports(host, &attachment.id, &attachment.asked))
        .map_err(failed("cannot write the stored network data"))
}

/// Creates or repairs the bridge of a network and its tables, and returns the bridge.
fn make(host: &Host, network: &BridgeNetwork) -> Result<link::FoundLink, NetworkError> {
    let system = |what: &'static str| move |error: io::Error| NetworkError::System(what, error);
    let _lock = store::lock(host).map_err(system("cannot lock the state directory"))?;
    let (name, alias) = (&network.interface, alias(host, network));
    let containers = attachments(host, &network.name).map_err(system("cannot read the stored network data"))?;
    let mut found = link::find(name).map_err(system("cannot find the interface of the network"))?;
    if let Some(other) = found.as_ref().filter(|found| found.alias != alias) {
        if !is_own(host, network, other) {
            return Err(NetworkError::ForeignInterface(name.clone(), network.name.clone()));
        }
        if containers.iter().any(|container| !container.is_of(network)) {
            return Err(NetworkError::Changed(network.name.clone()));
        }
    }
    // The configuration has changed, or the interface is down. When an interface goes down, the kernel removes the
    // interface's IPv6 addresses.
    if found.take_if(|found| found.alias != alias || !found.is_up).is_some() {
        link::remove(name).map_err(system("cannot remove the interface of the network"))?;
    }
    if found.is_none() {
        let routes = link::routes().map_err(system("cannot read the routes of the host"))?;
        for pool in network.pools() {
            if let Some(route) = link::overlapping(&routes, pool) {
                let (key, interface) =
                    (if pool.addr().is_ipv4() { "ipv4" } else { "ipv6" }, link::interface_name(route.interface));
                return Err(NetworkError::Overlap {
                    pool,
                    route: route.destination,
                    interface,
                    key: format!("networks.{}.{key}", network.name),
                });
            }
        }
        let mtu = match network.mtu {
            Some(mtu) => mtu,
            None => link::uplink_mtu(&routes).map_err(system("cannot read the MTU of the host's default route"))?,
        };
        let gateways = network.gateways();
        // The full description is set last. If this attempt is interrupted, the next attempt recreates the bridge.
        let incomplete = owner_prefix(host, network);
        let index = link::make_bridge(name, &incomplete, mtu, (hardware(&gateways), &gateways))
            .and_then(|index| set_up(host, network, index).map(|()| index))
            .and_then(|index| link::describe(name, &alias).map(|()| index))
            .map_err(system("cannot create the interface of the network"))?;
        for container in &containers {
            if let Err(error) = link::attach_port(&container.device, index)
                && error.raw_os_error() != Some(libc::ENODEV)
            {
                let why =
                    format_args!("the container's interface cannot be attached to the bridge {name} again: {error}");
                log::line(Level::Error, &container.id, why);
            }
        }
        for warning in warnings(host, network) {
            log::line(Level::Warning, "", format_args!("network `{}`: {warning}", network.name));
        }
    }
    rules::replace(network, &containers).map_err(NetworkError::Rules)?;
    for container in containers.iter().filter(|container| !container.ports.is_empty()) {
        let exists =
            link::find(&container.device).map_err(system("cannot find the interface of the container"))?.is_some();
        if exists {
            publish(host, network, container)?;
        }
    }
    let made = link::find(name).map_err(system("cannot find the interface of the network"))?;
    made.ok_or_else(|| NetworkError::System("cannot find the interface of the network", io::ErrorKind::NotFound.into()))
}

fn set_up(host: &Host, network: &BridgeNetwork, index: u32) -> io::Result<()> {
    let name = &network.interface;
    // The host ignores router advertisements of containers.
    write_setting(host, &format!("net/ipv6/conf/{name}/accept_ra"), "0")?;
    // Use the link-local address immediately. Without it, neighbour discovery of containers fails for packets from
    // other networks.
    write_setting(host, &format!("net/ipv6/conf/{name}/accept_dad"), "0")?;
    // Connections from 127.0.0.1 to published ports leave through the bridge. Rules drop packets from the bridge's
    // ports to 127.0.0.0/8.
    write_setting(host, &format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
    if let Some(alias) = network.loopback_alias() {
        link::add_deprecated(index, alias)?;
    }
    Ok(())
}

/// Returns a warning for each setting of this host that blocks packets between a network and other hosts.
fn warnings(host: &Host, network: &BridgeNetwork) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, has) in
        [("net.ipv4.ip_forward", network.ipv4.is_some()), ("net.ipv6.conf.all.forwarding", network.ipv6.is_some())]
    {
        if has && sysctl::read(host.proc.as_fd(), &name.replace('.', "/")).is_ok_and(|value| value.trim() == "0") {
            warnings.push(format!("{name} is 0, so containers reach only this host and each other; set it to 1"));
        }
    }
    const FORWARD: u32 = 2;
    let chains = nft::chains().unwrap_or_default();
    for chain in chains {
        let forwards = chain.drops && chain.hook == Some(FORWARD);
        let family = match chain.family {
            1 => "inet",
            2 => "ip",
            10 => "ip6",
            _ => continue,
        };
        if forwards {
            let (table, name, interface) = (chain.table, chain.name, &network.interface);
            warnings.push(format!(
                "chain {name} of the nf_tables table `{family} {table}` drops forwarded packets that none of its rules \
                 accepts; let the chain accept packets from and to interface {interface}"
            ));
        }
    }
    warnings
}

/// Returns the current state of a network, with warnings.
pub(super) fn describe(host: &Host, network: &BridgeNetwork) -> (ListedBridge, Vec<String>) {
    let mut warnings = warnings(host, network);
    let mut warn = |what: &str, error: io::Error| warnings.push(format!("{what}: {}", crate::errors::plain(&error)));
    let found = link::find(&network.interface).unwrap_or_else(|error| {
        warn("cannot find the interface of the network", error);
        None
    });
    let leased = pool::count(host, &network.name).unwrap_or_else(|error| {
        warn("cannot count the leases of the network", error);
        0
    });
    let exists = found.as_ref().is_some_and(|found| found.alias == alias(host, network));
    if let Some(other) = found.as_ref().filter(|_| !exists) {
        if !is_own(host, network, other) {
            warnings.push(NetworkError::ForeignInterface(network.interface.clone(), network.name.clone()).to_string());
        } else if attachments(host, &network.name).is_ok_and(|all| all.iter().any(|one| !one.is_of(network))) {
            // Without such containers, the next container replaces the interface.
            warnings.push(NetworkError::Changed(network.name.clone()).to_string());
        }
    }
    let mtu = network.mtu.or_else(|| found.filter(|_| exists).map(|found| found.mtu));
    let bridge = ListedBridge {
        interface: network.interface.clone(),
        interface_exists: exists,
        subnets: network.pools().map(|pool| pool.to_string()).collect(),
        gateways: network.gateways().iter().map(|gateway| gateway.ip.to_string()).collect(),
        mtu: mtu.unwrap_or_default(),
        addresses: network.capacity(),
        leased: u32::try_from(leased).unwrap_or(u32::MAX),
    };
    (bridge, warnings)
}

/// Returns the alias of a network's interface, which identifies this executor and the network's configuration.
fn alias(host: &Host, network: &BridgeNetwork) -> String {
    let pools: Vec<String> = network.pools().map(|pool| pool.to_string()).collect();
    let mtu = network.mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
    let mut alias = format!("{}{}{mtu}", owner_prefix(host, network), pools.join(", "));
    alias.truncate(alias.floor_char_boundary(ALIAS_MAX));
    alias
}

/// Returns true if this executor created the interface for the network, possibly with an earlier configuration.
fn is_own(host: &Host, network: &BridgeNetwork, found: &link::FoundLink) -> bool {
    found.is_bridge && found.alias.starts_with(&owner_prefix(host, network))
}

/// Returns the part of the interface's alias that does not depend on the network's configuration.
fn owner_prefix(host: &Host, network: &BridgeNetwork) -> String {
    let installation =
        &hex::encode(Sha256::digest(host.state_dir.as_os_str().as_encoded_bytes()))[..INSTALLATION_DIGITS];
    format!("executor {installation}, network {}: ", network.name)
}

/// Returns the containers and warm containers on a network, except containers that are leaving it.
fn attachments(host: &Host, network: &str) -> io::Result<Vec<BridgeAttachment>> {
    let mut found = Vec::new();
    for (number, name) in pool::leases(host, network)? {
        // A record that cannot be read is about to be removed.
        if let Ok(Some(Stored::Bridge(attachment))) = store::read(host, &name)
            && attachment.network == network
            && attachment.number == number
            && !attachment.is_leaving
        {
            found.push(attachment);
        }
    }
    Ok(found)
}

/// Releases leases without a container. Recreates the tables of the remaining containers. Removes the interfaces and
/// tables of unused networks.
pub(super) fn sweep(host: &Host) {
    let failed = |network: &str, why: &dyn std::fmt::Display| {
        log::line(Level::Error, "", format_args!("network `{network}`: {why}"));
    };
    let names: BTreeSet<String> = store::names(host).into_iter().collect();
    for network in pool::networks(host) {
        for (number, owner) in pool::leases(host, &network).unwrap_or_default() {
            if !names.contains(&owner)
                && let Err(error) = pool::release(host, &network, number, &owner)
            {
                failed(&network, &error);
            }
        }
        match host.networks.get(&network).filter(|_| is_in_use(host, &network)) {
            Some(configured) => {
                if let Err(trouble) = make(host, configured) {
                    failed(&network, &trouble);
                }
            }
            None => remove_unused(host, &network),
        }
    }
}

/// Removes the interfaces and tables of networks without containers.
pub(super) fn remove_all_unused(host: &Host) {
    for network in pool::networks(host) {
        remove_unused(host, &network);
    }
}

fn remove_unused(host: &Host, network: &str) {
    let Ok(_lock) = store::lock(host) else { return };
    let Some(configured) = host.networks.get(network) else { return };
    if is_in_use(host, network) {
        return;
    }
    let removed = match link::find(&configured.interface) {
        Ok(Some(found)) if found.alias.starts_with(&owner_prefix(host, configured)) => {
            rules::remove(&configured.interface).and_then(|()| link::remove(&configured.interface))
        }
        found => found.map(drop),
    };
    if let Err(error) = removed {
        log::line(Level::Error, "", format_args!("network `{network}` cannot be removed: {error}"));
    }
}

/// Returns true if a network has a container, or if this cannot be determined.
fn is_in_use(host: &Host, network: &str) -> bool {
    attachments(host, network).map_or(true, |containers| !containers.is_empty())
}

/// Writes a setting of the calling process's network namespace. Ignores settings that the kernel does not have, for
/// example without IPv6.
fn write_setting(host: &Host, path: &str, value: &str) -> io::Result<()> {
    match sysctl::write(host.proc.as_fd(), path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}
