//! Defines the steps of nf_tables rules, and encodes the steps as expressions.

use std::net::{IpAddr, Ipv6Addr};

use crate::network::netlink::{attribute, nested, number_be, text};

/// Values of `AF_INET` and `AF_INET6`, which nf_tables uses as family numbers.
pub(in crate::network) const IPV4: u8 = 2;
pub(in crate::network) const IPV6: u8 = 10;
/// The only 16-byte register in use. This register overlaps the first four 4-byte registers.
const REGISTER: u32 = 1;
/// First 4-byte register for the fields of a lookup.
const FIELDS: u32 = 8;
/// First 4-byte register for the value that a map returns.
const FOUND: u32 = 16;
/// Burst of a rate limit, in packets.
const BURST: u32 = 5;

/// A field of a packet, loaded for a lookup. Each field starts at a 4-byte register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::network) enum Field {
    /// Name of the packet's incoming interface.
    InputName,
    /// Source address of the Ethernet frame.
    FrameSource,
    Ipv4Source,
    Ipv4Destination,
    Ipv6Source,
    Ipv6Destination,
    TransportProtocol,
    DestinationPort,
    /// Hardware address of the sender of an ARP packet.
    ArpSenderHardware,
    ArpSenderAddress,
    /// Target address of a neighbour solicitation or advertisement.
    NeighbourTarget,
}

impl Field {
    /// Returns the number of 4-byte registers of the field.
    pub(super) fn registers(self) -> u32 {
        match self {
            Self::InputName | Self::Ipv6Source | Self::Ipv6Destination | Self::NeighbourTarget => 4,
            Self::FrameSource | Self::ArpSenderHardware => 2,
            Self::Ipv4Source
            | Self::Ipv4Destination
            | Self::TransportProtocol
            | Self::DestinationPort
            | Self::ArpSenderAddress => 1,
        }
    }

    /// Returns the type number that `nft` uses for the field.
    pub(super) fn datatype(self) -> u32 {
        match self {
            Self::Ipv4Source | Self::Ipv4Destination | Self::ArpSenderAddress => 7,
            Self::Ipv6Source | Self::Ipv6Destination | Self::NeighbourTarget => 8,
            Self::FrameSource | Self::ArpSenderHardware => 9,
            Self::TransportProtocol => 12,
            Self::DestinationPort => 13,
            Self::InputName => 41,
        }
    }

    fn load(self, register: u32) -> Vec<u8> {
        const LINK: u32 = 0;
        const NETWORK: u32 = 1;
        const TRANSPORT: u32 = 2;
        let payload = |base, offset, length| {
            let place = [number_be(1, register), number_be(2, base), number_be(3, offset), number_be(4, length)];
            expression("payload", &place)
        };
        let meta = |key| expression("meta", &[number_be(1, register), number_be(2, key)]);
        match self {
            Self::InputName => meta(6),
            Self::TransportProtocol => meta(16),
            Self::FrameSource => payload(LINK, 6, 6),
            Self::Ipv4Source => payload(NETWORK, 12, 4),
            Self::Ipv4Destination => payload(NETWORK, 16, 4),
            Self::Ipv6Source => payload(NETWORK, 8, 16),
            Self::Ipv6Destination => payload(NETWORK, 24, 16),
            Self::ArpSenderHardware => payload(NETWORK, 8, 6),
            Self::ArpSenderAddress => payload(NETWORK, 14, 4),
            Self::DestinationPort => payload(TRANSPORT, 2, 2),
            Self::NeighbourTarget => payload(TRANSPORT, 8, 16),
        }
    }
}

