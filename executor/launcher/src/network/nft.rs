//! Changes nf_tables over netlink: the subset that [`super::egress`] and the built-in bridge networks need.
//!
//! `nft` and `iptables` need not be installed. The changes of a batch take effect together or not at all. Numbers
//! are from `linux/netfilter/nf_tables.h`.

mod step;

use std::io;

use super::netlink::{
    ACKNOWLEDGE, NETFILTER_SUBSYSTEM_NFTABLES as SUBSYSTEM, NetlinkSocket, attribute, nested, netfilter_message,
    number_be, text,
};
use step::expressions;
pub(super) use step::{ESTABLISHED, Field, IPV4, IPV6, Matching, RELATED, Side, Step};

/// Flags in the header of an nf_tables message.
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;

/// Number of bits for each field's type in the type of a set.
const TYPE_BITS: u32 = 6;

/// Family of a table, which determines the packets that the table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// IPv4 and IPv6 packets.
    Inet = 1,
    /// Packets that enter through one interface.
    Netdev = 5,
    /// Frames of bridges.
    Bridge = 7,
}

/// Hook of a base chain.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    /// Received packets, before routing.
    Prerouting,
    /// Packets to local processes.
    Input,
    /// Forwarded packets.
    Forward,
    /// Packets from local processes.
    Output,
    /// Packets to be sent, after routing.
    Postrouting,
    /// Packets received by the chain's interface (family netdev).
    Ingress,
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Self::Prerouting | Self::Ingress => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

/// Type of a chain, and its priority among the chains of the same hook.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChainKind {
    Filter(i32),
    Nat(i32),
}

/// Verdict for a packet that reaches the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainPolicy {
    Drop = 0,
    Accept = 1,
}

/// A base chain.
#[derive(Clone, Debug)]
pub(super) struct Chain<'a> {
    pub name: &'a str,
    pub hook: Hook,
    pub kind: ChainKind,
    pub policy: ChainPolicy,
    /// Interface of an ingress chain.
    pub device: Option<&'a str>,
}

/// Creates a table with these chains, whose policy is drop, in the network namespace of the calling process. If the
/// chains exist, replaces their rules.
///
/// # Errors
/// Returns the kernel's first error if the kernel refuses the request; nothing is changed.
pub(super) fn replace_rules(table: &str, chains: &[(&str, Hook, Vec<Vec<Step>>)]) -> io::Result<()> {
    let mut batch = Batch::new(Family::Inet, table);
    batch.make_table();
    for (name, hook, _) in chains {
        let (kind, policy) = (ChainKind::Filter(0), ChainPolicy::Drop);
        batch.make_chain(&Chain { name, hook: *hook, kind, policy, device: None });
    }
    chains.iter().for_each(|(name, ..)| batch.delete_rules(name));
    for (name, _, rules) in chains {
        rules.iter().for_each(|rule| batch.add_rule(name, rule));
    }
    batch.commit(&NetlinkSocket::netfilter()?)
}

/// Changes that take effect together or not at all.
pub(super) struct Batch {
    family: Family,
    table: String,
    /// Type, flags, family and body of each message.
    messages: Vec<(u16, u16, Family, Vec<u8>)>,
    sets: u32,
}

impl Batch {
    /// Returns an empty batch for a table.
    pub(super) fn new(family: Family, table: &str) -> Self {
        Self { family, table: table.to_owned(), messages: Vec::new(), sets: 0 }
    }

    /// Makes later changes apply to the table of another family with the same name.
    pub(super) fn switch_to(&mut self, family: Family) {
        self.family = family;
    }

    fn push(&mut self, kind: u16, flags: u16, body: Vec<u8>) {
        self.messages.push((kind, flags, self.family, body));
    }

    /// Creates the table if it does not exist.
    pub(super) fn make_table(&mut self) {
        self.push(NEW_TABLE, CREATE, text(1, &self.table));
    }

    /// Deletes the table with its content, if it exists.
    pub(super) fn delete_table(&mut self) {
        self.make_table(); // deleting a missing table is an error
        self.push(DELETE_TABLE, 0, text(1, &self.table));
    }

    /// Creates a base chain if it does not exist.
    pub(super) fn make_chain(&mut self, chain: &Chain<'_>) {
        let (kind, priority) = match chain.kind {
            ChainKind::Filter(priority) => ("filter", priority),
            ChainKind::Nat(priority) => ("nat", priority),
        };
        let mut place = vec![number_be(1, chain.hook.number()), attribute(2, &priority.to_be_bytes())];
        place.extend(chain.device.map(|device| text(3, device)));
        let policy = number_be(5, chain.policy as u32);
        let body = [text(1, &self.table), text(3, chain.name), nested(4, &place), policy, text(7, kind)].concat();
        self.push(NEW_CHAIN, CREATE, body);
    }

