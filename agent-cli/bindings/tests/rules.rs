//! Tests each rule of docs/guides/service-bindings.md. Some inputs are from the tests of cloud_controller_ng and
//! libcnb.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test
#![allow(clippy::needless_pass_by_value)] // `json!` is passed by value

use std::collections::BTreeMap;

use executor_bindings::{BYTES_MAX, Bindings, Builder, INPUT_MAX, Layout, ONE_FILE, Profile, Refused, Violation};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// VCAP_SERVICES from Cloud Controller: a binding with every attribute (names from a test of Cloud Controller).
const FULL: &str = r#"{"service-name": [{
    "label": "service-name", "provider": null, "plan": "plan-name", "name": "binding-name",
    "tags": ["a-service-tag", "an-instance-tag"],
    "instance_guid": "guid-1", "instance_name": "instance-name",
    "binding_guid": "guid-2", "binding_name": "binding-name",
    "credentials": {"string": "a string", "number": 42, "boolean": true, "array": ["one", "two", "three"],
                    "hash": {"key": "value"}},
    "syslog_drain_url": null, "volume_mounts": []
}]}"#;

fn built(vcap_services: &str, profile: Profile) -> Result<BTreeMap<String, String>, Refused> {
    let bindings = Builder::new().vcap_services(vcap_services.as_bytes(), profile).finish()?;
    let file = |file: executor_bindings::BindingFile| (file.path, String::from_utf8(file.content.to_vec()).unwrap());
    Ok(bindings.into_files().into_iter().map(file).collect())
}

fn files(vcap_services: &str, profile: Profile) -> BTreeMap<String, String> {
    built(vcap_services, profile).unwrap()
}

/// Returns a service `l` that has one binding with this name, these credentials, and the label `t`.
fn one(name: &str, credentials: Value) -> String {
    json!({"l": [{"name": name, "label": "t", "credentials": credentials}]}).to_string()
}

fn lines(vcap_services: &str, profile: Profile) -> Vec<String> {
    built(vcap_services, profile).unwrap_err().lines().collect()
}

fn entries(files: &BTreeMap<String, String>) -> Vec<&str> {
    files.keys().map(|path| path.split_once('/').unwrap().1).collect()
}

#[test]
fn row_type_is_label_in_every_profile() {
    for profile in Profile::ALL {
        assert_eq!(files(&one("b", json!({})), profile)["b/type"], "t", "{profile}");
    }
}

#[test]
fn row_provider_is_label_or_cc_type() {
    for (profile, expected) in [(Profile::Rfc, "l"), (Profile::Libcnb, "l"), (Profile::Cc, "t")] {
        assert_eq!(files(&one("b", json!({})), profile)["b/provider"], expected, "{profile}");
    }
}

/// Cloud Controller uses the label as the key, so the key is the default for a missing label.
#[test]
fn row_type_falls_back_to_the_key() {
    for label in [json!({}), json!({"label": null})] {
        let mut binding = json!({"name": "b"});
        binding.as_object_mut().unwrap().extend(label.as_object().unwrap().clone());
        let files = files(&json!({"mysql": [binding]}).to_string(), Profile::Cc);
        assert_eq!((&*files["b/type"], &*files["b/provider"]), ("mysql", "mysql"));
    }
}

#[test]
fn row_credentials_k_is_file_k() {
    for profile in Profile::ALL {
        let files = files(&one("b", json!({"uri": "a://b", "some_secret": " kept \n", "empty": ""})), profile);
        assert_eq!(
            (&*files["b/uri"], &*files["b/some_secret"], &*files["b/empty"]),
            ("a://b", " kept \n", ""),
            "{profile}"
        );
    }
}

