//! Documents printed with `--json` are valid according to `docs/agent-cli.schema.json`.

use std::path::Path;

use executor_proto::v1::{LogStream, State};
use serde_json::{Value, json};

use crate::fake::{Fake, signaled};
use crate::program::run;

fn page() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent-cli.schema.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the schema of a command's document, with all definitions of the page.
fn schema(page: &Value, command: &str) -> Value {
    let mut schema = page["properties"][command].clone();
    schema["$defs"] = page["$defs"].clone();
    schema
}

fn errors(schema: &Value, document: &Value) -> Vec<String> {
    let validator = jsonschema::draft202012::new(schema).unwrap();
    validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn documents_fit_the_schema() {
    let page = page();
    let fake = Fake::start();
    for id in ["a", "b", "c"] {
        fake.add(id, State::Running);
    }
    fake.shared.complete("c", signaled(9));
    fake.shared.log_at("c", 1, LogStream::Stderr, b"err \xff\n");
    for args in
        [&["ps", "-a"][..], &["inspect", "c"], &["wait", "c"], &["info"], &["logs", "c"], &["signal", "a", "TERM"]]
    {
        let document = run(&fake, &[args, &["--json"]].concat()).json();
        assert_eq!(errors(&schema(&page, args[0]), &document), [""; 0], "{args:?}: {document}");
    }
    let removed = run(&fake, &["rm", "c", "nope", "--json"]).json();
    assert_eq!(errors(&schema(&page, "rm"), &removed), [""; 0], "{removed}");
    let mut container = run(&fake, &["inspect", "a", "--json"]).json();
    container["files_generation"] = json!("1");
    assert_eq!(errors(&schema(&page, "inspect"), &container).len(), 1, "the control: a number as a text");
}