    /// Deletes a chain with its rules, if it exists.
    pub(super) fn delete_chain(&mut self, chain: &str) {
        let body = [text(1, &self.table), text(3, chain)].concat();
        self.push(NEW_CHAIN, CREATE, body.clone()); // deleting a missing chain is an error
        self.delete_rules(chain);
        self.push(DELETE_CHAIN, 0, body);
    }

    pub(super) fn delete_rules(&mut self, chain: &str) {
        self.push(DELETE_RULE, 0, [text(1, &self.table), text(2, chain)].concat()); // no handle: delete all rules
    }

    pub(super) fn add_rule(&mut self, chain: &str, rule: &[Step]) {
        let steps: Vec<Vec<u8>> = rule.iter().flat_map(expressions).map(|one| nested(1, &[one])).collect();
        let body = [text(1, &self.table), text(2, chain), nested(4, &steps)].concat();
        self.push(NEW_RULE, CREATE | APPEND, body);
    }

    /// Creates a set with these key fields, or a map if `values` are given.
    pub(super) fn make_set(&mut self, name: &str, fields: &[Field], values: Option<&[Field]>) {
        const MAP: u32 = 8;
        self.make_any_set(name, fields, values, (if values.is_some() { MAP } else { 0 }, &[]));
    }

    /// Creates a set with these key fields, to which rules add elements. `elements` is the maximum number of elements.
    pub(super) fn make_dynamic_set(&mut self, name: &str, fields: &[Field], elements: u32) {
        const DYNAMIC: u32 = 0x20;
        self.make_any_set(name, fields, None, (DYNAMIC, &[nested(9, &[number_be(1, elements)])]));
    }

    fn make_any_set(
        &mut self,
        name: &str,
        fields: &[Field],
        values: Option<&[Field]>,
        (flags, more): (u32, &[Vec<u8>]),
    ) {
        self.sets += 1;
        let bytes = |fields: &[Field]| fields.iter().map(|field| field.registers() * 4).sum();
        // The kernel ignores the types, but `nft` needs them to print a set and to load it again.
        let datatype = |fields: &[Field]| fields.iter().fold(0, |all, field| all << TYPE_BITS | field.datatype());
        let mut body = vec![text(1, &self.table), text(2, name), number_be(3, flags)];
        body.extend([number_be(4, datatype(fields)), number_be(5, bytes(fields))]);
        if let Some(values) = values {
            body.extend([number_be(6, datatype(values)), number_be(7, bytes(values))]);
        }
        body.push(number_be(10, self.sets));
        body.extend_from_slice(more);
        self.push(NEW_SET, CREATE, body.concat());
    }

    /// Creates a set that counts packets by the fields. An element expires five seconds after its last packet.
    pub(super) fn make_counters(&mut self, name: &str, fields: &[Field]) {
        const EXPIRING_AND_DYNAMIC: u32 = 0x30;
        const ELEMENTS_MAX: u32 = 1 << 16;
        const EXPIRES_MS: u64 = 5000;
        let expires = attribute(11, &EXPIRES_MS.to_be_bytes());
        let size = nested(9, &[number_be(1, ELEMENTS_MAX)]);
        self.make_any_set(name, fields, None, (EXPIRING_AND_DYNAMIC, &[size, expires]));
    }

    /// Adds an element to a set or map. Does nothing if the element exists with the same value.
    pub(super) fn add_element(&mut self, set: &str, key: &[u8], value: Option<&[u8]>) {
        let body = self.element(set, key, value);
        self.push(NEW_ELEMENT, CREATE, body);
    }

    /// Deletes an element, if it exists. An existing element of a map must have this value.
    pub(super) fn delete_element(&mut self, set: &str, key: &[u8], value: Option<&[u8]>) {
        self.add_element(set, key, value); // deleting a missing element is an error
        let body = self.element(set, key, None);
        self.push(DELETE_ELEMENT, 0, body);
    }

    fn element(&self, set: &str, key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
        let mut parts = vec![nested(1, &[attribute(1, key)])];
        parts.extend(value.map(|value| nested(2, &[attribute(1, value)])));
        [text(1, &self.table), text(2, set), nested(3, &[nested(1, &parts)])].concat()
    }

