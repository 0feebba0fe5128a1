//! Inputs of the run tool (rules 3, 4, 11, 13 and 16 to 22 of docs/guides/cnab-rules.md).

use std::fs;

use serde_json::{Value, json};

use crate::cnab::world::{KEY, World, lamp};

const KINDS: [&str; 8] = ["boolean", "integer", "number", "object", "array", "string", "unset", "defaulted"];

fn typed() -> Value {
    let definition = |kind: &str| match kind {
        "unset" => json!({ "type": "integer" }),
        "defaulted" => json!({ "type": "object", "default": { "a": [1, true] } }),
        kind => json!({ "type": kind }),
    };
    let parameter = |kind: &&str| {
        // A relative path is resolved against the root (rule 20).
        let destination = json!({ "env": kind.to_uppercase(), "path": format!("etc/x/{kind}") });
        ((*kind).to_owned(), json!({ "definition": kind, "destination": destination }))
    };
    json!({
        "schemaVersion": "v1.0.0", "name": "typed", "version": "1.0.0", "invocationImages": [{ "image": "x" }],
        "definitions": KINDS.iter().map(|kind| ((*kind).to_owned(), definition(kind))).collect::<serde_json::Map<_, _>>(),
        "parameters": KINDS.iter().map(parameter).collect::<serde_json::Map<_, _>>(),
    })
}

#[test]
fn rules_16_to_20_variables_and_files_hold_values() {
    let names = KINDS.map(str::to_uppercase).join(" ");
    let script = format!(
        "for v in {names} CNAB_ACTION CNAB_INSTALLATION_NAME CNAB_BUNDLE_NAME CNAB_CLAIMS_VERSION; do eval \"x=\\${{$v-none}}\"; echo \"$v=<$x>\"; done\n\
         cd /etc/x; for f in {}; do echo \"$f=<$(cat $f)>\"; done; echo @; cat /cnab/bundle.json",
        KINDS.join(" ")
    );
    let world = World::new(&script);
    let bundle = world.bundle(&typed());
    // No JSON library produces this formatting: rule 3 requires the original bytes.
    let original = serde_json::to_string_pretty(&typed()).expect("JSON").replace("  ", " \t");
    fs::write(&bundle, &original).expect("write");
    let set = [
        "boolean=true",
        "integer=-5",
        "number=2.5",
        r#"object={"foo": 23}"#,
        r#"array=["a", {}]"#,
        "string=as \"it\" is $HOME",
    ];
    let set: Vec<&str> = set.iter().flat_map(|value| ["-p", value]).collect();
    let ran = world.acts(&[&["install", "app", "-b", &bundle], &set[..]].concat());
    let (reported, mounted) = ran.stdout.split_once("@\n").expect("two parts");
    assert_eq!(mounted, original);
    let values = ["true", "-5", "2.5", r#"{"foo":23}"#, r#"["a",{}]"#, "as \"it\" is $HOME", "", r#"{"a":[1,true]}"#];
    let mut expected = String::new();
    for (kind, value) in KINDS.iter().zip(values) {
        expected.push_str(&format!("{}=<{value}>\n", kind.to_uppercase()));
    }
    expected.push_str("CNAB_ACTION=<install>\nCNAB_INSTALLATION_NAME=<app>\nCNAB_BUNDLE_NAME=<typed>\nCNAB_CLAIMS_VERSION=<CNAB-Claims-1.0.0>\n");
    for (kind, value) in KINDS.iter().zip(values) {
        expected.push_str(&format!("{kind}=<{value}>\n"));
    }
    assert_eq!(reported, expected);
}

/// With `--omit-unset-files`, an unset parameter has no file. Some tools test whether the file exists.
#[test]
fn files_of_unset_parameters_can_be_omitted() {
    let world = World::new("cat /etc/x/unset && echo there || echo absent");
    let bundle = world.bundle(&typed());
    assert_eq!(world.acts(&["install", "a", "-b", &bundle]).stdout, "there\n");
    assert_eq!(world.acts(&["install", "b", "-b", &bundle, "--omit-unset-files"]).stdout, "absent\n");
}

/// The container user can read and change the files and create files next to them, but cannot change the source files
/// (rules 19 and 22).
#[test]
fn run_tool_changes_files_but_not_sources() {
    let world = World::new(
        "id -u; cd /etc/lamp; stat -L -c '%a %u' key; [ \"$(cat key)\" = \"$KEY\" ] && echo read\n\
         echo $KEY > beside && mkdir made && mv beside made/ && echo changed > new && mv new key && cat key\n\
         echo of the tool > /cnab/bundle.json && cat /cnab/bundle.json; echo x > /cnab/app/outputs/seen",
    );
    let bundle = world.bundle(&lamp());
    for (name, user, uid) in [("app", "app", 1234), ("root", "root", 0)] {
        let ran = world.acts(&["install", name, "-b", &bundle, "--user", user]);
        assert_eq!(ran.stdout, format!("{uid}\n600 {uid}\nread\nchanged\nof the tool\n"), "{ran:?}");
        assert_eq!(fs::read_to_string(world.path("key")).expect("the source"), KEY);
        world.is_clean(name);
    }
}

/// All errors are reported together, before any effect, and contain no value (rules 13 and 21).
#[test]
fn violations_are_reported_before_anything_runs() {
    let world = World::new("exit 1");
    let bundle = world.bundle(&lamp());
    let ran =
        world.act(&["install", "app", "-b", &bundle, "-p", "period=99", "-p", "nope=canary", "-p", "pass=@env:HOME"]);
    assert!(
        ran.status == 125 && ran.stderr.contains("/parameters/period") && ran.stderr.contains("/parameters/nope"),
        "{ran:?}"
    );
    assert!(!ran.stderr.contains("canary"), "{ran:?}");
    let ran = world.act(&["install", "app", "-b", &bundle, "-p", "pass=canary"]);
    assert!(ran.status == 125 && ran.stderr.contains("pass=@FILE") && !ran.stderr.contains("canary"), "{ran:?}");
    let creds = world.path("creds.json");
    let ran = world.act(&["install", "app", "-b", &bundle, "-c", &creds]);
    assert!(ran.status == 125 && ran.stderr.contains("in two credential sets"), "{ran:?}");
    assert!(!world.claims().join("claims").exists(), "nothing was recorded");
    let mut broken = lamp();
    broken["version"] = json!("1");
    broken["outputs"]["seen"]["path"] = json!("/etc/x");
    let ran = world.cnab(&["validate", &world.bundle(&broken)]);
    assert!(ran.status == 1 && ran.stdout.contains("/version") && ran.stdout.contains("/outputs/seen/path"), "{ran:?}");
    let explained = world.reported(&["explain", &world.bundle(&lamp())]);
    assert_eq!(explained["credentials"][0]["env"], "KEY");
    assert_eq!(explained["parameters"][1]["default"], 10);
}
