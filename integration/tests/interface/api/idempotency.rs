//! Idempotency of Run: the same request finds the same container; a different request with the same id is refused.

use executor_proto::v1::RunRequest;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, program, sleeper};
use tonic::Code;

fn request() -> RunRequest {
    sleeper("same").env("TOKEN", "one").file("a", b"one").label("k", "v")
}

#[test]
fn repeated_request_returns_same_container() {
    let daemon = Daemon::start();
    let first = daemon.api.run(request()).unwrap();
    let again = daemon.api.run(request()).unwrap();
    assert!(first.created && !again.created);
    assert_eq!(first.container, again.container);
    daemon.api.stop("same", None).unwrap();
    let ended = daemon.api.wait("same").unwrap();
    let late = daemon.api.run(request()).unwrap();
    assert_eq!((late.created, late.container), (false, Some(ended)), "the same container is returned in any state");
}

/// If several identical requests arrive at the same time, one of them creates the container, and the others find it.
#[test]
fn concurrent_identical_requests_create_one_container() {
    let daemon = Daemon::start();
    for round in 0..5 {
        let id = format!("round{round}");
        let answers = daemon.api.block_on(async {
            let tasks: Vec<_> = (0..8)
                .map(|_| {
                    let (mut rpc, request) = (daemon.api.rpc(), request().id(&id));
                    tokio::spawn(async move { rpc.run(request).await.unwrap().into_inner() })
                })
                .collect();
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.unwrap());
            }
            answers
        });
        assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
        assert!(answers.iter().all(|answer| answer.container == answers[0].container), "{answers:#?}");
        daemon.api.delete(&id, true).unwrap();
    }
}

/// If a request differs in anything, even only in a secret's value, it is a different request.
#[test]
fn different_request_with_used_id_is_refused() {
    let daemon = Daemon::start();
    let running = daemon.api.started(request());
    let different: [(&str, RunRequest); 7] = [
        ("environment value", request().action(|run| run.env[0].value = "two".into())),
        ("file content", request().action(|run| run.volume_mounted_files[0].content = b"two".into())),
        ("argument", request().action(|run| run.args[0] = "200000".into())),
        ("label", request().label("k", "w")),
        ("memory", request().memory(65 << 20)),
        ("user", request().user("vcap")),
        ("program", program("/bin/true", &[]).id("same")),
    ];
    for (what, request) in different {
        let status = daemon.api.run(request).unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{what}");
        assert!(status.message().contains("container same (running)"), "{status:?}");
    }
    assert_eq!(daemon.api.get("same").unwrap(), running, "the first container is unaffected");
    daemon.api.delete("same", true).unwrap();
    let other = request().action(|run| run.env[0].value = "two".into());
    assert!(daemon.api.run(other).unwrap().created, "control: the id is free again");
}

#[test]
fn ids_that_are_left_out_are_made() {
    let daemon = Daemon::start();
    let ids: Vec<String> = (0..3).map(|_| daemon.api.run_to_end(program("/bin/true", &[])).id).collect();
    let mut different = ids.clone();
    different.sort();
    different.dedup();
    assert_eq!((different.len(), ids[0].len()), (3, 36), "{ids:?}");
}