/// A step of a rule. A rule stops at the first step that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::network) enum Step {
    /// Matches the outgoing interface by its index.
    Interface(u32),
    /// Matches packets by the name of their incoming interface.
    InputName(String, Matching),
    /// Matches packets by the name of their outgoing interface.
    OutputName(String, Matching),
    /// Matches packets by a prefix of the name of their incoming interface.
    InputPrefix(String, Matching),
    /// Matches packets with this EtherType.
    EtherType(u16),
    /// Matches packets of this address family.
    Family(u8),
    /// Matches packets with this transport protocol.
    Transport(u8),
    /// Matches if the connection's state is one of the states in this bit mask.
    State(u32),
    /// Matches if the connection's destination was translated.
    IsDestinationTranslated,
    /// Matches if the destination is an address of this host.
    IsDestinationLocal,
    /// Matches packets whose fields are an element of the set, or all other packets (see [`Matching`]).
    Lookup(&'static [Field], &'static str, Matching),
    /// Adds the field to the set.
    Add(Field, &'static str),
    /// Matches packets that exceed this rate per second for the same fields. The set must come from
    /// [`super::Batch::make_counters`].
    Exceeds(&'static [Field], &'static str, u64),
    /// Translates the destination to the address and port in the map. Matches if the map has an element for the fields.
    TranslateDestination(u8, &'static [Field], &'static str),
    /// Translates the source to an address of the outgoing interface.
    Masquerade,
    /// Translates the source to this address.
    TranslateSource(Ipv6Addr),
    /// Sets the frame's destination to the hardware address of the loopback interface, which is zero.
    AddressFrameToLoopback,
    /// Moves the packet to the ingress of the interface with this index.
    MoveTo(u32),
    /// Matches bytes of the network header under a mask.
    Header {
        offset: u32,
        value: Vec<u8>,
        mask: Vec<u8>,
    },
    /// Matches the first byte of the transport header: the ICMP type.
    Kind(u8),
    /// Matches the second byte of the transport header: the ICMP code.
    Code(u8),
    /// Matches if bytes of the network header are in this range, inclusive.
    HeaderRange {
        offset: u32,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// Matches if the destination port is in this range, inclusive.
    Ports(u16, u16),
    /// Matches at most this many packets per second.
    Limit(u64),
    /// Writes the packet to the kernel log with this prefix, and continues.
    Log(String),
    Accept,
    /// Drops the packet without a reply.
    Drop,
    /// Rejects the packet. The sending process gets the ICMP error "administratively prohibited".
    Reject,
}

/// Selects whether a step matches the named value or every other value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::network) enum Matching {
    This,
    Other,
}

/// The address of a packet to match: source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::network) enum Side {
    Source,
    Destination,
}

impl Side {
    /// Returns the offset of the address in the network header.
    pub(in crate::network) fn offset(self, is_ipv4: bool) -> u32 {
        match (self, is_ipv4) {
            (Self::Source, true) => 12,
            (Self::Destination, true) => 16,
            (Self::Source, false) => 8,
            (Self::Destination, false) => 24,
        }
    }
}

impl Step {
    /// Returns a step that matches packets whose address is in a network. An earlier step must match the family.
    pub(in crate::network) fn address(side: Side, network: IpAddr, prefix: u8) -> Self {
        let mask = |bits: u32| u128::MAX.checked_shl(bits - u32::from(prefix)).unwrap_or(0);
        let (value, mask) = match network {
            IpAddr::V4(ip) => (ip.octets().to_vec(), (mask(32) as u32).to_be_bytes().to_vec()),
            IpAddr::V6(ip) => (ip.octets().to_vec(), mask(128).to_be_bytes().to_vec()),
        };
        Self::Header { offset: side.offset(network.is_ipv4()), value, mask }
    }
}

/// State bit: packets of an established connection.
pub(in crate::network) const ESTABLISHED: u32 = 1 << 1;
/// State bit: packets about an established connection, such as ICMP errors.
pub(in crate::network) const RELATED: u32 = 1 << 2;

