//! INVALID_ARGUMENT reports all violations together, each with its field, and no part of the status contains a secret.

use executor_proto::v1::{File, Limits, RunRequest};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, program};
use tonic::{Code, Status};
use tonic_types::StatusExt;

fn violations(status: &Status) -> Vec<(String, String)> {
    let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {status:?}"));
    details.field_violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
}

fn fields(status: &Status) -> Vec<String> {
    violations(status).into_iter().map(|(field, _)| field).collect()
}

#[test]
fn every_violation_is_reported_at_once() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let bad = RunRequest {
        id: "../x".into(),
        limits: Some(Limits { memory_bytes: 1, pids: u64::MAX, cpu_millis: 1, ..Limits::default() }),
        rootfs: "docker".into(),
        grace_period: Some(prost_types::Duration { seconds: 604_801, nanos: 0 }),
        network: 1,
        volume_mounted_files: vec![File { path: "a".into(), content: b"x".into(), ..File::default() }],
        ..program("", &["nul\0"])
    }
    .user("a b")
    .env("A=B", "x")
    .env("X", "1")
    .env("X", "2")
    .label("bad name", "x")
    .file("../x", b"x")
    .file("a", b"x");
    let status = daemon.api.run(bad).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let mut found = fields(&status);
    found.sort();
    let expected = [
        "action.run.args[0]",
        "action.run.env[0].name",
        "action.run.env[2].name",
        "action.run.path",
        "action.run.user",
        "action.run.volume_mounted_files[0].path",
        "grace_period",
        "id",
        "labels",
        "limits.cpu_millis",
        "limits.memory_bytes",
        "limits.pids",
        "network",
        "rootfs",
        "volume_mounted_files[0].path",
    ];
    assert_eq!(found, expected);
    assert!(violations(&status).iter().all(|(_, description)| !description.is_empty()));
    daemon.wait_until_back_at(&before);
}

/// A secret in any field of a request is in no part of the refusal. The message, details and headers are searched as
/// received. As a control, the same search finds a label, which is public.
#[test]
fn no_secret_is_in_a_status() {
    const CANARY: &str = "canary-5e72d1";
    let daemon = Daemon::start();
    let holds = |status: &Status, text: &str| {
        let bytes = [status.details(), status.message().as_bytes(), format!("{status:?}").as_bytes()].concat();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let nul = format!("{CANARY}\0");
    let long = CANARY.repeat(11_000);
    let good = || program("/bin/true", &[]);
    let twice = || good().file("a", CANARY.as_bytes()).file("a", CANARY.as_bytes());
    let table: [(&str, RunRequest); 8] = [
        ("action.run.args[0]", program("/bin/true", &[&nul])),
        ("action.run.args[0]", program("/bin/true", &[&long])),
        ("action.run.env[0].value", good().env("A", &nul)),
        ("action.run.env[0].value", good().env("A", &long)),
        ("action.run.env[0].name", good().env("", CANARY)),
        ("action.run.volume_mounted_files[0].path", good().file("..", CANARY.as_bytes())),
        ("action.run.volume_mounted_files[1].path", twice()),
        ("volume_mounted_files", good().file("a", CANARY.repeat(90_000).as_bytes())),
    ];
    for (field, request) in table {
        let status = daemon.api.run(request).unwrap_err();
        assert_eq!((status.code(), fields(&status)), (Code::InvalidArgument, vec![field.to_owned()]));
        assert!(!holds(&status, CANARY), "{field}: {status:?}");
    }
    let control = daemon.api.run(good().label(&format!("{CANARY} "), "x")).unwrap_err();
    assert!(holds(&control, CANARY), "{control:?}");
    // Errors after validation contain no secret either.
    let late = daemon.api.run(good().user("nobodyx").env("A", CANARY).file("a", CANARY.as_bytes())).unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition);
    assert!(!holds(&late, CANARY), "{late:?}");
    let other = daemon.api.run(good().id("used").env("A", CANARY)).and_then(|_| daemon.api.run(good().id("used")));
    assert_eq!(other.as_ref().map_err(Status::code).err(), Some(Code::AlreadyExists));
    let log = daemon.setup().logged();
    assert!(!log.contains(CANARY) || log.contains(&format!("{CANARY} ")), "{log}");
}

/// If a response has very many violations, the list is shortened and their number is reported, because clients in other
/// languages reject long trailers.
#[test]
fn flood_of_violations_fits_an_answer() {
    let daemon = Daemon::start();
    let flood = program("/bin/true", &[]).action(|run| {
        run.env = (0..9000).map(|_| executor_proto::v1::EnvironmentVariable::default()).collect();
    });
    let status = daemon.api.run(flood).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let reported = violations(&status);
    let (field, last) = reported.last().unwrap();
    assert!(field.is_empty() && last.contains(&format!("{} more violations", 9000 - (reported.len() - 1))), "{last}");
    assert!(status.details().len() < 6000);
}