    /// Commits the changes through a socket of [`NetlinkSocket::netfilter`], in the socket's network namespace.
    ///
    /// # Errors
    /// Returns the kernel's first error if the kernel refuses the request; nothing is changed.
    pub(super) fn commit(&self, socket: &NetlinkSocket) -> io::Result<()> {
        if self.messages.is_empty() {
            return Ok(());
        }
        socket.send(&self.encode())?;
        // Only the last message requests an acknowledgement. Errors always precede the acknowledgement.
        socket.acknowledged(1)
    }

    fn encode(&self) -> Vec<u8> {
        const BEGIN: u16 = 0x10;
        const END: u16 = 0x11;
        let last = self.messages.len();
        let mut batch = netfilter_message(BEGIN, 0, (0, 0, SUBSYSTEM), &[]);
        for (sequence, (kind, flags, family, body)) in (1..).zip(&self.messages) {
            let flags = if sequence as usize == last { flags | ACKNOWLEDGE } else { *flags };
            let kind = SUBSYSTEM << 8 | kind;
            batch.extend(netfilter_message(kind, flags, (sequence, *family as u8, 0), body));
        }
        batch.extend(netfilter_message(END, 0, (0, 0, SUBSYSTEM), &[]));
        batch
    }
}

/// Returns true if a set has this element, and false if there is no such element, set or table.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request for another reason.
pub(super) fn has_element(
    socket: &NetlinkSocket,
    (family, table): (Family, &str),
    set: &str,
    key: &[u8],
) -> io::Result<bool> {
    let body = Batch::new(family, table).element(set, key, None);
    match socket.get(&netfilter_message(SUBSYSTEM << 8 | GET_ELEMENT, 0, (1, family as u8, 0), &body)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true),
    }
}

/// A chain that exists in the network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundChain {
    /// Family number of the table in nf_tables.
    pub family: u8,
    pub table: String,
    pub name: String,
    /// Number of the hook, if the chain is a base chain.
    pub hook: Option<u32>,
    /// True if the chain drops packets that no rule accepts.
    pub drops: bool,
}

/// Returns all chains in the network namespace of this process.
///
/// # Errors
/// Returns an error if the kernel has no nf_tables.
pub(super) fn chains() -> io::Result<Vec<FoundChain>> {
    let request = netfilter_message(SUBSYSTEM << 8 | GET_CHAIN, super::netlink::DUMP, (1, 0, 0), &[]);
    let messages = super::netlink::dump(NetlinkSocket::netfilter, &request)?;
    let found = messages.iter().filter_map(|message| {
        let family = *message.first()?;
        let mut chain = FoundChain { family, table: String::new(), name: String::new(), hook: None, drops: false };
        for (kind, value) in super::netlink::attributes(message.get(4..)?) {
            match kind {
                1 => chain.table = super::netlink::text_of(value),
                3 => chain.name = super::netlink::text_of(value),
                4 => {
                    let hook = super::netlink::attributes(value).find(|(kind, _)| *kind == 1);
                    chain.hook = hook.and_then(|(_, number)| Some(u32::from_be_bytes(number.try_into().ok()?)));
                }
                5 => chain.drops = value == [0, 0, 0, 0],
                _ => {}
            }
        }
        Some(chain)
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_sequence_of_complete_messages() {
        let rules = [
            vec![Step::Interface(1), Step::Accept],
            vec![Step::Header { offset: 16, value: vec![10, 1, 0, 5], mask: vec![255, 255, 0, 0] }, Step::Accept],
            vec![Step::Reject],
        ];
        let mut batch = Batch::new(Family::Inet, "t");
        batch.make_table();
        for (name, hook) in [("output", Hook::Output), ("forward", Hook::Forward)] {
            let (kind, policy) = (ChainKind::Filter(0), ChainPolicy::Drop);
            batch.make_chain(&Chain { name, hook, kind, policy, device: None });
        }
        ["output", "forward"].iter().for_each(|name| batch.delete_rules(name));
        rules.iter().for_each(|rule| batch.add_rule("output", rule));
        let batch = batch.encode();
        let mut rest = &batch[..];
        let (mut kinds, mut acknowledged) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            kinds.push(u16::from_ne_bytes(rest[4..6].try_into().unwrap()));
            acknowledged.push(u16::from_ne_bytes(rest[6..8].try_into().unwrap()) & ACKNOWLEDGE != 0);
            rest = &rest[length..];
        }
        assert_eq!(kinds, [0x10, 0xa00, 0xa03, 0xa03, 0xa08, 0xa08, 0xa06, 0xa06, 0xa06, 0x11]);
        assert_eq!(acknowledged, [false, false, false, false, false, false, false, false, true, false]);
    }
}
