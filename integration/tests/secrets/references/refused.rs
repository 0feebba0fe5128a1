//! Refused references are reported with their path, and without any value.

use std::os::unix::fs::symlink;

use executor_proto::v1::{EnvironmentVariable, File, RunRequest, SecretArgument, SecretReference};
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sleeper};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::references::{Shelf, from, reference};

const CANARY: &str = "canary-77aa01";

#[test]
fn reference_errors_name_field_without_value() {
    let (shelf, outside) = (Shelf::new(), Shelf::new());
    shelf.put("large", CANARY.repeat(2_000_000 / CANARY.len()));
    shelf.put("binary", [CANARY.as_bytes(), b"\xff\xfe"].concat());
    shelf.put("good", CANARY);
    symlink(outside.put("secret", CANARY), shelf.path().join("link")).unwrap();
    let token = shelf.put("token", CANARY);
    let vault = format!(
        "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"http://127.0.0.1:1\"\ntoken_file = \"{}\"\n\
         allow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        token.display()
    );
    let closed = shelf.provider().replace("\"shelf\"", "\"closed\"").replace("\"/\"", "\"app\"");
    let foreign = shelf.provider().replace("\"shelf\"", "\"foreign\"").replace("uid = 0", "uid = 4242");
    let daemon = Setup::default().config(&[shelf.provider(), closed, foreign, vault].concat()).start();
    let file = |provider: &str, path: &str, key: &str| {
        let mut request = sleeper("r");
        request.volume_mounted_files.push(from("db/x", provider, path, key));
        request
    };
    let both = File { content: CANARY.into(), ..from("x", "shelf", "good", "") };
    let version = File {
        from: Some(SecretReference { version: "1".into(), ..reference("shelf", "good", "") }),
        ..from("x", "shelf", "good", "")
    };
    let variable = |value| EnvironmentVariable { name: "A".into(), from: Some(value), ..Default::default() };
    let with = |file: File| {
        let mut request = sleeper("r");
        request.volume_mounted_files.push(file);
        request
    };
    let binary = sleeper("r").action(|run| {
        let from = Some(reference("shelf", "binary", ""));
        run.args.push(String::new());
        run.secret_arguments.push(SecretArgument { index: 1, from, ..Default::default() });
    });
    let plain = sleeper("r").action(|run| run.env.push(variable(reference("shelf", "good", ""))));
    let mut many = sleeper("r");
    many.volume_mounted_files = (0..257).map(|index| from(&format!("f{index}"), "shelf", "good", "")).collect();
    let place = "volume_mounted_files[0].from";
    let at = |part: &str| format!("{place}{part}");
    let table: Vec<(RunRequest, Code, String, &str)> = vec![
        (file("shelf", "nothing", ""), Code::NotFound, at(""), "does not exist"),
        (file("shelf", "large", ""), Code::FailedPrecondition, at(""), "larger than the maximum of 1048576 bytes"),
        (file("shelf", "link", ""), Code::PermissionDenied, at(""), "escapes"),
        (file("shelf", "token", ""), Code::PermissionDenied, at(""), "contains executord's own credentials"),
        (file("vault", "auth/token/lookup-self", "id"), Code::InvalidArgument, at(".path"), "contains `auth`"),
        (file("none", "good", ""), Code::InvalidArgument, at(".provider"), "not a provider of this node"),
        (file("shelf", "../good", ""), Code::InvalidArgument, at(".path"), "contains `..`"),
        (file("shelf", "/good", ""), Code::InvalidArgument, at(".path"), "empty component"),
        (file("shelf", "", ""), Code::InvalidArgument, at(".path"), "is empty"),
        (file("shelf", "good", "k"), Code::InvalidArgument, at(".key"), "must be empty"),
        (file("closed", "apple", ""), Code::PermissionDenied, at(".path"), "uid 0 may not use \"apple\""),
        (file("foreign", "good", ""), Code::PermissionDenied, at(".path"), "no rule of secret_providers.allow"),
        (with(both), Code::InvalidArgument, at(""), "set together with content"),
        (with(version), Code::InvalidArgument, at(".version"), "must be empty"),
        (plain, Code::InvalidArgument, "action.run.env[0].from".into(), "secret variables only"),
        (binary, Code::InvalidArgument, "action.run.secret_arguments[0].from".into(), "not UTF-8"),
        (many, Code::InvalidArgument, "volume_mounted_files".into(), "257 references"),
    ];
    for (request, code, field, expected) in table {
        let refused = daemon.api.run(request).unwrap_err();
        let fields = refused.get_details_bad_request().unwrap().field_violations;
        assert_eq!((refused.code(), fields[0].field.as_str()), (code, field.as_str()), "{refused}");
        assert!(fields[0].description.contains(expected), "{expected}: {}", fields[0].description);
        assert!(!format!("{refused:?}").contains(CANARY), "{refused:?}");
    }
    // As a control, the same request without errors is accepted.
    daemon.api.started(file("shelf", "good", ""));
    assert!(!daemon.setup().logged().contains(CANARY));
}