#[test]
fn row_non_string_values_are_json() {
    let text = r#"{"l": [{"name": "b", "credentials": {
        "int": 1, "bool": true, "float": 1.50, "large": 123456789012345678901234567890, "exp": 1E+2,
        "list": [ "one", 2 ], "object": { "z" : { "k": "<ü>" } , "a" : null }
    }}]}"#;
    for profile in Profile::ALL {
        let files = files(text, profile);
        let expected = [
            ("int", "1"),
            ("bool", "true"),
            ("float", "1.50"),
            ("large", "123456789012345678901234567890"),
            ("exp", "1E+2"),
            ("list", r#"["one",2]"#),
            ("object", r#"{"z":{"k":"<ü>"},"a":null}"#),
        ];
        for (entry, content) in expected {
            assert_eq!(files[&format!("b/{entry}")], content, "{profile}: {entry}");
        }
    }
}

#[test]
fn row_attributes_are_files_except_for_libcnb() {
    let all = [
        "array",
        "binding_guid",
        "binding_name",
        "boolean",
        "hash",
        "instance_guid",
        "instance_name",
        "label",
        "name",
        "number",
        "plan",
        "provider",
        "string",
        "tags",
        "type",
    ];
    let cc = files(FULL, Profile::Cc);
    assert_eq!(entries(&cc), all);
    let expected = [
        ("type", "service-name"),
        ("provider", "service-name"),
        ("label", "service-name"),
        ("plan", "plan-name"),
        ("tags", r#"["a-service-tag","an-instance-tag"]"#),
        ("binding_guid", "guid-2"),
        ("instance_name", "instance-name"),
        ("number", "42"),
        ("hash", r#"{"key":"value"}"#),
    ];
    for (entry, content) in expected {
        assert_eq!(cc[&format!("binding-name/{entry}")], content);
    }
    assert_eq!(
        entries(&files(FULL, Profile::Libcnb)),
        ["array", "boolean", "hash", "number", "provider", "string", "type"]
    );
}

#[test]
fn row_rfc_attributes_use_dashes() {
    let rfc = files(FULL, Profile::Rfc);
    let expected = [
        "array",
        "binding-guid",
        "binding-name",
        "boolean",
        "hash",
        "instance-guid",
        "instance-name",
        "label",
        "name",
        "number",
        "plan",
        "provider",
        "string",
        "syslog-drain-url",
        "tags",
        "type",
        "volume-mounts",
    ];
    assert_eq!(entries(&rfc), expected);
    // Programs look up credentials by name, so the name is kept.
    assert!(files(&one("b", json!({"client_id": "x"})), Profile::Rfc).contains_key("b/client_id"));
}

#[test]
fn row_an_attribute_overwrites_a_credential() {
    let credentials = json!({"type": "duplicate-type", "name": "duplicate-name", "provider": "p", "label": "x",
                             "credentials": {"password": "secret"}});
    let cc = files(&one("b", credentials.clone()), Profile::Cc);
    assert_eq!((&*cc["b/type"], &*cc["b/name"], &*cc["b/provider"], &*cc["b/label"]), ("t", "b", "t", "t"));
    assert_eq!(cc["b/credentials"], r#"{"password":"secret"}"#);
    assert_eq!(entries(&cc), ["credentials", "label", "name", "provider", "type"]);
    // In every profile, credentials do not replace the attributes `type` and `provider`. libcnb writes no file for
    // other attributes.
    let libcnb = files(&one("b", credentials), Profile::Libcnb);
    assert_eq!((&*libcnb["b/type"], &*libcnb["b/provider"], &*libcnb["b/name"]), ("t", "l", "duplicate-name"));
}

#[test]
fn row_cc_omits_nil_and_empty_values() {
    let credentials = json!({"nil": null, "list": [], "object": {}, "string": "", "zero": 0, "no": false});
    let cc = files(&one("b", credentials.clone()), Profile::Cc);
    assert_eq!(entries(&cc), ["label", "name", "no", "provider", "string", "type", "zero"]);
    for profile in [Profile::Rfc, Profile::Libcnb] {
        let files = files(&one("b", credentials.clone()), profile);
        assert_eq!((&*files["b/nil"], &*files["b/list"], &*files["b/object"]), ("null", "[]", "{}"), "{profile}");
    }
}

#[test]
fn default_root_and_variable() {
    let bindings = Builder::new().vcap_services(FULL.as_bytes(), Profile::Cc).finish().unwrap();
    assert_eq!((bindings.layout(), bindings.layout().variable()), (Layout::Directories, "SERVICE_BINDING_ROOT"));
    assert_eq!(executor_bindings::DEFAULT_ROOT, "/etc/cf-service-bindings");
}

/// The example of libcnb's own test.
#[test]
fn libcnb_example_is_converted() {
    let text = json!({
        "elephantsql-provider": [{
            "name": "elephantsql-binding-c6c60", "label": "elephantsql-type", "plan": "turtle",
            "credentials": {"uri": "postgres://u:p@example.com:5432/u", "int": 1, "bool": true},
            "syslog_drain_url": null, "volume_mounts": []
        }],
        "postgres": [{"name": "postgres", "label": "postgres", "credentials": {"urls": {"example": "http://example.com"}}}]
    });
    let expected = [
        ("elephantsql-binding-c6c60/bool", "true"),
        ("elephantsql-binding-c6c60/int", "1"),
        ("elephantsql-binding-c6c60/provider", "elephantsql-provider"),
        ("elephantsql-binding-c6c60/type", "elephantsql-type"),
        ("elephantsql-binding-c6c60/uri", "postgres://u:p@example.com:5432/u"),
        ("postgres/provider", "postgres"),
        ("postgres/type", "postgres"),
        ("postgres/urls", r#"{"example":"http://example.com"}"#),
    ];
    let expected: BTreeMap<String, String> = expected.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    assert_eq!(files(&text.to_string(), Profile::Libcnb), expected);
    assert!(files("{}", Profile::Libcnb).is_empty());
}

/// A duplicate key has its last value, as in Ruby's Hash and in decoders of Go.
#[test]
fn duplicate_keys_use_last_value() {
    let text = r#"{"l": [{"name": "lost"}], "l": [{"name": "b", "credentials": {"k": "1", "k": "2"}}]}"#;
    let files = files(text, Profile::Libcnb);
    assert_eq!(entries(&files), ["k", "provider", "type"]);
    assert_eq!(files["b/k"], "2");
}

#[test]
fn unnamed_binding_uses_instance_name() {
    let files = files(r#"{"l": [{"name": null, "binding_name": "", "instance_name": "upsi"}]}"#, Profile::Libcnb);
    assert!(files.contains_key("upsi/type"));
}

#[test]
fn error_invalid_binding_name() {
    assert_eq!(
        lines(&one("binding_name", json!({})), Profile::Cc),
        [
            r"Cannot build service binding files for app - Invalid binding name: 'binding_name'. Name must match /^[a-z0-9\-.]{1,253}$/"
        ]
    );
    for name in ["", ".", "..", "..data", "good\n../../etc", "good\n", "A", "a/b", &"a".repeat(254)] {
        let refused = built(&one(name, json!({})), Profile::Cc).unwrap_err();
        assert_eq!(refused.violations(), [Violation::BindingName(name.to_owned())]);
    }
    assert!(built(&one(&"a".repeat(253), json!({})), Profile::Cc).is_ok());
}

#[test]
fn error_duplicate_binding_name() {
    let text = json!({"l": [{"name": "duplicate-name"}], "user-provided": [{"name": "duplicate-name"}]}).to_string();
    assert_eq!(
        lines(&text, Profile::Cc),
        ["Cannot build service binding files for app - Duplicate binding name: duplicate-name"]
    );
}

#[test]
fn error_invalid_file_name() {
    assert_eq!(
        lines(&one("b", json!({"../secret": "hidden"})), Profile::Cc),
        ["Cannot build service binding files for app - Invalid file name: ../secret"]
    );
    for name in ["", ".", "..", "..data", "a/b", "good\n../secret", "Password", &"a".repeat(254)] {
        for value in [json!("x"), json!(null), json!([])] {
            let refused = built(&one("b", json!({name: value})), Profile::Cc).unwrap_err();
            assert_eq!(refused.violations(), [Violation::FileName(name.to_owned())]);
        }
    }
}

/// The size limit applies to paths and contents of the resulting files: 1,000,000 bytes pass and 1,000,001 fail.
#[test]
fn error_size_is_counted_over_final_files() {
    for profile in Profile::ALL {
        let sized = |length: usize, more: &[(&str, &str)]| {
            let mut credentials = json!({"pad": "x".repeat(length)});
            for (key, value) in more {
                credentials[key] = json!(value);
            }
            one("b", credentials)
        };
        let rest: usize = files(&sized(0, &[]), profile).iter().map(|(path, content)| path.len() + content.len()).sum();
        let most = BYTES_MAX as usize - rest;
        assert_eq!(files(&sized(most, &[]), profile)["b/pad"].len(), most, "{profile}: 1,000,000 passes");
        assert_eq!(
            lines(&sized(most + 1, &[]), profile),
            [
                "Cannot build service binding files for app - Bindings exceed the maximum allowed bytesize of 1000000: 1000001"
            ],
            "{profile}"
        );
        // An attribute replaces a credential of the same name. The credential has no file, so it does not count.
        assert!(built(&sized(most, &[("type", "duplicate-type")]), profile).is_ok(), "{profile}");
    }
}

#[test]
fn error_everything_is_reported_at_once() {
    let text = json!({
        "l": [
            {"name": "Bad", "credentials": {"../x": 1}},
            {"name": "twice", "credentials": {"big": "x".repeat(1_000_000)}},
            {"name": "twice", "credentials": 5},
            "no binding",
        ],
        "m": 7,
    });
    let refused = built(&text.to_string(), Profile::Libcnb).unwrap_err();
    assert_eq!(
        refused.violations(),
        [
            Violation::BindingName("Bad".into()),
            Violation::FileName("../x".into()),
            Violation::DuplicateBinding("twice".into()),
            Violation::NoCredentials("twice".into()),
            Violation::NoBinding { service: "l".into(), number: 4 },
            Violation::NoList("m".into()),
            Violation::Size(1_000_035),
        ]
    );
    assert_eq!(refused.to_string().lines().count(), 7);
    assert!(refused.lines().all(|line| line.starts_with("Cannot build service binding files for app - ")));
}

#[test]
fn error_invalid_vcap_services_document() {
    let table: [(&[u8], Violation); 6] = [
        (b"", Violation::Syntax { line: 1, column: 0 }),
        (b"{\n  \"l\": hunter2}", Violation::Syntax { line: 2, column: 8 }),
        (b"{\n \xff}", Violation::Syntax { line: 2, column: 2 }),
        (b"[]", Violation::NoServices),
        (b"\"hunter2\"", Violation::NoServices),
        (&vec![b' '; INPUT_MAX + 1], Violation::Input(INPUT_MAX + 1)),
    ];
    for (bytes, violation) in table {
        let refused = Builder::new().vcap_services(bytes, Profile::Cc).finish().unwrap_err();
        assert_eq!(refused.violations(), std::slice::from_ref(&violation));
        assert!(!refused.to_string().contains("hunter2"));
        assert_eq!(Bindings::one_file(bytes).unwrap_err().violations(), [violation]);
    }
}

/// If the document is malformed within a binding, the binding causes no further violations.
#[test]
fn error_malformed_document_is_only_violation() {
    let text = "{\n \"l\": [{\"name\": \"db\", \"credentials\":\n  {\"k\": \"\\ud800\"}}]}";
    let refused = Builder::new().vcap_services(text.as_bytes(), Profile::Cc).finish().unwrap_err();
    assert_eq!(refused.violations(), [Violation::Syntax { line: 3, column: 16 }]);
}

/// No message contains a value, for any violation.
#[test]
fn error_messages_hold_no_value() {
    let text =
        r#"{"hunter2-not": "hunter2", "l": ["hunter2", {"name": "b", "credentials": "hunter2", "x": "hunter2"}]}"#;
    for line in lines(text, Profile::Cc) {
        assert!(!line.replace("hunter2-not", "").contains("hunter2"), "{line}");
    }
}

#[test]
fn one_file_layout_keeps_document_unchanged() {
    let text = " { \"l\" : [ { \"name\" : \"Any NAME\", \"n\" : 1.50 } ] } ";
    let bindings = Bindings::one_file(text.as_bytes()).unwrap();
    assert_eq!((bindings.layout(), bindings.layout().variable()), (Layout::OneFile, "VCAP_SERVICES_FILE_PATH"));
    let [file] = bindings.files() else { panic!("one file") };
    assert_eq!((&*file.path, file.public), (ONE_FILE, false));
    assert_eq!(*file.content, br#"{"l":[{"name":"Any NAME","n":1.50}]}"#);
    assert!(bindings.bindings().is_empty());

    let sized = |length: usize| format!(r#"{{"l":[],"k":"{}"}}"#, "x".repeat(length));
    let most = BYTES_MAX as usize - ONE_FILE.len() - sized(0).len();
    assert_eq!(Bindings::one_file(sized(most).as_bytes()).unwrap().bytes(), BYTES_MAX);
    assert_eq!(
        Bindings::one_file(sized(most + 1).as_bytes()).unwrap_err().to_string(),
        "Cannot build service binding files for app - Bindings exceed the maximum allowed bytesize of 1000000: 1000001"
    );
}

#[test]
fn binding_of_directory_keeps_all_entries() {
    let entry = |name: &str, content: &[u8]| (name.to_owned(), Zeroizing::new(content.to_vec()));
    let bindings = Builder::new()
        .vcap_services(one("a", json!({})).as_bytes(), Profile::Cc)
        .binding("db", vec![entry("type", b"mysql"), entry("TLS.crt", b"\0\xff\n"), entry("user_name", b"")])
        .finish()
        .unwrap();
    let listed: Vec<_> = bindings.bindings().iter().map(|b| (b.name.to_owned(), b.entries.len())).collect();
    assert_eq!(listed, [("a".to_owned(), 4), ("db".to_owned(), 3)]);
    let all = bindings.bindings();
    assert_eq!((all[1].kind(), all[1].provider()), (Some("mysql"), None));
    assert_eq!(all[1].entry("TLS.crt"), Some(&b"\0\xff\n"[..]));

    let refused = Builder::new()
        .vcap_services(one("a", json!({})).as_bytes(), Profile::Cc)
        .binding("a", vec![entry("type", b"t")])
        .binding("no-type", vec![entry("a/b", b"")])
        .binding("empty", Vec::new())
        .binding("Bad", vec![entry("type", b"t")])
        .finish()
        .unwrap_err();
    assert_eq!(
        refused.violations(),
        [
            Violation::DuplicateBinding("a".into()),
            Violation::NoType("no-type".into()),
            Violation::FileName("a/b".into()),
            Violation::NoType("empty".into()),
            Violation::BindingName("Bad".into()),
        ]
    );
}

/// Metadata of a binding is not masked in a log. Credentials are masked, even if their names are names of metadata.
#[test]
fn binding_metadata_is_public() {
    let public = |text: &str, profile| -> Vec<String> {
        let bindings = Builder::new().vcap_services(text.as_bytes(), profile).finish().unwrap();
        let public = bindings.into_files().into_iter().filter(|file| file.public);
        public.map(|file| file.path.split_once('/').unwrap().1.to_owned()).collect()
    };
    let described =
        ["binding_guid", "binding_name", "instance_guid", "instance_name", "label", "name", "plan", "provider"];
    assert_eq!(public(FULL, Profile::Cc), [&described[..], &["tags", "type"]].concat());
    let credentials = json!({"plan": "secret", "tags": "secret", "syslog_drain_url": "secret"});
    assert_eq!(public(&one("b", credentials), Profile::Libcnb), ["provider", "type"]);
    let drain = json!({"l": [{"name": "b", "syslog_drain_url": "https://user:pw@example.com"}]}).to_string();
    assert!(!public(&drain, Profile::Cc).contains(&"syslog_drain_url".to_owned()));
}

#[test]
fn no_debug_shows_a_value() {
    let bindings = Builder::new().vcap_services(one("b", json!({"k": "hunter2"})).as_bytes(), Profile::Cc).finish();
    let shown = format!("{bindings:?} {:?}", bindings.as_ref().unwrap().bindings());
    assert!(shown.contains("b/k") && shown.contains("[REDACTED; 7 bytes]") && !shown.contains("hunter2"), "{shown}");
}

/// Any input results in an error or in files that obey every rule. The input is a document with random changes.
#[test]
fn random_documents_fail_or_follow_rules() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let pieces: [&[u8]; 8] = [b"..", b"/", b"\\u0000", b"\\n", b"[]", b"null", b"\"name\"", b"\xff"];
    let mut passed = 0;
    for round in 0..20_000 {
        let mut bytes = FULL.as_bytes().to_vec();
        for _ in 0..random(4) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.splice(at..(at + random(20)).min(bytes.len()), [])),
                _ => drop(bytes.splice(at..at, pieces[random(pieces.len())].iter().copied())),
            }
        }
        let _ = Bindings::one_file(&bytes);
        let Ok(bindings) = Builder::new().vcap_services(&bytes, Profile::ALL[round % 3]).finish() else { continue };
        passed += 1;
        assert!(bindings.bytes() <= BYTES_MAX);
        assert!(bindings.bindings().iter().all(|binding| binding.entry("type").is_some()));
        for file in bindings.files() {
            let (binding, entry) = file.path.split_once('/').unwrap();
            let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_');
            for name in [binding, entry] {
                assert!(
                    !name.is_empty() && !name.starts_with("..") && name != "." && name.chars().all(allowed),
                    "{name}"
                );
            }
        }
    }
    assert!((1_000..19_000).contains(&passed), "of both kinds: {passed}");
}
