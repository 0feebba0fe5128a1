//! Estimates the memory of a decoded request before decoding.
//!
//! An empty message has two bytes on the wire and several hundred in memory, and messages are nested: 1.9 MB of empty
//! actions take 736 MB. Therefore the bytes are walked first, guided by the interface's descriptors, with no allocation
//! except a stack of positions. The walk also finds strings that are not UTF-8: the decoder would reject the first such
//! string with an internal error that does not name the field. With `Weigher::strict` the walk also finds unknown
//! fields, which the decoder drops.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use executor_core::validate::{Violation, ViolationReason};
use executor_transport::wire::body::MessageCheck;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};
use tonic::Status;

use crate::api_error::ApiError;

/// Maximum number of nested messages. A nested action counts as two.
const DEPTH_MAX: usize = 64;
/// Maximum size of a decoded message in bytes, in addition to four times its encoded length.
const DECODED_MAX: usize = 16 << 20;
/// Factor for the unused capacity of a list that has grown.
const GROWTH: usize = 2;
/// Size of a string or a list in the struct of its message, without the content, in bytes.
const POINTED: usize = 24;
/// Size of any other field in the struct of its message, in bytes.
const SCALAR: usize = 8;
/// Maximum number of reported violations; more do not fit into a response.
const FOUND_MAX: usize = 100;
/// Maximum length of a map key in a field name, in characters.
const KEY_SHOWN: usize = 80;

/// Description of a message type.
#[derive(Debug, Default)]
struct Shape {
    /// Estimated size of the decoded message's struct, in bytes.
    size: usize,
    /// Fields that are messages, strings or bytes, by number.
    fields: HashMap<u64, Field>,
    /// Numbers of all fields.
    known: HashSet<u64>,
    /// True for a map entry, which has a key and a value.
    is_entry: bool,
}

#[derive(Clone, Debug)]
struct Field {
    kind: Kind,
    name: String,
    /// True for a repeated field.
    is_list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message(usize),
    Text,
    Bytes,
}

#[derive(Debug, Default)]
struct Shapes {
    types: Vec<Shape>,
    /// Index of the request type by method.
    methods: HashMap<String, usize>,
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::from_descriptors(executor_proto::FILE_DESCRIPTOR_SET));

/// Estimates the memory of a method's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weigher {
    root: Option<usize>,
    /// True if unknown fields are rejected.
    is_strict: bool,
}

impl Weigher {
    /// Creates the weigher of a method. Requests of other interfaces (health, reflection) are not checked, because they
    /// need little memory.
    pub(super) fn from_method(method: &str) -> Self {
        Self { root: SHAPES.methods.get(method).copied(), is_strict: false }
    }

    /// Also rejects unknown fields if `is_strict` is true.
    pub(super) fn strict(self, is_strict: bool) -> Self {
        Self { is_strict, ..self }
    }
}

