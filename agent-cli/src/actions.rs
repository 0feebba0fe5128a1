//! Trees of actions from a file: `run --action FILE` and `action check FILE`.
//!
//! The file is YAML or JSON, in the protobuf JSON mapping of the interface: an `executor.v1.Action`, or a document with `action`
//! and, beside it, `setup`, `sidecars`, `monitor`, `restart_policy`, `environment` and `log_source` of a RunRequest. Contents of files are base64, as that
//! mapping has it. What is wrong with a tree is told here with its path; what else executord refuses it says itself.

use std::io::Read as _;
use std::path::Path;

use executor_client::v1::{Action, RunAction, RunRequest};
use executor_client::{FILE_DESCRIPTOR_SET, Wiped};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::failure::Failure;
use crate::text::plain;

/// Largest file, in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Fields of a RunRequest that a file may set.
const FIELDS: [&str; 7] = ["action", "environment", "log_source", "monitor", "restart_policy", "setup", "sidecars"];

/// Reads the actions of a file.
///
/// # Errors
/// The file cannot be read, or is not what the interface describes: every fault, with its path.
pub(crate) fn read(path: &Path) -> Result<Wiped<RunRequest>, Failure> {
    let request = parse(path)?;
    let faults = faults(&request);
    if faults.is_empty() {
        return Ok(request);
    }
    let list: Vec<String> = faults.iter().map(|fault| format!("\n  {fault}")).collect();
    let count = if faults.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", faults.len()) };
    Err(Failure::Usage(format!("{}: {count}:{}", path.display(), list.concat())))
}

fn parse(path: &Path) -> Result<Wiped<RunRequest>, Failure> {
    let bad = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let mut text = zeroize::Zeroizing::new(String::new());
    let file = std::fs::File::open(path).map_err(|error| bad(error.to_string()))?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(bad(format!("has more than {BYTES_MAX} bytes")));
    }
    let document: Value = serde_saphyr::from_str(&text).map_err(|error| bad(plain(&error.to_string())))?;
    let Value::Object(map) = &document else {
        return Err(bad("is not a mapping: an action is one of `run`, `serial`, `parallel`, ...".into()));
    };
    let is_request = map.contains_key("action");
    if let Some(other) = map.keys().find(|key| is_request && !FIELDS.contains(&key.as_str())) {
        return Err(bad(format!("unknown field `{other}`; a document with `action` has {}", FIELDS.join(", "))));
    }
    let request = if is_request { document } else { serde_json::json!({ "action": document }) };
    message(request).map(Wiped::new).map_err(bad)
}

/// Reads a RunRequest in the protobuf JSON mapping.
fn message(document: Value) -> Result<RunRequest, String> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).map_err(|error| error.to_string())?;
    let descriptor = pool.get_message_by_name("executor.v1.RunRequest").ok_or("the interface has no RunRequest")?;
    let dynamic = DynamicMessage::deserialize(descriptor, document).map_err(|error| plain(&error.to_string()))?;
    dynamic.transcode_to().map_err(|error| error.to_string())
}

/// Prints the actions as JSON, in the protobuf JSON mapping.
pub(crate) fn to_json(request: &RunRequest) -> Option<Value> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).ok()?;
    let mut message = DynamicMessage::new(pool.get_message_by_name("executor.v1.RunRequest")?);
    message.transcode_from(request).ok()?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).ok()
}

/// A way through the trees of a request.
pub(crate) struct Visit<'a> {
    /// Path of the action.
    pub(crate) path: String,
    /// Depth, from 0.
    pub(crate) depth: usize,
    /// Kinds that are set; one where the action is valid.
    pub(crate) kinds: Vec<&'static str>,
    /// The action.
    pub(crate) action: &'a Action,
}

/// Visits every action, each before those below it.
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

/// Returns what is wrong with the shape of the trees: one line each.
fn faults(request: &RunRequest) -> Vec<String> {
    let mut faults = Vec::new();
    if request.action.is_none() {
        faults.push("action: is not set".to_owned());
    }
    for Visit { path, kinds, action, .. } in visit(request) {
        match &kinds[..] {
            [] => faults.push(format!("{path}: is not set: set one action, such as `run`")),
            [_] => {}
            several => faults.push(format!("{path}: has {} set; set exactly one action", several.join(", "))),
        }
        if let Some(RunAction { path: program, .. }) = &action.run
            && program.is_empty()
            && request.single_run().is_none()
        {
            faults.push(format!("{path}.run.path: is empty; it must name the program to run"));
        }
        let transfers = [
            ("download", action.download.as_ref().map(|one| (&one.from, "URL", &one.to, "path in the container"))),
            ("upload", action.upload.as_ref().map(|one| (&one.from, "path in the container", &one.to, "URL"))),
        ];
        for (kind, ends) in transfers {
            let Some((from, what_from, to, what_to)) = ends else { continue };
            for (end, value, what) in [("from", from, what_from), ("to", to, what_to)] {
                if value.is_empty() {
                    faults.push(format!("{path}.{kind}.{end}: is empty; it must be a {what}"));
                }
            }
        }
        let lists = [
            ("parallel", action.parallel.as_ref().map(|list| list.actions.is_empty())),
            ("serial", action.serial.as_ref().map(|list| list.actions.is_empty())),
            ("codependent", action.codependent.as_ref().map(|list| list.actions.is_empty())),
        ];
        for (kind, _) in lists.into_iter().filter(|(_, empty)| *empty == Some(true)) {
            faults.push(format!("{path}.{kind}.actions: is empty; it must have at least one action"));
        }
        let without = [
            ("timeout", action.timeout.as_ref().map(|timeout| timeout.action.is_none())),
            ("emit_progress", action.emit_progress.as_ref().map(|progress| progress.action.is_none())),
            ("try", action.r#try.as_ref().map(|attempt| attempt.action.is_none())),
        ];
        for (kind, _) in without.into_iter().filter(|(_, missing)| *missing == Some(true)) {
            faults.push(format!("{path}.{kind}.action: is not set: set one action, such as `run`"));
        }
        if let Some(timeout) = &action.timeout {
            #[expect(deprecated, reason = "older clients of a BBS set it")]
            let (millis, nanos) = (timeout.timeout_ms, timeout.deprecated_timeout_ns);
            if millis < 0 || (millis == 0 && nanos <= 0) {
                faults.push(format!("{path}.timeout.timeout_ms: is {millis}; it must be more than 0"));
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
    fn an_action_and_a_document_with_more() {
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
    fn every_fault_is_told_with_its_path() {
        let text = "serial: {actions: [{}, {run: {}}, {timeout: {timeout_ms: -3}}, {run: {path: a}, try: {}}]}";
        let told = read_text(text).unwrap_err();
        for fault in [
            "6 faults",
            "action.serial.actions[0]: is not set",
            "action.serial.actions[1].run.path: is empty",
            "action.serial.actions[2].timeout.timeout_ms: is -3",
            "action.serial.actions[2].timeout.action: is not set",
            "action.serial.actions[3]: has run, try set",
            "action.serial.actions[3].try.action: is not set",
        ] {
            assert!(told.contains(fault), "{fault}: {told}");
        }
        assert!(read_text("run: {pth: x}").unwrap_err().contains("pth"));
        assert!(read_text("action: {run: {path: x}}\nid: x").unwrap_err().contains("unknown field `id`"));
        assert!(read_text("- run").unwrap_err().contains("is not a mapping"));
    }
}
