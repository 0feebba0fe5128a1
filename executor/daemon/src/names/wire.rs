//! Decodes queries and encodes responses (RFC 1035, RFC 6891). Every byte of a query is untrusted.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder};

/// Maximum size of a query, in bytes.
pub(super) const QUERY_MAX: usize = 1232;
/// Maximum size of a response over UDP without EDNS, in bytes.
const PLAIN_MAX: usize = 512;
/// Maximum size of a response over UDP with EDNS, in bytes. Forwarded queries offer the same size to servers.
const EDNS_MAX: u16 = 4096;
/// Maximum size of a response over TCP, in bytes.
const TCP_MAX: usize = 65_535;
/// Size of a DNS header, in bytes.
const HEADER: usize = 12;
/// Time for which clients may cache an address, in seconds.
const TTL: u32 = 5;

/// A query with one question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    id: u16,
    pub(super) query: Query,
    recursion_desired: bool,
    checking_disabled: bool,
    /// Fields of EDNS, if the client uses it: the maximum size of a UDP response in bytes, and true if the client wants
    /// DNSSEC records.
    edns: Option<(u16, bool)>,
}

/// Result for a packet that is not a valid query.
#[derive(Debug)]
pub(super) enum NoQuestion {
    /// The packet gets no response.
    Ignored,
    /// The packet gets this response, which reports an error.
    Answered(Vec<u8>),
}

impl NoQuestion {
    fn new(id: u16, code: OpCode, why: ResponseCode) -> Self {
        Message::error_msg(id, code, why).to_vec().map_or(Self::Ignored, Self::Answered)
    }
}

impl Question {
    /// Parses a query.
    ///
    /// # Errors
    /// Returns [`NoQuestion`] if the packet does not contain exactly one question of class IN.
    pub(super) fn parse(packet: &[u8]) -> Result<Self, NoQuestion> {
        if packet.len() > QUERY_MAX {
            return Err(NoQuestion::Ignored);
        }
        let header = Header::read(&mut BinDecoder::new(packet)).map_err(|_| NoQuestion::Ignored)?.metadata;
        // Responding to a response could cause a loop.
        if header.message_type != MessageType::Query {
            return Err(NoQuestion::Ignored);
        }
        let fault = |why| NoQuestion::new(header.id, header.op_code, why);
        if header.op_code != OpCode::Query {
            return Err(fault(ResponseCode::NotImp));
        }
        let message = Message::from_vec(packet).map_err(|_| fault(ResponseCode::FormErr))?;
        let edns = message.edns.as_ref();
        let [query] = &message.queries[..] else { return Err(fault(ResponseCode::FormErr)) };
        let question = Self {
            id: header.id,
            query: query.clone(),
            recursion_desired: header.recursion_desired,
            checking_disabled: header.checking_disabled,
            edns: edns.map(|edns| (edns.max_payload(), edns.flags().dnssec_ok)),
        };
        if edns.is_some_and(|edns| edns.version() > 0) {
            return Err(NoQuestion::Answered(question.fail(ResponseCode::BADVERS)));
        }
        let is_transfer = matches!(query.query_type, RecordType::AXFR | RecordType::IXFR);
        if query.query_class != DNSClass::IN || is_transfer {
            return Err(NoQuestion::Answered(question.fail(ResponseCode::Refused)));
        }
        Ok(question)
    }

    /// Returns the name in lower case and without the trailing dot, or `None` if no container can have this name.
    pub(super) fn name(&self) -> Option<String> {
        let mut name = String::new();
        for label in self.query.name.iter() {
            let is_plain = label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
            let label = std::str::from_utf8(label).ok().filter(|_| is_plain)?;
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(&label.to_ascii_lowercase());
        }
        Some(name)
    }