impl MessageCheck for Weigher {
    /// Checks the memory, the strings and, if the weigher is strict, the fields of a message.
    ///
    /// # Errors
    /// Returns an error if the message would take too much memory, has strings that are not UTF-8, or has unknown
    /// fields and the weigher is strict.
    fn check(&self, message: &[u8]) -> Result<(), Status> {
        let Some(root) = self.root else { return Ok(()) };
        let most = message.len().saturating_mul(4).saturating_add(DECODED_MAX);
        let mut cost = SHAPES.types[root].size;
        let mut places = vec![(root, message, 0)];
        let (mut all_utf8, mut all_known) = (true, true);
        while let Some((shape, rest, _)) = places.last_mut() {
            let Some((number, kind)) = key(rest) else {
                // The message is complete or malformed. The decoder rejects a malformed message.
                places.pop();
                continue;
            };
            let payload = match kind {
                2 => varint(rest).and_then(|length| split(rest, length)),
                0 => varint(rest).map(|_| &[][..]),
                1 => split(rest, 8),
                5 => split(rest, 4),
                _ => Some(&[][..]), // groups: their fields are checked like all others
            };
            let Some(payload) = payload else { return Ok(()) };
            all_known &= !self.is_strict || is_known(*shape, number, kind);
            match SHAPES.types[*shape].fields.get(&number).map(|field| field.kind) {
                Some(Kind::Message(of)) if kind == 2 => {
                    cost += GROWTH * SHAPES.types[of].size;
                    places.push((of, payload, number));
                    if places.len() > DEPTH_MAX {
                        return Err(Status::invalid_argument(format!(
                            "the request nests messages more than {DEPTH_MAX} levels deep"
                        )));
                    }
                }
                Some(text @ (Kind::Text | Kind::Bytes)) if kind == 2 => {
                    cost += GROWTH * POINTED + payload.len();
                    all_utf8 &= text == Kind::Bytes || std::str::from_utf8(payload).is_ok();
                }
                _ => {}
            }
            if cost > most {
                let steps = places.windows(2).map(|pair| &*SHAPES.types[pair[0].0].fields[&pair[1].2].name);
                return Err(Status::resource_exhausted(format!(
                    "the request has too many elements: its {} bytes need more memory than the limit of {most} \
                     bytes when decoded; the limit is exceeded in `{}`",
                    message.len(),
                    steps.collect::<Vec<_>>().join(".")
                )));
            }
        }
        if all_utf8 && all_known {
            return Ok(());
        }
        let mut found = Vec::new();
        find(root, "", message, self.is_strict, &mut found);
        if found.is_empty() && !all_known {
            found.push(unknown_field(String::new())); // in a map entry or a group
        }
        // The interface has no groups: strings in them belong to no field.
        if found.is_empty() { Ok(()) } else { Err(ApiError::invalid(found).into()) }
    }
}

/// Checks that decoding a request of a method takes little memory.
///
/// # Errors
/// Returns an error if the request would take too much memory, or has strings that are not UTF-8.
pub fn check_message(method: &str, message: &[u8]) -> Result<(), Status> {
    Weigher::from_method(method).check(message)
}

/// Returns true if the message has a field with this number. The interface has no groups.
fn is_known(shape: usize, number: u64, kind: u8) -> bool {
    matches!(kind, 0 | 1 | 2 | 5) && SHAPES.types[shape].known.contains(&number)
}

fn unknown_field(field: String) -> Violation {
    let why = format!(
        "has a field that executord {} does not support: remove the field, or use a newer executord",
        executor_secrets::VERSION
    );
    Violation::new(field, ViolationReason::UnknownField.because(why))
}

/// Finds fields whose strings are not UTF-8, and unknown fields if `is_strict` is true, in a message and its nested
/// messages. Violations do not contain the values. `path` is the message's path with a trailing dot. The depth was
/// checked before.
fn find(shape: usize, path: &str, mut rest: &[u8], is_strict: bool, found: &mut Vec<Violation>) {
    let mut seen: HashMap<u64, usize> = HashMap::new();
    let mut groups = 0_usize;
    while let Some((number, kind)) = key(&mut rest) {
        let payload = match kind {
            0 => varint(&mut rest).map(|_| &[][..]),
            1 => split(&mut rest, 8),
            2 => varint(&mut rest).and_then(|length| split(&mut rest, length)),
            3 => {
                groups += 1;
                Some(&[][..])
            }
            4 => {
                groups = groups.saturating_sub(1);
                Some(&[][..])
            }
            5 => split(&mut rest, 4),
            _ => None,
        };
        let Some(payload) = payload.filter(|_| found.len() < FOUND_MAX) else { return };
        if is_strict && groups == 0 && !is_known(shape, number, kind) {
            found.push(unknown_field(format!("{path}{number}")));
            continue;
        }
        let Some(field) = SHAPES.types[shape].fields.get(&number).filter(|_| kind == 2 && groups == 0) else {
            continue;
        };
        let index = seen.entry(number).or_default();
        let mut name = format!("{path}{}", field.name);
        if field.is_list {
            name.push_str(&format!("[{index}]"));
        }
        *index += 1;
        match field.kind {
            Kind::Message(of) if SHAPES.types[of].is_entry => {
                entry(&format!("{path}{}", field.name), payload, found);
            }
            Kind::Message(of) => find(of, &format!("{name}."), payload, is_strict, found),
            Kind::Text if std::str::from_utf8(payload).is_err() => {
                found.push(Violation::new(name, ViolationReason::NotUtf8.because("is not UTF-8")));
            }
            Kind::Text | Kind::Bytes => {}
        }
    }
}

