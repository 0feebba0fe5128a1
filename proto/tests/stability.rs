//! Compatibility of `executor.v1`: each later version has every field, value and method of a release, with the same
//! number and type.
//!
//! `tests/stability.txt` has a line for each field, enum value and method of the last release. The test fails if one of
//! them is removed, renamed or renumbered, or changes its type; see docs/api-stability.md. `UPDATE=1 cargo test -p
//! executor-proto --test stability` adds new lines, for a release. The command never removes a line.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message as _;
use prost_types::field_descriptor_proto::Label;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

fn enumeration(prefix: &str, found: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &found.value {
        lines.insert(format!("enum {prefix}{}.{} = {}", found.name(), value.name(), value.number()));
    }
}

fn message(prefix: &str, found: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{prefix}{}", found.name());
    for field in &found.field {
        let kind = match field.type_name() {
            "" => format!("{:?}", field.r#type()).to_lowercase(),
            named => named.trim_start_matches('.').to_owned(),
        };
        let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
        lines.insert(format!("field {name}.{} = {}: {repeated}{kind}", field.name(), field.number()));
    }
    let inner = format!("{name}.");
    found.nested_type.iter().for_each(|nested| message(&inner, nested, lines));
    found.enum_type.iter().for_each(|nested| enumeration(&inner, nested, lines));
}

/// Returns a line for each field, enum value and method.
fn interface(set: &FileDescriptorSet) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in set.file.iter().filter(|file| file.package() == "executor.v1") {
        file.message_type.iter().for_each(|found| message("", found, &mut lines));
        file.enum_type.iter().for_each(|found| enumeration("", found, &mut lines));
        for service in &file.service {
            for method in &service.method {
                let (asks, answers) = (stream(method.client_streaming()), stream(method.server_streaming()));
                let (input, output) = (method.input_type(), method.output_type());
                lines.insert(format!(
                    "method {}.{}({asks}{input}) returns ({answers}{output})",
                    service.name(),
                    method.name()
                ));
            }
        }
    }
    lines
}

fn stream(is_stream: bool) -> &'static str {
    if is_stream { "stream " } else { "" }
}

/// Returns the released lines that the interface no longer has.
fn broken(released: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    released.difference(now).cloned().collect()
}

#[test]
fn released_interface_is_kept() {
    let now = interface(&FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stability.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let released: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(broken(&released, &now), Vec::<String>::new(), "removed or changed; see docs/api-stability.md");
    if std::env::var_os("UPDATE").is_some() {
        let all: Vec<&str> = released.union(&now).map(String::as_str).collect();
        std::fs::write(&path, all.join("\n") + "\n").unwrap();
    } else {
        assert!(released.len() > 500, "control failed: only {} lines are compared", released.len());
    }
}

/// Control: each kind of incompatible change is found.
#[test]
fn changed_interface_is_found() {
    let set = FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap();
    let released = interface(&set);
    let changed = |change: &dyn Fn(&mut prost_types::FileDescriptorProto)| {
        let mut set = set.clone();
        let file = set.file.iter_mut().find(|file| file.package() == "executor.v1" && !file.service.is_empty());
        change(file.unwrap());
        broken(&released, &interface(&set)).len()
    };
    assert_eq!(changed(&|_| ()), 0);
    assert_eq!(changed(&|file| drop(file.message_type[0].field.remove(0))), 1, "a removed field");
    assert_eq!(changed(&|file| file.message_type[0].field[0].number = Some(5000)), 1, "a renumbered field");
    assert_eq!(changed(&|file| file.message_type[0].field[0].name = Some("other".into())), 1, "a renamed field");
    assert_eq!(changed(&|file| drop(file.service[0].method.remove(0))), 1, "a removed method");
}