    /// Returns the address of a reverse lookup, or `None` if the question is not a reverse lookup.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let network = self.query.name.parse_arpa_name().ok()?;
        (network.prefix_len() == network.max_prefix_len()).then(|| network.addr())
    }

    /// Returns the size of the largest response that may be sent, in bytes.
    pub(super) fn answer_max(&self, is_tcp: bool) -> usize {
        match self.edns {
            _ if is_tcp => TCP_MAX,
            None => PLAIN_MAX,
            Some((size, _)) => usize::from(size.min(EDNS_MAX)).max(PLAIN_MAX),
        }
    }

    fn reply(&self, code: ResponseCode) -> Message {
        let mut reply = Message::response(self.id, OpCode::Query);
        reply.metadata.recursion_desired = self.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.metadata.checking_disabled = self.checking_disabled;
        reply.metadata.response_code = code;
        reply.add_query(self.query.clone());
        if let Some((_, dnssec_ok)) = self.edns {
            reply.set_edns(edns(dnssec_ok));
            if let Some(edns) = reply.edns.as_mut() {
                edns.set_rcode_high(code.high());
            }
        }
        reply
    }

    /// Encodes a response. A response that is too large is truncated to its question.
    fn encode(&self, reply: &Message, is_tcp: bool) -> Vec<u8> {
        match reply.to_vec() {
            Ok(bytes) if bytes.len() <= self.answer_max(is_tcp) => bytes,
            _ => self.truncated(),
        }
    }

    /// Returns a truncated response without records. The client then repeats the query over TCP.
    pub(super) fn truncated(&self) -> Vec<u8> {
        let mut reply = self.reply(ResponseCode::NoError);
        reply.metadata.truncation = true;
        reply.to_vec().unwrap_or_default()
    }

    /// Returns a response without records.
    pub(super) fn fail(&self, code: ResponseCode) -> Vec<u8> {
        self.reply(code).to_vec().unwrap_or_default()
    }

    /// Returns the response about a name that belongs to the network. If `found` is `None`, the name does not exist.
    pub(super) fn answer(&self, found: Option<Vec<RData>>, is_tcp: bool) -> Vec<u8> {
        let code = if found.is_some() { ResponseCode::NoError } else { ResponseCode::NXDomain };
        let mut reply = self.reply(code);
        reply.metadata.authoritative = true;
        for data in found.unwrap_or_default() {
            reply.add_answer(Record::from_rdata(self.query.name.clone(), TTL, data));
        }
        self.encode(&reply, is_tcp)
    }

    /// Selects the addresses of the requested record type.
    pub(super) fn select(&self, addresses: &[IpAddr]) -> Vec<RData> {
        let kind = self.query.query_type;
        let select = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) if matches!(kind, RecordType::A | RecordType::ANY) => Some(RData::A(A(*ip))),
            IpAddr::V6(ip) if matches!(kind, RecordType::AAAA | RecordType::ANY) => Some(RData::AAAA(AAAA(*ip))),
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        };
        addresses.iter().filter_map(select).collect()
    }

    /// Returns the PTR record of a container, if the question requests it.
    pub(super) fn pointer(&self, id: &str) -> Vec<RData> {
        let asks = matches!(self.query.query_type, RecordType::PTR | RecordType::ANY);
        // An id can be longer than a DNS label.
        let name = Name::from_ascii(format!("{id}.")).ok().filter(|_| asks);
        name.map(|name| RData::PTR(PTR(name))).into_iter().collect()
    }

    /// Encodes the question as a query with another id.
    pub(super) fn forwarded(&self, id: u16) -> Vec<u8> {
        let mut query = Message::new(id, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = self.recursion_desired;
        query.metadata.checking_disabled = self.checking_disabled;
        query.add_query(self.query.clone());
        if let Some((_, dnssec_ok)) = self.edns {
            query.set_edns(edns(dnssec_ok));
        }
        query.to_vec().unwrap_or_default()
    }

    /// Returns the header of a response if it matches the question, which was forwarded with this id.
    pub(super) fn check_answer(&self, id: u16, answer: &[u8]) -> Option<Metadata> {
        let mut decoder = BinDecoder::new(answer);
        let Header { metadata, counts } = Header::read(&mut decoder).ok()?;
        let is_answer = metadata.message_type == MessageType::Response && metadata.op_code == OpCode::Query;
        if metadata.id != id || !is_answer || counts.queries != 1 {
            return None;
        }
        let query = Query::read(&mut decoder).ok()?;
        let asked = &self.query;
        let is_same =
            query.name == asked.name && query.query_type == asked.query_type && query.query_class == asked.query_class;
        is_same.then_some(metadata)
    }

    /// Adapts a name server's response for the client: with the client's query id, and truncated if it is too large.
    pub(super) fn relay(&self, mut answer: Vec<u8>, is_tcp: bool) -> Vec<u8> {
        if answer.len() > self.answer_max(is_tcp) || answer.len() < HEADER {
            return self.truncated();
        }
        answer[..2].copy_from_slice(&self.id.to_be_bytes());
        answer
    }
}

