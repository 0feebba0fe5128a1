//! Parses trees of actions from a file: `run --action FILE` and `action check FILE`.
//!
//! The file is YAML or JSON in the protobuf JSON mapping. The file contains either an `executor.v1.Action`, or a
//! document with `action` and the RunRequest fields `setup`, `sidecars`, `monitor`, `restart_policy`, `environment` and
//! `log_source`. File contents are base64, as the mapping requires. This module reports syntax and type errors with
//! path and line. The errors contain no values, because values can be secret. executord reports all other errors.

use std::io::Read as _;
use std::path::Path;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::text::plain;
use executor_client::v1::{Action, RunAction, RunRequest};
use executor_client::{FILE_DESCRIPTOR_SET, Wiped};
use executor_core::limits::ACTION_DEPTH_MAX;
use executor_yaml::{Limits, Node, Place, Value as Yaml, parse as parse_yaml};
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions};
use serde_json::{Value, json};

/// Maximum size of a file of actions, in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Parser limits. The depth is sufficient for every tree that executord accepts.
const LIMITS: Limits = Limits { bytes: BYTES_MAX as usize, depth: 100, nodes: 500_000, copied_bytes: 4 << 20 };
const FIELDS: [&str; 7] = ["action", "environment", "log_source", "monitor", "restart_policy", "setup", "sidecars"];

/// An error in a file, with its path and line.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    path: String,
    place: Place,
    message: String,
}

/// Reads the actions of a file.
///
/// # Errors
/// Returns an error if the file cannot be read. If the file does not match the API, returns every violation with its
/// path and line.
pub(crate) fn read(path: &Path) -> Result<Wiped<RunRequest>, Failure> {
    let bad = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let mut text = zeroize::Zeroizing::new(String::new());
    let file = std::fs::File::open(path).map_err(|error| bad(error.to_string()))?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    let mut faults = match parse(&text).map_err(bad)? {
        Ok(request) => return Ok(request),
        Err(faults) => faults,
    };
    faults.sort_by_key(|fault| fault.place);
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    let list = faults.iter().map(|Fault { path, place, message }| plain(&format!("{place}: {path}: {message}")));
    let list: String = list.map(|line| format!("\n  {line}")).collect();
    Err(bad(format!("{count}:{list}")))
}

/// Parses the text of a file. Returns the request, or every error in the text.
fn parse(text: &str) -> Result<Result<Wiped<RunRequest>, Vec<Fault>>, String> {
    let parsed = parse_yaml(text, 1, &LIMITS).map_err(|error| plain(&format!("{}: {error}", error.place)))?;
    let root = &parsed.root;
    let Yaml::Map(entries) = &root.value else {
        return Err("the document is not a mapping: an action is one of `run`, `serial`, `parallel`, ...".into());
    };
    let is_request = root.get("action").is_some();
    let descriptor = request_descriptor()?;
    let repeated = parsed.duplicates.iter();
    let mut faults: Vec<Fault> = repeated
        .map(|fault| Fault { path: fault.path.clone(), place: fault.place, message: fault.message.clone() })
        .collect();
    if is_request {
        let others = entries.iter().filter(|(key, _)| !FIELDS.contains(&&*snake(&descriptor, &key.name)));
        faults.extend(others.map(|(key, _)| Fault {
            path: key.name.clone(),
            place: key.place,
            message: format!("unknown field; a document with `action` has {}", FIELDS.join(", ")),
        }));
        if faults.is_empty() {
            check(root, &descriptor, "", &mut faults);
        }
    } else {
        let action =
            descriptor.get_field_by_name("action").ok_or("RunRequest has no field `action` (internal error)")?;
        check_value(root, &action, "action", &mut faults);
    }
    if !faults.is_empty() {
        return Ok(Err(faults));
    }
    let document = to_value(root);
    let document = if is_request { document } else { json!({ "action": document }) };
    let dynamic = DynamicMessage::deserialize(descriptor, document).map_err(|error| plain(&error.to_string()))?;
    let request: RunRequest = dynamic.transcode_to().map_err(|error| error.to_string())?;
    let request = Wiped::new(request);
    let place =
        |path: &str| root.place_of(if is_request { path } else { path.strip_prefix("action.").unwrap_or_default() });
    let faults: Vec<Fault> = structural_errors(&request)
        .into_iter()
        .map(|(path, message)| Fault { place: place(&path), path, message })
        .collect();
    Ok(if faults.is_empty() { Ok(request) } else { Err(faults) })
}

