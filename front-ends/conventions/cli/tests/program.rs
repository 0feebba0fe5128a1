//! Tests the parts of the command line that need no convention server: manual pages, completions, help, and the lookup
//! of the registrations file.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-cli-convention");

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(args).current_dir(dir).env_clear().env("HOME", dir);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn manual_and_completions_are_written() {
    let dir = tempfile::tempdir().unwrap();
    for what in ["man", "completions"] {
        let output = run(dir.path(), &["generate", what, "--out", "new/dir"]);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    let page = |name: &str| fs::read_to_string(dir.path().join("new/dir").join(name)).unwrap();
    assert!(page("agent-cli-convention.1").contains("EXIT STATUS"));
    assert!(page("agent-cli-convention-apply.1").contains("registry\\-auth\\-file"));
    for name in ["agent-cli-convention.bash", "_agent-cli-convention", "agent-cli-convention.fish"] {
        assert!(page(name).contains("explain"), "{name}");
    }
}

#[test]
fn help_names_the_command_that_people_type() {
    let output = run(Path::new("/"), &["--help"]);
    assert!(output.status.success() && text(&output.stdout).contains("Usage: agent-cli convention "), "{output:?}");
}

/// If the user has a registrations file, it is used. If there is no file, the list is empty.
#[test]
fn registrations_file_is_found_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let list = |more: &[&str]| run(dir.path(), &[&["list", "--json"], more].concat());
    // Skip this if the host has a file in /etc, which would be used here.
    if !Path::new("/etc/executor/conventions.toml").exists() {
        assert_eq!(text(&list(&[]).stdout).split_whitespace().collect::<String>(), r#"{"file":null,"conventions":[]}"#);
    }
    let own = dir.path().join(".config/executor");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("conventions.toml"), "[[convention]]\nname = \"own\"\nurl = \"https://c.example/\"\n").unwrap();
    assert!(text(&list(&[]).stdout).contains("\"name\": \"own\""));
    let other = "[[convention]]\nname = \"other\"\nurl = \"https://c.example/\"\ngrants = [\"root\"]\n";
    fs::write(dir.path().join("other.toml"), other).unwrap();
    let named = text(&list(&["--config", "other.toml"]).stdout);
    assert!(
        named.contains("\"name\": \"other\"") && named.contains("\"root\"") && !named.contains("\"own\""),
        "{named}"
    );
    let missing = list(&["--config", "nope.toml"]);
    assert_eq!(missing.status.code(), Some(125));
    assert!(text(&missing.stderr).contains("nope.toml: No such file"), "{missing:?}");
}

#[test]
fn all_file_violations_are_reported_with_position() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("c.toml"), "").unwrap();
    let bad = "kind: Pod\napiVersion: v1\nkind: Pod\n---\na: 1\n---\n[\n---\nkind: Secret\napiVersion: v1\nmetadata: {name: s}\ndata: {k: '?canary'}\n";
    fs::write(dir.path().join("bad.yaml"), bad).unwrap();
    let output = run(dir.path(), &["--config", "c.toml", "apply", "bad.yaml"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    for part in
        ["bad.yaml: line 3, column 1: kind: ", "line 5: the document is not a Kubernetes object", "bad.yaml: line "]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    fs::write(dir.path().join("secret.yaml"), bad.rsplit("---\n").next().unwrap()).unwrap();
    let output = run(dir.path(), &["--config", "c.toml", "apply", "secret.yaml"]);
    let said = text(&output.stderr);
    assert!(
        said.contains("secret.yaml: document 1: Secret s: data.k is not base64") && !said.contains("canary"),
        "{said}"
    );
    // If there are no conventions, a file is printed unchanged.
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: c\n    image: missing.invalid/x\n";
    fs::write(dir.path().join("pod.yaml"), pod).unwrap();
    let output = run(dir.path(), &["--config", "c.toml", "apply", "--json", "pod.yaml"]);
    assert!(output.status.success() && text(&output.stdout).contains("missing.invalid/x\""), "{output:?}");
    let output = run(dir.path(), &["--config", "c.toml", "explain", "pod.yaml"]);
    assert_eq!(text(&output.stdout), "Pod p\n  no convention matches\n");
}