/// Finds fields whose strings are not UTF-8 in an entry of `map`. The interface's maps have string keys and values.
fn entry(map: &str, mut rest: &[u8], found: &mut Vec<Violation>) {
    let (mut name, mut value) = (&[][..], &[][..]);
    while let Some((number, 2)) = key(&mut rest) {
        let Some(payload) = varint(&mut rest).and_then(|length| split(&mut rest, length)) else { break };
        match number {
            1 => name = payload,
            2 => value = payload,
            _ => {}
        }
    }
    match (std::str::from_utf8(name), std::str::from_utf8(value)) {
        (Err(_), _) => {
            found.push(Violation::new(map, ViolationReason::NotUtf8.because("has a name that is not UTF-8")));
        }
        (Ok(name), Err(_)) => {
            let shown: String = name.chars().take(KEY_SHOWN).collect();
            found.push(Violation::new(format!("{map}[{shown}]"), ViolationReason::NotUtf8.because("is not UTF-8")));
        }
        (Ok(_), Ok(_)) => {}
    }
}

/// Reads the next field's number and wire type.
fn key(rest: &mut &[u8]) -> Option<(u64, u8)> {
    let key = varint(rest)? as u64;
    Some((key >> 3, key as u8 & 7))
}

fn varint(rest: &mut &[u8]) -> Option<usize> {
    let mut value = 0_u64;
    for place in 0..10 {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return usize::try_from(value).ok();
        }
    }
    None
}

fn split<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

impl Shapes {
    fn from_descriptors(descriptors: &[u8]) -> Self {
        let Ok(set) = FileDescriptorSet::decode(descriptors) else { return Self::default() };
        let mut named: Vec<(String, &DescriptorProto)> = Vec::new();
        for file in &set.file {
            collect(&format!(".{}", file.package()), &file.message_type, &mut named);
        }
        let places: HashMap<&str, usize> =
            named.iter().enumerate().map(|(place, (name, _))| (name.as_str(), place)).collect();
        let types = named.iter().map(|(_, message)| {
            let fields = message.field.iter().filter_map(|field| {
                let kind = match field.r#type() {
                    Type::Message => Kind::Message(*places.get(field.type_name())?),
                    Type::String => Kind::Text,
                    Type::Bytes => Kind::Bytes,
                    _ => return None,
                };
                let is_list = field.label() == Label::Repeated;
                Some((u64::try_from(field.number()).ok()?, Field { kind, name: field.name().to_owned(), is_list }))
            });
            Shape {
                size: size(message, &named, &places, &mut Vec::new()),
                fields: fields.collect(),
                known: message.field.iter().filter_map(|field| u64::try_from(field.number()).ok()).collect(),
                is_entry: message.options.as_ref().is_some_and(|options| options.map_entry()),
            }
        });
        let types = types.collect();
        let mut methods = HashMap::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    if let Some(place) = places.get(method.input_type()) {
                        let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                        methods.insert(path, *place);
                    }
                }
            }
        }
        Self { types, methods }
    }
}

fn collect<'a>(scope: &str, messages: &'a [DescriptorProto], named: &mut Vec<(String, &'a DescriptorProto)>) {
    for message in messages {
        let name = format!("{scope}.{}", message.name());
        collect(&name, &message.nested_type, named);
        named.push((name, message));
    }
}