fn request_descriptor() -> Result<MessageDescriptor, String> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).map_err(|error| error.to_string())?;
    pool.get_message_by_name("executor.v1.RunRequest")
        .ok_or_else(|| "the API has no message RunRequest (internal error)".to_owned())
}

/// Returns the field with this name, in snake_case or camelCase.
fn field_of(message: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    message.get_field_by_name(name).or_else(|| message.get_field_by_json_name(name))
}

/// Returns the snake_case name of a field; returns an unknown name unchanged.
fn snake(message: &MessageDescriptor, name: &str) -> String {
    field_of(message, name).map_or_else(|| name.to_owned(), |field| field.name().to_owned())
}

/// Checks recursively that a mapping matches a message type.
fn check(node: &Node, message: &MessageDescriptor, path: &str, faults: &mut Vec<Fault>) {
    let Yaml::Map(entries) = &node.value else { return faults.push(mistyped(node, path, "a mapping")) };
    for (key, value) in entries {
        let below = if path.is_empty() { key.name.clone() } else { format!("{path}.{}", key.name) };
        let Some(field) = field_of(message, &key.name) else {
            let known: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
            let message = format!("unknown field; {} has {}", message.name(), known.join(", "));
            faults.push(Fault { path: below, place: key.place, message });
            continue;
        };
        match &value.value {
            Yaml::Null => {}
            Yaml::List(items) if field.is_list() => {
                for (index, item) in items.iter().enumerate() {
                    check_value(item, &field, &format!("{below}[{index}]"), faults);
                }
            }
            _ if field.is_list() => faults.push(mistyped(value, &below, "a list")),
            _ => check_value(value, &field, &below, faults),
        }
    }
}

/// Checks that a single value or list element matches a field's type.
fn check_value(node: &Node, field: &FieldDescriptor, path: &str, faults: &mut Vec<Fault>) {
    let expected = match field.kind() {
        Kind::Message(message) if !field.is_map() && !message.full_name().starts_with("google.protobuf.") => {
            return check(node, &message, path, faults);
        }
        Kind::Message(_) if field.is_map() => "a mapping of strings".to_owned(),
        Kind::Message(message) => format!("a {} string such as \"1.5s\"", message.name().to_lowercase()),
        Kind::Enum(of) => {
            let names: Vec<String> = of.values().map(|value| value.name().to_owned()).collect();
            format!("one of {}", names.join(", "))
        }
        Kind::Bool => "true or false".into(),
        Kind::String => "a string".into(),
        Kind::Bytes => "a string in base64".into(),
        Kind::Double | Kind::Float => "a number".into(),
        Kind::Uint32 | Kind::Uint64 | Kind::Fixed32 | Kind::Fixed64 => "a whole number of 0 or more".into(),
        _ => "a whole number".into(),
    };
    let value = to_value(node);
    let value = if field.is_list() { json!([value]) } else { value };
    let alone = json!({ field.name(): value });
    if DynamicMessage::deserialize(field.parent_message().clone(), alone).is_err() {
        faults.push(mistyped(node, path, &expected));
    }
}

/// Returns the error for a value of the wrong type. The message does not contain the value.
fn mistyped(node: &Node, path: &str, expected: &str) -> Fault {
    let is_scalar = matches!(node.value, Yaml::Bool(_) | Yaml::Int(_) | Yaml::UInt(_) | Yaml::Float(_));
    let quote = if is_scalar && expected.starts_with("a string") { ": quote it" } else { "" };
    let message = format!("is {}; it must be {expected}{quote}", node.value.kind());
    Fault { path: path.to_owned(), place: node.place, message }
}

fn to_value(node: &Node) -> Value {
    match &node.value {
        Yaml::Null => Value::Null,
        Yaml::Bool(is_true) => json!(is_true),
        Yaml::Int(number) => json!(number),
        Yaml::UInt(number) => json!(number),
        Yaml::Float(number) => json!(number),
        Yaml::Text(text) => json!(**text),
        Yaml::List(items) => items.iter().map(to_value).collect(),
        Yaml::Map(entries) => entries.iter().map(|(key, value)| (key.name.clone(), to_value(value))).collect(),
    }
}