/// Encodes a step as nf_tables expressions.
pub(super) fn expressions(step: &Step) -> Vec<Vec<u8>> {
    const EQUAL: u32 = 0;
    const UNEQUAL: u32 = 1;
    const AT_MOST: u32 = 3;
    const AT_LEAST: u32 = 5;
    const CT_STATUS: u32 = 2;
    const PACKET_TYPE: u32 = 19;
    const TO_HOST: u8 = 0;
    const DESTINATION_TRANSLATED: u32 = 1 << 5;
    /// Attribute values that test whether the destination is a local address.
    const ADDRESS_TYPE: u32 = 3;
    const OF_DESTINATION: u32 = 1 << 1;
    const LOCAL: u32 = 2;
    const SOURCE: u32 = 0;
    const DESTINATION: u32 = 1;
    let compare = |operator, value: &[u8]| {
        expression("cmp", &[number_be(1, REGISTER), number_be(2, operator), nested(3, &[attribute(1, value)])])
    };
    let meta = |key: u32, value: &[u8]| {
        vec![expression("meta", &[number_be(1, REGISTER), number_be(2, key)]), compare(EQUAL, value)]
    };
    let load = |base: u32, offset: u32, length: u32| {
        expression("payload", &[number_be(1, REGISTER), number_be(2, base), number_be(3, offset), number_be(4, length)])
    };
    let mask = |mask: &[u8]| {
        let zero = vec![0; mask.len()];
        let bits = [nested(4, &[attribute(1, mask)]), nested(5, &[attribute(1, &zero)])].concat();
        let length = number_be(3, mask.len() as u32);
        expression("bitwise", &[number_be(1, REGISTER), number_be(2, REGISTER), length, bits])
    };
    let named = |key: u32, name: &str, matching: Matching| {
        let mut padded = [0; 16];
        let length = name.len().min(padded.len() - 1);
        padded[..length].copy_from_slice(&name.as_bytes()[..length]);
        let operator = if matching == Matching::This { EQUAL } else { UNEQUAL };
        vec![expression("meta", &[number_be(1, REGISTER), number_be(2, key)]), compare(operator, &padded)]
    };
    let between = |load: Vec<u8>, first: &[u8], last: &[u8]| {
        if first == last {
            return vec![load, compare(EQUAL, first)];
        }
        vec![load, compare(AT_LEAST, first), compare(AT_MOST, last)]
    };
    let verdict = |code: u32| {
        let verdict = nested(2, &[nested(2, &[number_be(1, code)])]);
        vec![expression("immediate", &[number_be(1, 0), verdict])]
    };
    match step {
        Step::Interface(index) => meta(5, &index.to_ne_bytes()),
        Step::Family(family) => meta(15, &[*family]),
        Step::Transport(protocol) => meta(16, &[*protocol]),
        Step::State(bits) => vec![
            expression("ct", &[number_be(1, REGISTER), number_be(2, 0)]),
            mask(&bits.to_ne_bytes()),
            compare(UNEQUAL, &0u32.to_ne_bytes()),
        ],
        Step::InputName(name, matching) => named(6, name, *matching),
        Step::OutputName(name, matching) => named(7, name, *matching),
        Step::InputPrefix(prefix, matching) => {
            let operator = if *matching == Matching::This { EQUAL } else { UNEQUAL };
            vec![expression("meta", &[number_be(1, REGISTER), number_be(2, 6)]), compare(operator, prefix.as_bytes())]
        }
        Step::EtherType(kind) => meta(1, &kind.to_be_bytes()),
        Step::IsDestinationTranslated => vec![
            expression("ct", &[number_be(1, REGISTER), number_be(2, CT_STATUS)]),
            mask(&DESTINATION_TRANSLATED.to_ne_bytes()),
            compare(UNEQUAL, &0u32.to_ne_bytes()),
        ],
        Step::IsDestinationLocal => vec![
            expression("fib", &[number_be(1, REGISTER), number_be(2, ADDRESS_TYPE), number_be(3, OF_DESTINATION)]),
            compare(EQUAL, &LOCAL.to_ne_bytes()),
        ],
        Step::Lookup(fields, set, matching) => {
            let mut steps = loads(fields);
            let inverted = number_be(5, u32::from(*matching == Matching::Other));
            steps.push(expression("lookup", &[text(1, set), number_be(2, FIELDS), inverted]));
            steps
        }
        Step::Add(field, set) => {
            vec![field.load(FIELDS), expression("dynset", &[text(1, set), number_be(3, 0), number_be(4, FIELDS)])]
        }
        Step::Exceeds(fields, set, a_second) => {
            const UPDATE: u32 = 1;
            const BEYOND: u32 = 1;
            let mut steps = loads(fields);
            let (rate, unit) = (attribute(1, &a_second.to_be_bytes()), attribute(2, &1u64.to_be_bytes()));
            let limits = [rate, unit, number_be(3, *a_second as u32), number_be(4, 0), number_be(5, BEYOND)];
            let each = nested(7, &[expression("limit", &limits)]);
            steps.push(expression("dynset", &[text(1, set), number_be(3, UPDATE), number_be(4, FIELDS), each]));
            steps
        }
        Step::TranslateDestination(family, fields, map) => {
            let address = if *family == IPV4 { 1 } else { 4 };
            let mut steps = loads(fields);
            steps.push(expression("lookup", &[text(1, map), number_be(2, FIELDS), number_be(3, FOUND)]));
            let to = [number_be(3, FOUND), number_be(5, FOUND + address)].concat();
            steps.push(expression("nat", &[number_be(1, DESTINATION), number_be(2, u32::from(*family)), to]));
            steps
        }
        Step::Masquerade => vec![expression("masq", &[])],
        Step::TranslateSource(address) => vec![
            immediate(&address.octets()),
            expression("nat", &[number_be(1, SOURCE), number_be(2, u32::from(IPV6)), number_be(3, REGISTER)]),
        ],
        Step::AddressFrameToLoopback => vec![
            immediate(&[0; 6]),
            expression(
                "payload",
                &[number_be(5, REGISTER), number_be(2, 0), number_be(3, 0), number_be(4, 6), number_be(6, 0)],
            ),
            // The kernel has already classified the frame by its original destination address.
            immediate(&[TO_HOST]),
            expression("meta", &[number_be(3, REGISTER), number_be(2, PACKET_TYPE)]),
        ],
        Step::MoveTo(interface) => {
            vec![immediate(&interface.to_ne_bytes()), expression("fwd", &[number_be(1, REGISTER)])]
        }
        Step::Header { offset, value, mask: bits } => {
            let masked: Vec<u8> = value.iter().zip(bits).map(|(value, bit)| value & bit).collect();
            vec![load(1, *offset, value.len() as u32), mask(bits), compare(EQUAL, &masked)]
        }
        Step::Kind(kind) => vec![load(2, 0, 1), compare(EQUAL, &[*kind])],
        Step::Code(code) => vec![load(2, 1, 1), compare(EQUAL, &[*code])],
        Step::HeaderRange { offset, first, last } => between(load(1, *offset, first.len() as u32), first, last),
        Step::Ports(first, last) => between(load(2, 2, 2), &first.to_be_bytes(), &last.to_be_bytes()),
        Step::Limit(a_second) => {
            let (rate, unit) = (attribute(1, &a_second.to_be_bytes()), attribute(2, &1u64.to_be_bytes()));
            vec![expression("limit", &[rate, unit, number_be(3, BURST), number_be(4, 0), number_be(5, 0)])]
        }
        Step::Log(prefix) => vec![expression("log", &[text(2, prefix)])],
        Step::Accept => verdict(1),
        Step::Drop => verdict(0),
        // This ICMP code, for IPv4 and IPv6, means that the packet is administratively prohibited.
        Step::Reject => vec![expression("reject", &[number_be(1, 2), attribute(2, &[3])])],
    }
}

fn expression(name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    [text(1, name), nested(2, parts)].concat()
}

/// Returns the expressions that load fields into registers, one after the other.
fn loads(fields: &[Field]) -> Vec<Vec<u8>> {
    let mut register = FIELDS;
    let mut steps = Vec::new();
    for field in fields {
        steps.push(field.load(register));
        register += field.registers();
    }
    steps
}

/// Returns an expression that writes a value into the register.
fn immediate(value: &[u8]) -> Vec<u8> {
    expression("immediate", &[number_be(1, REGISTER), nested(2, &[attribute(1, value)])])
}