/// Estimates the size of a message without the content behind pointers. `above` holds the enclosing types, because a
/// field with an enclosing type is recursive and therefore behind a pointer.
fn size<'a>(
    message: &'a DescriptorProto,
    named: &[(String, &'a DescriptorProto)],
    places: &HashMap<&str, usize>,
    above: &mut Vec<&'a str>,
) -> usize {
    above.push(message.name());
    let mut sum = 0;
    for field in &message.field {
        sum += match field.r#type() {
            _ if field.label() == Label::Repeated => 2 * POINTED, // a map is larger than a list
            Type::Message => match places.get(field.type_name()).map(|place| named[*place].1) {
                Some(inner) if !above.contains(&inner.name()) => SCALAR + size(inner, named, places, above),
                _ => SCALAR,
            },
            Type::String | Type::Bytes => POINTED,
            _ => SCALAR,
        };
    }
    above.pop();
    sum.max(SCALAR)
}

#[cfg(test)]
mod tests {
    use executor_proto::v1;

    use super::*;

    const RUN: &str = "/executor.v1.Executor/Run";

    fn checked(message: &[u8]) -> Result<(), Status> {
        Weigher::from_method(RUN).check(message)
    }

    /// Encodes a field that is a message or bytes.
    fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(payload.len() as u64, &mut field);
        [&field, payload].concat()
    }

    #[test]
    fn weigher_estimates_every_method_size() {
        for method in [RUN, "/executor.v1.Executor/PutArchive", "/executor.v1.Images/Pull"] {
            assert!(Weigher::from_method(method).root.is_some(), "{method}");
        }
        assert_eq!(SHAPES.methods.len(), 46);
        let reported = |method| SHAPES.types[SHAPES.methods[method]].size;
        for (reported, real) in [
            (reported(RUN), size_of::<v1::RunRequest>()),
            (reported("/executor.v1.Executor/Exec"), size_of::<v1::ExecRequest>()),
            (reported("/executor.v1.Executor/UpdateFiles"), size_of::<v1::UpdateFilesRequest>()),
        ] {
            assert!(real / 2 <= reported && reported <= 16 * real, "{reported} for {real}");
        }
    }

    #[test]
    fn requests_of_maximum_size_are_accepted() {
        let variable =
            || v1::EnvironmentVariable { name: "A".into(), value: "b".into(), ..v1::EnvironmentVariable::default() };
        let file = || v1::File { path: "/a".into(), content: vec![1; 90], ..v1::File::default() };
        let run = v1::RunAction {
            path: "/bin/true".into(),
            args: vec!["a".into(); 10_000],
            env: vec![variable(); 10_000],
            volume_mounted_files: vec![file(); 10_000],
            ..Default::default()
        };
        let action = v1::Action { run: Some(run), ..Default::default() };
        let request = v1::RunRequest { action: Some(action), ..Default::default() };
        checked(&request.encode_to_vec()).unwrap();
        checked(&[]).unwrap();
    }

    /// If decoding would take too much memory, the request is refused with the name of the field. The last lines are
    /// the control: few elements are decoded normally.
    #[test]
    fn oversized_decoding_is_refused_by_field() {
        // Field numbers of RunRequest.action, Action.parallel, ParallelAction.actions
        let (action, parallel, actions) = (2, 7, 1);
        let flat = field(action, &field(parallel, &field(actions, &[]).repeat(900_000)));
        let refused = checked(&flat).unwrap_err();
        assert!(
            refused.code() == tonic::Code::ResourceExhausted
                && refused.message().ends_with("`action.parallel.actions`"),
            "{refused}"
        );
        let mut deep = Vec::new();
        for _ in 0..DEPTH_MAX {
            deep = field(parallel, &field(actions, &deep));
        }
        let refused = checked(&field(action, &deep)).unwrap_err();
        assert!(refused.code() == tonic::Code::InvalidArgument && refused.message().contains("64 levels"), "{refused}");
        let few = field(action, &field(parallel, &field(actions, &[]).repeat(100)));
        checked(&few).unwrap();
        let request = v1::RunRequest::decode(&*few).unwrap();
        assert_eq!(request.action.unwrap().parallel.unwrap().actions.len(), 100);
    }

    /// If a string is not UTF-8, the error names its field. The Rust client cannot encode such strings, so bytes of
    /// valid strings are changed afterwards.
    #[test]
    fn non_utf8_strings_are_reported_by_field() {
        let variable = |value: &str| v1::EnvironmentVariable {
            name: "A".into(),
            value: value.into(),
            ..v1::EnvironmentVariable::default()
        };
        let file = v1::File { path: "/@@@@".into(), content: b"\xff\xfe".to_vec(), ..v1::File::default() };
        let run = v1::RunAction {
            path: "/bin/true".into(),
            args: vec!["fine".into(), "@@@@".into()],
            env: vec![variable("fine"), variable("fine"), variable("fine"), variable("@@@@")],
            volume_mounted_files: vec![file],
            ..Default::default()
        };
        let request = v1::RunRequest {
            action: Some(v1::Action { run: Some(run), ..Default::default() }),
            labels: [("team".to_owned(), "@@@@".to_owned()), ("@@@@".to_owned(), "x".to_owned())].into(),
            rootfs: "@@@@".into(),
            ..Default::default()
        };
        let good = request.encode_to_vec();
        checked(&good).unwrap();
        let bytes: Vec<u8> = good.iter().map(|byte| if *byte == b'@' { 0xff } else { *byte }).collect();
        let refused = checked(&bytes).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        let reported = tonic_types::StatusExt::get_details_bad_request(&refused).unwrap().field_violations;
        assert!(reported.iter().all(|violation| violation.reason == "NOT_UTF8"), "{reported:?}");
        let mut fields: Vec<&str> = reported.iter().map(|violation| &*violation.field).collect();
        fields.sort_unstable();
        let expected = [
            "action.run.args[1]",
            "action.run.env[3].value",
            "action.run.volume_mounted_files[0].path",
            "labels",
            "labels[team]",
            "rootfs",
        ];
        assert_eq!(fields, expected);
        // Unknown fields are ignored.
        checked(&field(15, b"\xff").repeat(3)).unwrap_or_else(|status| panic!("{status:?}"));
        // The number of reports is bounded.
        let flood = field(2, &field(3, &field(2, b"\xff").repeat(100_000)));
        assert!(checked(&flood).is_err());
    }

    /// In strict mode unknown fields are refused. The first message is the control: a known field passes.
    #[test]
    fn unknown_fields_are_refused_when_strict() {
        let strict = |message: &[u8]| Weigher::from_method(RUN).strict(true).check(message);
        let variable = v1::EnvironmentVariable { name: "A".into(), ..v1::EnvironmentVariable::default() };
        let request = v1::RunRequest {
            action: Some(v1::Action {
                run: Some(v1::RunAction { path: "/a".into(), env: vec![variable], ..Default::default() }),
                ..Default::default()
            }),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            limits: Some(v1::Limits { memory_bytes: 1, ..Default::default() }),
            grace_period: Some(prost_types::Duration { seconds: 1, nanos: 5 }),
            ..Default::default()
        };
        let known = request.encode_to_vec();
        strict(&known).unwrap();
        let inner = field(2, &field(3, &[0xfa, 0x7f, 1, b'x']));
        let number = [&known[..], &[0xf8, 0x7f, 1]].concat();
        let fixed = [&known[..], &[0xfd, 0x7f, 0, 0, 0, 0]].concat();
        let map = [&known[..], &field(5, &[field(1, b"k"), field(9, b"x")].concat())].concat();
        for (message, expected) in [(&inner, "action.run.2047"), (&number, "2047"), (&fixed, "2047"), (&map, "")] {
            checked(message).unwrap();
            let refused = strict(message).unwrap_err();
            let reported = tonic_types::StatusExt::get_details_bad_request(&refused).unwrap().field_violations;
            assert_eq!((&*reported[0].field, &*reported[0].reason, reported.len()), (expected, "UNKNOWN_FIELD", 1));
        }
        assert!(strict(&field(2, &field(3, &[0xfa, 0x7f, 0].repeat(100_000)))).is_err(), "bounded");
    }

    #[test]
    fn malformed_messages_are_left_to_the_decoder() {
        for bytes in [&b"\xff"[..], b"\x0a\x7f", b"\x0b\x0b\x0b", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            checked(bytes).unwrap();
        }
    }
}