/// Converts the actions to JSON, in the protobuf JSON mapping.
pub(crate) fn to_json(request: &RunRequest) -> Option<Value> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).ok()?;
    let mut message = DynamicMessage::new(pool.get_message_by_name("executor.v1.RunRequest")?);
    message.transcode_from(request).ok()?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).ok()
}

/// An action and its position, as visited by [`visit`].
pub(crate) struct Visit<'a> {
    pub(crate) path: String,
    /// Nesting depth, from 0.
    pub(crate) depth: usize,
    /// Kinds of the action that are set. A valid action has exactly one kind.
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) action: &'a Action,
}

/// Lists all actions of a request, parents before children.
pub(crate) fn visit(request: &RunRequest) -> Vec<Visit<'_>> {
    let mut seen = Vec::new();
    let roots = request.setup.iter().map(|setup| ("setup".to_owned(), setup));
    let roots = roots.chain(request.action.iter().map(|action| ("action".to_owned(), action)));
    let sidecars = request.sidecars.iter().enumerate();
    let sidecars =
        sidecars.filter_map(|(index, one)| Some((format!("sidecars[{index}].action"), one.action.as_ref()?)));
    for (path, action) in roots.chain(sidecars) {
        walk(path, 0, action, &mut seen);
    }
    seen
}

fn walk<'a>(path: String, depth: usize, action: &'a Action, seen: &mut Vec<Visit<'a>>) {
    let kinds = action.kinds();
    let below = action.below().into_iter().map(|(below, action)| (format!("{path}{below}"), action));
    let below: Vec<(String, &Action)> = below.collect();
    seen.push(Visit { path, depth, kinds, action });
    for (path, action) in below {
        walk(path, depth + 1, action, seen);
    }
}

