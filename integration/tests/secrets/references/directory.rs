//! A container follows the secrets of a directory while values are stale, and across a restart of executord.

use std::fs;

use executor_proto::v1::event::Kind;
use executor_proto::v1::secret_source::Target;
use executor_proto::v1::{EnvironmentVariable, SecretArgument};
use integration::cli;
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sh, update};
use integration::wait;

use crate::references::{ROOT, Shelf, content, events_until, from, reference, wait_for_content};

#[test]
fn referenced_values_refresh_and_survive_restart() {
    let shelf = Shelf::new();
    shelf.put("user", "user 1");
    shelf.put("password", "password 1");
    shelf.put("word", "a word of eight\n");
    let mut daemon = Setup::default().config(&shelf.provider()).start();
    let mut request = sh("echo \"$WORD $1\" >/dev/shm/seen; exec sleep 100000").id("d").action(|run| {
        run.args.extend(["sh".into(), String::new()]);
        let value = Some(reference("shelf", "word", ""));
        run.secret_environment.push(EnvironmentVariable {
            name: "WORD".into(),
            from: value.clone(),
            ..Default::default()
        });
        run.secret_arguments.push(SecretArgument { index: 3, from: value, ..Default::default() });
        run.volume_mounted_files =
            vec![from("db/user", "shelf", "user", ""), from("db/password", "shelf", "password", "")];
    });
    request.volume_mounted_files.push(from("word", "shelf", "word", ""));
    let container = daemon.api.started(request.clone());
    assert!(!daemon.api.run(request).unwrap().created, "the same request is the same container");
    assert_eq!(
        (content(&container, "db/user").as_str(), content(&container, "db/password").as_str()),
        ("user 1", "password 1")
    );
    assert_eq!(content(&container, "word"), "a word of eight\n");
    let seen = format!("/proc/{}/root/dev/shm/seen", integration::api::pid(&container));
    let seen = wait::until("the process has written its values", || {
        fs::read_to_string(&seen).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(seen, "a word of eight a word of eight\n", "the newline at the end of a value was not removed");
    let reported: Vec<_> =
        container.secret_sources.iter().map(|one| (one.target.clone().unwrap(), one.followed)).collect();
    let file = |path: &str| Target::File(format!("{ROOT}/{path}"));
    let expected = [
        (file("db/user"), true),
        (file("db/password"), true),
        (Target::Variable("WORD".into()), false),
        (Target::Argument(3), false),
        (file("word"), true),
    ];
    assert_eq!(reported, expected);
    assert_eq!(container.secret_sources[1].reference, Some(reference("shelf", "password", "")));
    let ours = daemon.api.info().secret_providers.pop().unwrap();
    assert_eq!((ours.name.as_str(), ours.r#type.as_str(), ours.problem.as_str()), ("shelf", "directory", ""));

    shelf.put("password", "password 2");
    wait_for_content(&container, "db/password", "password 2");
    assert_eq!(content(&container, "db/user"), "user 1");
    assert_eq!(events_until(&daemon, "d", Kind::FilesUpdated).last(), Some(&(Kind::FilesUpdated, 2)));

    // Secrets change while executord is not running. A missing secret makes the values stale.
    daemon.kill();
    shelf.put("user", "user 3");
    daemon.start_again();
    wait_for_content(&container, "db/user", "user 3");
    fs::remove_file(shelf.path().join("password")).unwrap();
    let kinds = events_until(&daemon, "d", Kind::SecretsStale);
    assert!(!kinds.iter().any(|(kind, _)| *kind == Kind::SecretsFresh), "{kinds:?}");
    let stale = daemon.api.get("d").unwrap();
    let one = stale.secret_sources.iter().find(|one| one.stale).unwrap();
    assert!(one.target == Some(file("db/password")) && one.problem.contains("does not exist"), "{one:?}");
    assert_eq!(content(&container, "db/password"), "password 2", "the container keeps its value");
    let listed = cli::run(&daemon.socket(), &["ps"]).stdout;
    assert!(listed.contains("stale secrets"), "{listed}");
    let reported = cli::run(&daemon.socket(), &["inspect", "d"]).stdout;
    assert!(
        reported.contains("shelf:password") && reported.contains("STALE") && !reported.contains("password 2"),
        "{reported}"
    );
    shelf.put("password", "password 4");
    wait_for_content(&container, "db/password", "password 4");
    events_until(&daemon, "d", Kind::SecretsFresh);
    assert!(daemon.api.get("d").unwrap().secret_sources.iter().all(|one| !one.stale));

    // If the caller sets a value, the reference is removed.
    daemon.api.update(update("d", &[("db/password", b"by hand")])).unwrap();
    let sources = daemon.api.get("d").unwrap().secret_sources;
    assert!(!sources.iter().any(|one| one.target == Some(file("db/password"))), "{sources:?}");
    shelf.put("password", "password 5");
    shelf.put("user", "user 5");
    wait_for_content(&container, "db/user", "user 5");
    assert_eq!(content(&container, "db/password"), "by hand");
    // An update by reference adds the reference again.
    let mut again = update("d", &[]);
    again.files.push(from("db/password", "shelf", "password", ""));
    daemon.api.update(again).unwrap();
    assert_eq!(content(&container, "db/password"), "password 5");
    shelf.put("password", "password 6");
    wait_for_content(&container, "db/password", "password 6");
    let logged = daemon.setup().logged();
    assert!(!logged.contains("password 2") && !logged.contains("user 3"), "no value is logged");
}
