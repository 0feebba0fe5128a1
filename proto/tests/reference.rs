//! The reference of the interface in `docs/api.md`, generated from the comments of the `.proto` files.
//!
//! The test fails if the page differs from the generated text. `UPDATE=1 cargo test -p executor-proto --test reference`
//! regenerates the page.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

const PACKAGE: &str = ".executor.v1.";
// Field numbers from google/protobuf/descriptor.proto; a comment's path is a sequence of such numbers.
const MESSAGE: i32 = 4;
const ENUM: i32 = 5;
const SERVICE: i32 = 6;
const METHOD: i32 = 2;
const FIELD: i32 = 2;
const VALUE: i32 = 2;
const NESTED: i32 = 3;
const NESTED_ENUM: i32 = 4;

struct Comments(HashMap<Vec<i32>, String>);

impl Comments {
    fn from_file(file: &FileDescriptorProto) -> Self {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        let comment = |location: &prost_types::source_code_info::Location| {
            let text = [location.leading_comments(), location.trailing_comments()].join(" ");
            (location.path.clone(), text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        Self(locations.map(comment).filter(|(_, text)| !text.is_empty()).collect())
    }

    fn at(&self, path: &[i32]) -> &str {
        self.0.get(path).map_or("", String::as_str)
    }

    fn cell(&self, path: &[i32]) -> String {
        self.at(path).replace('|', "\\|")
    }
}

/// Returns a type's name, as a link if the type belongs to this interface.
fn type_name(full: &str) -> String {
    match full.strip_prefix(PACKAGE) {
        Some(name) => format!("[{name}](#{})", name.to_lowercase().replace('.', "")),
        None => full.trim_start_matches('.').to_owned(),
    }
}

fn field_type(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let plain = |field: &FieldDescriptorProto| match field.r#type() {
        Type::Message | Type::Enum => type_name(field.type_name()),
        kind => kind.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let entry = message.nested_type.iter().find(|nested| {
        nested.options.as_ref().is_some_and(|options| options.map_entry())
            && field.type_name().ends_with(&format!(".{}", nested.name()))
    });
    if let Some(entry) = entry {
        return format!("map of {} to {}", plain(&entry.field[0]), plain(&entry.field[1]));
    }
    match (field.label(), field.proto3_optional()) {
        (Label::Repeated, _) => format!("repeated {}", plain(field)),
        (_, true) => format!("optional {}", plain(field)),
        _ => plain(field),
    }
}

fn enumeration(page: &mut String, name: &str, of: &EnumDescriptorProto, path: &[i32], comments: &Comments) {
    write!(page, "\n### {name}\n\n{}\n\n| number | value | |\n|---|---|---|\n", comments.at(path)).unwrap();
    for (index, value) in of.value.iter().enumerate() {
        let comment = comments.cell(&[path, &[VALUE, index as i32]].concat());
        writeln!(page, "| {} | `{}` | {comment} |", value.number(), value.name()).unwrap();
    }
}

fn message(page: &mut String, name: &str, of: &DescriptorProto, path: &[i32], comments: &Comments) {
    write!(page, "\n### {name}\n\n{}\n", comments.at(path)).unwrap();
    if of.field.is_empty() {
        page.push_str("\nNo fields.\n");
    } else {
        page.push_str("\n| number | field | type | |\n|---|---|---|---|\n");
    }
    for (index, field) in of.field.iter().enumerate() {
        let comment = comments.cell(&[path, &[FIELD, index as i32]].concat());
        let one_of = field.oneof_index.filter(|_| !field.proto3_optional());
        let one_of = one_of.map_or_else(String::new, |at| format!("One of `{}`. ", of.oneof_decl[at as usize].name()));
        let deprecated = field.options.as_ref().is_some_and(|options| options.deprecated());
        let deprecated = if deprecated { "Deprecated. " } else { "" };
        let kind = field_type(field, of);
        writeln!(page, "| {} | `{}` | {kind} | {deprecated}{one_of}{comment} |", field.number(), field.name()).unwrap();
    }
    for (index, nested) in of.enum_type.iter().enumerate() {
        let path = [path, &[NESTED_ENUM, index as i32]].concat();
        enumeration(page, &format!("{name}.{}", nested.name()), nested, &path, comments);
    }
    for (index, nested) in of.nested_type.iter().enumerate() {
        if !nested.options.as_ref().is_some_and(|options| options.map_entry()) {
            let path = [path, &[NESTED, index as i32]].concat();
            message(page, &format!("{name}.{}", nested.name()), nested, &path, comments);
        }
    }
}

fn services(page: &mut String, file: &FileDescriptorProto, comments: &Comments) {
    for (index, service) in file.service.iter().enumerate() {
        let path = [SERVICE, index as i32];
        write!(page, "\n## Service {}\n\n{}\n", service.name(), comments.at(&path)).unwrap();
        for (index, method) in service.method.iter().enumerate() {
            let comment = comments.at(&[&path[..], &[METHOD, index as i32]].concat());
            let stream = |streams: bool| if streams { "stream of " } else { "" };
            write!(
                page,
                "\n### {}.{}\n\n{}{} → {}{}\n\n{comment}\n",
                service.name(),
                method.name(),
                stream(method.client_streaming()),
                type_name(method.input_type()),
                stream(method.server_streaming()),
                type_name(method.output_type()),
            )
            .unwrap();
        }
    }
}

/// Generates the whole page `docs/api.md`.
fn reference(set: &FileDescriptorSet) -> String {
    let mut page = String::from(
        "# Reference of executor.v1\n\nGenerated from `proto/executor/v1/*.proto` by\n`UPDATE=1 cargo test -p executor-proto --test reference`. \
         Sizes are bytes unless a field says otherwise. A field that\nis not set has its type's default.\n",
    );
    let ours: Vec<_> = set.file.iter().filter(|file| file.package() == "executor.v1").collect();
    let comments: Vec<_> = ours.iter().map(|file| Comments::from_file(file)).collect();
    for (file, comments) in ours.iter().zip(&comments) {
        services(&mut page, file, comments);
    }
    for (file, comments) in ours.iter().zip(&comments) {
        write!(page, "\n## Messages of {}\n", file.name()).unwrap();
        for (index, of) in file.message_type.iter().enumerate() {
            message(&mut page, of.name(), of, &[MESSAGE, index as i32], comments);
        }
        for (index, of) in file.enum_type.iter().enumerate() {
            enumeration(&mut page, of.name(), of, &[ENUM, index as i32], comments);
        }
    }
    // A heading without a comment leaves an empty paragraph.
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    page
}

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap()
}

#[test]
fn reference_in_docs_matches_interface() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
    let generated = reference(&descriptors());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == generated, "docs/api.md differs: UPDATE=1 cargo test -p executor-proto --test reference");
}

#[test]
fn reference_contains_methods_fields_and_types() {
    let page = reference(&descriptors());
    for wanted in [
        "### Executor.Run\n\n[RunRequest](#runrequest) → [RunResponse](#runresponse)",
        "### Executor.StreamLogs\n\n[StreamLogsRequest](#streamlogsrequest) → stream of",
        "| 5 | `labels` | map of string to string |",
        "| 9 | `volume_mounted_files` | repeated [File](#file) |",
        "| 4 | `expected_generation` | optional uint64 |",
        "### PortMapping.Protocol",
        "| 2 | `nproc` | optional uint64 | Deprecated. ",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
}

/// Every `.proto` file names the packages that users of other languages expect.
#[test]
fn every_file_has_packages_for_other_languages() {
    for file in descriptors().file.into_iter().filter(|file| file.package() == "executor.v1") {
        let options = file.options.clone().unwrap_or_default();
        assert_eq!(
            (options.go_package(), options.java_package(), options.csharp_namespace()),
            ("executor.internal/proto/executor/v1;executorv1", "executor.v1", "Executor.V1"),
            "{}",
            file.name()
        );
    }
}