/// Returns the path and message of every structural error of the trees.
fn structural_errors(request: &RunRequest) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    if request.action.is_none() {
        faults.push(("action".to_owned(), "is not set".to_owned()));
    }
    for Visit { path, depth, kinds, action } in visit(request) {
        let mut add = |below: &str, message: String| faults.push((format!("{path}{below}"), message));
        match &kinds[..] {
            [] => add("", "is not set: set one action, such as `run`".into()),
            [_] => {}
            several => add("", format!("sets more than one action ({}); set exactly one", several.join(", "))),
        }
        if depth == ACTION_DEPTH_MAX {
            add("", format!("is nested {} levels deep; at most {ACTION_DEPTH_MAX} are allowed", depth + 1));
        }
        if let Some(RunAction { path: program, .. }) = &action.run
            && program.is_empty()
            && request.single_run().is_none()
        {
            add(".run.path", "is empty; it must name the program to run".into());
        }
        let transfers = [
            ("download", action.download.as_ref().map(|one| (&one.from, "URL", &one.to, "path in the container"))),
            ("upload", action.upload.as_ref().map(|one| (&one.from, "path in the container", &one.to, "URL"))),
        ];
        for (kind, ends) in transfers {
            let Some((from, what_from, to, what_to)) = ends else { continue };
            for (end, value, what) in [("from", from, what_from), ("to", to, what_to)] {
                if value.is_empty() {
                    add(&format!(".{kind}.{end}"), format!("is empty; it must be a {what}"));
                }
            }
        }
        let lists = [
            ("parallel", action.parallel.as_ref().map(|list| list.actions.is_empty())),
            ("serial", action.serial.as_ref().map(|list| list.actions.is_empty())),
            ("codependent", action.codependent.as_ref().map(|list| list.actions.is_empty())),
        ];
        for (kind, _) in lists.into_iter().filter(|(_, empty)| *empty == Some(true)) {
            add(&format!(".{kind}.actions"), "is empty; it must have at least one action".into());
        }
        let without = [
            ("timeout", action.timeout.as_ref().map(|timeout| timeout.action.is_none())),
            ("emit_progress", action.emit_progress.as_ref().map(|progress| progress.action.is_none())),
            ("try", action.r#try.as_ref().map(|attempt| attempt.action.is_none())),
        ];
        for (kind, _) in without.into_iter().filter(|(_, missing)| *missing == Some(true)) {
            add(&format!(".{kind}.action"), "is not set: set one action, such as `run`".into());
        }
        if let Some(timeout) = &action.timeout {
            #[expect(deprecated, reason = "older clients of a BBS set it")]
            let (millis, nanos) = (timeout.timeout_ms, timeout.deprecated_timeout_ns);
            if millis < 0 || (millis == 0 && nanos <= 0) {
                add(".timeout.timeout_ms", format!("is {millis}; it must be more than 0"));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<RunRequest, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path()).map(|request| (*request).clone()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn action_file_may_be_whole_document() {
        let alone =
            read_text("serial:\n  actions:\n  - run: {path: /bin/a, args: [x]}\n  - run: {path: /bin/b}\n").unwrap();
        let runs: Vec<&str> = alone.runs().iter().map(|run| &*run.path).collect();
        assert_eq!(runs, ["/bin/a", "/bin/b"]);
        let whole = "log_source: APP\nsetup: {run: {path: s}}\naction: {timeout: {timeoutMs: 5, action: {run: {path: a}}}}\n\
                     sidecars: [{action: {run: {path: c}}}]\nenvironment: [{name: A, value: B}]\n";
        let whole = read_text(whole).unwrap();
        assert_eq!((whole.log_source.as_str(), whole.environment.len(), whole.runs().len()), ("APP", 1, 3));
        let json = read_text(r#"{"try": {"action": {"run": {"path": "a", "env": [{"name": "N", "value": "v"}]}}}}"#);
        assert_eq!(json.unwrap().runs()[0].env.len(), 1);
    }

    #[test]
    fn every_fault_is_reported_with_its_path() {
        let text = "serial: {actions: [{}, {run: {}}, {timeout: {timeout_ms: -3}}, {run: {path: a}, try: {}}]}";
        let reported = read_text(text).unwrap_err();
        for fault in [
            "6 faults",
            "action.serial.actions[0]: is not set",
            "action.serial.actions[1].run.path: is empty",
            "action.serial.actions[2].timeout.timeout_ms: is -3",
            "action.serial.actions[2].timeout.action: is not set",
            "action.serial.actions[3]: sets more than one action (run, try)",
            "action.serial.actions[3].try.action: is not set",
        ] {
            assert!(reported.contains(fault), "{fault}: {reported}");
        }
        assert!(read_text("- run").unwrap_err().contains("is not a mapping"));
    }

    /// Each reported fault has a path, a line and a column.
    #[test]
    fn faults_have_path_and_place() {
        let table = [
            ("run: {pth: x}", "line 1, column 7: action.run.pth: unknown field; RunAction has path, args"),
            ("action: {run: {path: x}}\nid: x", "line 2, column 1: id: unknown field; a document with `action` has"),
            (
                "run:\n  path: a\n  args: [-c, 5]",
                "line 3, column 14: action.run.args[1]: is a number; it must be a string: quote it",
            ),
            ("run: {path: a}\nrun: {path: b}", "line 2, column 1: run: "),
            (
                "serial:\n  actions: {run: {path: a}}",
                "line 2, column 12: action.serial.actions: is a mapping; it must be a list",
            ),
            (
                "run:\n  path: a\n  volume_mounted_files:\n  - {path: b, content: s3cret!}",
                "line 4, column 24: action.run.volume_mounted_files[0].content: is a string; it must be a string in base64",
            ),
            (
                "serial:\n  actions:\n  - run: {path: a}\n  - run: {}",
                "line 4, column 5: action.serial.actions[1].run.path: is empty",
            ),
            ("run: [", "line 1, column 6: the text is not YAML"),
        ];
        for (text, expected) in table {
            let message = read_text(text).unwrap_err();
            assert!(message.contains(expected) && !message.contains("s3cret"), "{expected}: {message}");
        }
        let several = read_text("run: {pth: x, args: 5}").unwrap_err();
        assert!(
            several.contains("2 faults") && several.contains("action.run.args: is a number; it must be a list"),
            "{several}"
        );
    }

    #[test]
    fn deep_tree_is_refused_with_place() {
        let nested = |levels: usize| {
            format!("{}run: {{path: a}}{}", "try: {action: {".repeat(levels - 1), "}}".repeat(levels - 1))
        };
        read_text(&nested(ACTION_DEPTH_MAX)).unwrap();
        let deep = read_text(&nested(ACTION_DEPTH_MAX + 1)).unwrap_err();
        assert!(deep.contains("line 1, column ") && deep.contains("is nested 17 levels deep; at most 16"), "{deep}");
        let deepest = read_text(&nested(10_000)).unwrap_err();
        assert!(deepest.contains("line 1, column "), "{deepest}");
    }
}