fn edns(dnssec_ok: bool) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(EDNS_MAX).set_dnssec_ok(dnssec_ok);
    edns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a query with this type and name. `size` is the EDNS payload size.
    fn packet(kind: RecordType, name: &str, size: Option<u16>) -> Vec<u8> {
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = true;
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        if let Some(size) = size {
            let mut edns = Edns::new();
            edns.set_max_payload(size);
            query.set_edns(edns);
        }
        query.to_vec().unwrap()
    }

    fn question(kind: RecordType, name: &str, size: Option<u16>) -> Question {
        Question::parse(&packet(kind, name, size)).unwrap()
    }

    /// Returns the response code for an invalid packet, or `None` if the packet gets no response.
    fn fault(packet: &[u8]) -> Option<ResponseCode> {
        match Question::parse(packet).unwrap_err() {
            NoQuestion::Ignored => None,
            NoQuestion::Answered(answer) => Some(Message::from_vec(&answer).unwrap().metadata.response_code),
        }
    }

    #[test]
    fn name_is_plain_and_in_lower_case() {
        let name = |name: &str| question(RecordType::A, name, None).name();
        assert_eq!(name("Web_1."), Some("web_1".into()));
        assert_eq!(name("A.b-C."), Some("a.b-c".into()));
        assert_eq!(name("a\\.b."), None, "a dot within a label");
        assert_eq!(name("."), Some(String::new()));
    }

    #[test]
    fn only_whole_reverse_names_are_addresses() {
        let address = |name: &str| question(RecordType::PTR, name, None).address();
        assert_eq!(address("9.1.61.10.in-addr.arpa."), Some("10.61.1.9".parse().unwrap()));
        let v6 = "9.".to_owned() + &"0.".repeat(15) + "1.6.0.0.5.7.3.6.5.6.8.7.5.6.d.f.ip6.arpa.";
        assert_eq!(address(&v6), Some("fd65:7865:6375:61::9".parse().unwrap()));
        for name in ["61.10.in-addr.arpa.", "1.9.1.61.10.in-addr.arpa.", "256.1.61.10.in-addr.arpa.", "arpa.", "web."] {
            assert_eq!(address(name), None, "{name}");
        }
    }

    #[test]
    fn packets_without_one_question_are_refused() {
        let good = packet(RecordType::A, "a.", None);
        let with = |at: usize, value: u8| {
            let mut packet = good.clone();
            packet[at] = value;
            packet
        };
        assert_eq!(fault(&good[..11]), None);
        assert_eq!(fault(&[0; QUERY_MAX + 1]), None);
        assert_eq!(fault(&with(2, 0x81)), None, "a response");
        assert_eq!(fault(&with(2, 0x29)), Some(ResponseCode::NotImp), "an update");
        assert_eq!(fault(&with(5, 0)), Some(ResponseCode::FormErr), "no question");
        assert_eq!(fault(&good[..good.len() - 1]), Some(ResponseCode::FormErr));
        let chaos = good.len() - 1;
        assert_eq!(fault(&with(chaos, 3)), Some(ResponseCode::Refused));
        assert_eq!(fault(&packet(RecordType::AXFR, "a.", None)), Some(ResponseCode::Refused));
    }

    #[test]
    fn answer_fits_the_size_of_the_client() {
        for (size, is_tcp, max) in [
            (None, false, 512),
            (Some(100), false, 512),
            (Some(1232), false, 1232),
            (Some(9000), false, 4096),
            (None, true, 65_535),
        ] {
            assert_eq!(question(RecordType::A, "a.", size).answer_max(is_tcp), max, "{size:?}");
        }
        let asked = question(RecordType::A, "a.", None);
        let addresses: Vec<IpAddr> = (0..64).map(|last| IpAddr::V4([10, 61, 0, last].into())).collect();
        let records = asked.select(&addresses);
        let cut = Message::from_vec(&asked.answer(Some(records.clone()), false)).unwrap();
        assert!(cut.metadata.truncation && cut.answers.is_empty());
        let whole = Message::from_vec(&asked.answer(Some(records), true)).unwrap();
        assert_eq!((whole.metadata.truncation, whole.answers.len(), whole.metadata.id), (false, 64, 7));
        let relayed = asked.relay(vec![1; 513], false);
        assert!(Message::from_vec(&relayed).unwrap().metadata.truncation);
        assert_eq!(asked.relay(vec![1; 512], false)[..3], [0, 7, 1]);
    }

    #[test]
    fn answers_to_other_questions_are_ignored() {
        let asked = question(RecordType::A, "a.test.", Some(1232));
        let answer = |id, name: &str, kind, class, message_type| {
            let mut answer = Message::new(id, message_type, OpCode::Query);
            let mut query = Query::query(Name::from_ascii(name).unwrap(), kind);
            query.set_query_class(class);
            answer.add_query(query);
            asked.check_answer(9, &answer.to_vec().unwrap()).is_some()
        };
        use DNSClass::IN;
        use MessageType::Response;
        assert!(answer(9, "A.test.", RecordType::A, IN, Response));
        assert!(!answer(8, "a.test.", RecordType::A, IN, Response));
        assert!(!answer(9, "b.test.", RecordType::A, IN, Response));
        assert!(!answer(9, "a.test.", RecordType::AAAA, IN, Response));
        assert!(!answer(9, "a.test.", RecordType::A, DNSClass::CH, Response));
        assert!(!answer(9, "a.test.", RecordType::A, IN, MessageType::Query));
        assert!(asked.check_answer(9, &[0; 12]).is_none() && asked.check_answer(9, &[]).is_none());
        let forwarded = Message::from_vec(&asked.forwarded(9)).unwrap();
        assert_eq!((forwarded.metadata.id, forwarded.metadata.recursion_desired), (9, true));
        assert!(forwarded.edns.is_some() && forwarded.edns.unwrap().options().as_ref().is_empty());
    }

    #[test]
    fn random_packets_are_parsed_or_refused() {
        let asked = question(RecordType::A, "a.", None);
        let (good, mut random) = (packet(RecordType::AAAA, "name.example.", Some(1232)), 33_u64);
        for _ in 0..100_000 {
            let mut packet = good.clone();
            for _ in 0..4 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % packet.len();
                packet[at] = (random >> 24) as u8;
            }
            packet.truncate((random >> 40) as usize % (2 * packet.len()));
            let _ = Question::parse(&packet);
            let _ = asked.check_answer(7, &packet);
        }
    }
}
