//! Tests of updates of secret files, with event orders that are rare with real shims.

use crate::harness::shim::OnUpdate;
use crate::harness::{Node, get, kinds, retry, secret_request, until, wait};
use executor_core::lifecycle::State;
use executor_core::protocol::{Reason, Refused};
use executor_proto::v1;
use executor_proto::v1::event::Kind;
use tonic::Code;

const CANARY: &str = "canary-5a7b";

fn update(id: &str, path: &str) -> v1::UpdateFilesRequest {
    let file = v1::File { path: path.into(), content: CANARY.into(), ..v1::File::default() };
    v1::UpdateFilesRequest { id: id.into(), files: vec![file], ..Default::default() }
}

fn busy() -> OnUpdate {
    OnUpdate::Refuse(Refused::new(Reason::Busy, "not at this moment"))
}

#[tokio::test(flavor = "multi_thread")]
async fn update_reaches_shim_and_status() {
    let node = Node::start().await;
    let (shim, _) = node.run(secret_request("a", "canary")).await;
    let mut client = node.client().await;
    let request = v1::UpdateFilesRequest { removed_paths: vec!["/b".into()], signal: 10, ..update("a", "a") };
    let answer = client.update_files(request).await.unwrap().into_inner().container.unwrap();
    let paths: Vec<&str> = answer.files.iter().map(|file| &*file.path).collect();
    assert_eq!((answer.files_generation, &paths[..]), (2, &["/etc/cf-service-bindings/a"][..]));
    assert!(answer.files_updated_at.is_some());
    assert_eq!(get(&mut client, "a").await, answer);

    let sent = shim.updates().pop().unwrap();
    assert_eq!((sent.list.base_generation, &sent.list.changed[..], sent.signal), (1, &[0][..], 10));
    assert_eq!(sent.contents, [CANARY.as_bytes()]);
    assert!(sent.payload.read(|bytes| bytes.iter().all(|byte| *byte == 0)).unwrap(), "the daemon overwrites its copy");

    let events = node.events("a", Kind::FilesUpdated).await;
    assert_eq!(kinds(&events), ["RESERVED", "INITIALIZING", "CREATED", "RUNNING", "FILES_UPDATED"]);
    assert_eq!(events[4].files_generation, 2);
    assert!(!node.log().contains(CANARY) && !format!("{events:?}").contains(CANARY));

    // After a restart the generation comes from the ledger and the record.
    let mut node = node;
    node.crash().await;
    shim.is_connected().await;
    let mut client = node.client().await;
    assert_eq!(get(&mut client, "a").await.files_generation, 2);
    shim.exits(0);
    assert_eq!(wait(&mut client, "a").await.files_generation, 2);
}

/// If a shim is busy, requests are retried. If the shim stays busy, the caller receives the refusal.
#[tokio::test(flavor = "multi_thread")]
async fn busy_shim_requests_are_retried() {
    let node = Node::start().await;
    let (shim, _) = node.run(secret_request("a", "canary")).await;
    let mut client = node.client().await;
    shim.on_updates([busy(), busy(), busy()]);
    let answer = client.update_files(update("a", "a")).await.unwrap().into_inner().container.unwrap();
    assert_eq!((answer.files_generation, shim.updates().len()), (2, 4));

    shim.on_updates((0..10_000).map(|_| busy()));
    let refused = client.update_files(update("a", "a")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "not at this moment"));
    let tried = shim.updates();
    assert!((2..1000).contains(&tried.len()), "{} attempts", tried.len());
    assert!(tried.iter().all(|one| one.payload.read(|bytes| bytes.iter().all(|byte| *byte == 0)).unwrap()));
}

/// If another daemon has updated the files, the list of files is rebuilt, unless the request names the expected
/// generation.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_list_is_made_anew() {
    let node = Node::start().await;
    let (shim, _) = node.run(secret_request("a", "canary")).await;
    let mut client = node.client().await;
    shim.on_updates([OnUpdate::Stale, OnUpdate::Stale]);
    let answer = client.update_files(update("a", "a")).await.unwrap().into_inner().container.unwrap();
    assert_eq!(answer.files_generation, 4);
    let bases: Vec<u64> = shim.updates().iter().map(|sent| sent.list.base_generation).collect();
    assert_eq!(bases, [1, 2, 3]);

    let expecting = |generation| v1::UpdateFilesRequest { expected_generation: Some(generation), ..update("a", "a") };
    let stale = client.update_files(expecting(3)).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    assert!(stale.message().contains("have generation 4; the request expects 3"), "{stale}");
    assert!(shim.updates().is_empty(), "the shim was not asked");
    shim.on_updates([OnUpdate::Stale]);
    let overtaken = client.update_files(expecting(4)).await.unwrap_err();
    assert_eq!(overtaken.code(), Code::Aborted);
    assert!(overtaken.message().contains("have generation 5; the request expects 4"), "{overtaken}");

    shim.on_updates((0..100).map(|_| OnUpdate::Stale));
    assert_eq!(client.update_files(update("a", "a")).await.unwrap_err().code(), Code::Aborted, "not for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_shim_leaves_no_secret_copy() {
    let node = Node::start().await;
    let (shim, _) = node.run(secret_request("a", "canary")).await;
    let mut client = node.client().await;
    shim.on_updates([OnUpdate::Disconnect]);
    let lost = client.update_files(update("a", "a")).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    assert!(lost.message().contains("check files_generation"), "{lost}");
    let sent = shim.updates().pop().unwrap();
    let wiped = || sent.payload.read(|bytes| bytes.iter().all(|byte| *byte == 0)).unwrap();
    until("the daemon overwrites contents that no shim took", wiped).await;
    // The shim keeps listening, is reconnected, and accepts the next update.
    let again = retry("an update", || {
        let mut client = client.clone();
        async move { client.update_files(update("a", "a")).await }
    });
    assert_eq!(again.await.into_inner().container.unwrap().files_generation, 2);

    shim.reached(State::Stopping);
    until("it is stopping", || node.log().contains("state=\"stopping\"")).await;
    let late = client.update_files(update("a", "a")).await.unwrap_err();
    assert!(late.code() == Code::FailedPrecondition && late.message().contains("is stopping"), "{late}");
    shim.exits(0);
}

/// If a caller disconnects during an update, the update is still completed.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_stops_nothing() {
    let node = Node::start().await;
    let (shim, _) = node.run(secret_request("a", "canary")).await;
    shim.on_updates((0..5).map(|_| busy()));
    let mut client = node.client().await;
    let call = tokio::spawn(async move { client.update_files(update("a", "a")).await });
    let mut seen = Vec::new();
    while seen.is_empty() {
        seen = shim.updates();
        tokio::task::yield_now().await;
    }
    call.abort();
    let mut client = node.client().await;
    let now = retry("the update lands", || {
        let mut client = client.clone();
        async move {
            let container = get(&mut client, "a").await;
            if container.files_generation == 2 { Ok(container) } else { Err(container.files_generation) }
        }
    });
    assert!(now.await.files_updated_at.is_some());
    assert_eq!(get(&mut client, "a").await.files_generation, 2);
}
