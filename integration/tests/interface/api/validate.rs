//! Tests Validate, strict fields, unknown methods and features.

use executor_proto::v1::{CreatePodRequest, Dns, Limits, RunRequest, RunResponse, ValidateRequest};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, sh};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt as _;

fn validate(daemon: &Daemon, run: Option<RunRequest>, pod: Option<CreatePodRequest>) -> Result<(), Status> {
    let answer = daemon.api.block_on(daemon.api.rpc().validate(ValidateRequest { run, pod }));
    answer.map(drop)
}

fn fields(status: &Status) -> Vec<String> {
    let details = status.get_details_bad_request().unwrap();
    details.field_violations.into_iter().map(|violation| violation.field).collect()
}

#[test]
fn validate_judges_like_run_without_effect() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let total = daemon.api.info().total.unwrap();
    let limits = |memory_bytes| Some(Limits { memory_bytes, ..Limits::default() });
    let good = || sh("true").id("good");
    let bad = || RunRequest { limits: limits(1), ..good().file("../x", b"secret") };
    let refused = validate(&daemon, Some(bad()), None).unwrap_err();
    let of_run = daemon.api.run(bad()).unwrap_err();
    let below: Vec<String> = fields(&of_run).into_iter().map(|field| format!("run.{field}")).collect();
    assert_eq!((refused.code(), fields(&refused)), (of_run.code(), below));
    assert!(fields(&refused).len() > 1, "every violation: {refused:?}");

    let large = RunRequest { limits: limits(total.memory_bytes + 1), ..good() };
    let refused = validate(&daemon, Some(large), None).unwrap_err();
    assert_eq!((refused.code(), &*fields(&refused)[0]), (Code::ResourceExhausted, "run.limits.memory_bytes"));

    let pod = |search: &str| CreatePodRequest {
        id: "pod".into(),
        dns: Some(Dns { searches: vec![search.into()], ..Dns::default() }),
        ..CreatePodRequest::default()
    };
    let member = |memory| RunRequest { pod: "pod".into(), limits: limits(memory), ..good() };
    let both = validate(&daemon, Some(member(1)), Some(pod("A B"))).unwrap_err();
    assert_eq!(fields(&both), ["pod.dns.searches[0]", "run.limits.memory_bytes"]);
    assert_eq!(validate(&daemon, Some(member(64 << 20)), None).unwrap_err().code(), Code::FailedPrecondition);
    let other =
        validate(&daemon, Some(member(64 << 20)), Some(CreatePodRequest { id: "x".into(), ..pod("a.example") }));
    assert_eq!(fields(&other.unwrap_err()), ["run.pod"]);
    assert_eq!(fields(&validate(&daemon, None, None).unwrap_err()), ["run"]);

    // As a control, an accepted request has no effect in Validate either.
    validate(&daemon, Some(good().file("a", b"secret")), None).unwrap();
    validate(&daemon, Some(member(64 << 20)), Some(pod("a.example"))).unwrap();
    validate(&daemon, None, Some(pod("a.example"))).unwrap();
    assert_eq!(daemon.api.ids().len(), 0);
    let info = daemon.api.info();
    assert_eq!((info.remaining, info.cursor), (info.total, 0));
    daemon.wait_until_back_at(&before);
    assert!(daemon.api.run(good()).unwrap().created, "the id is free");
}

/// Sends a request of a newer interface version. `strict` is the value of the metadata key `executor-strict-fields`.
fn send(
    daemon: &Daemon,
    method: &'static str,
    request: NewerRequest,
    strict: Option<&'static str>,
) -> Result<RunResponse, Status> {
    daemon.api.block_on(async {
        let mut grpc = tonic::client::Grpc::new(daemon.api.channel());
        grpc.ready().await.unwrap();
        let mut request = Request::new(request);
        if let Some(strict) = strict {
            request.metadata_mut().insert("executor-strict-fields", strict.parse().unwrap());
        }
        let codec = ProstCodec::<NewerRequest, RunResponse>::default();
        grpc.unary(request, PathAndQuery::from_static(method), codec).await.map(tonic::Response::into_inner)
    })
}

/// RunRequest of a newer interface version, with a field 2000 next to `action`, and a field 2001 within `action`.
#[derive(Clone, PartialEq, prost::Message)]
struct NewerRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    action: Option<NewerAction>,
    #[prost(uint32, optional, tag = "2000")]
    isolation: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NewerAction {
    #[prost(message, optional, tag = "3")]
    run: Option<executor_proto::v1::RunAction>,
    #[prost(string, tag = "2001")]
    sandbox: String,
}

fn newer(id: &str, isolation: Option<u32>, sandbox: &str) -> NewerRequest {
    let RunRequest { action, .. } = sh("true");
    let run = action.unwrap().run;
    NewerRequest { id: id.into(), action: Some(NewerAction { run, sandbox: sandbox.into() }), isolation }
}

#[test]
fn unknown_fields_are_refused_on_request() {
    let daemon = Daemon::start();
    let run = "/executor.v1.Executor/Run";
    let refused = send(&daemon, run, newer("a", Some(1), "vm"), Some("true")).unwrap_err();
    assert_eq!((refused.code(), fields(&refused)), (Code::InvalidArgument, vec!["action.2001".into(), "2000".into()]));
    let details = refused.get_details_bad_request().unwrap();
    assert!(details.field_violations.iter().all(|violation| violation.reason == "UNKNOWN_FIELD"));
    assert_eq!(daemon.api.ids().len(), 0);
    let malformed = send(&daemon, run, newer("a", None, ""), Some("yes")).unwrap_err();
    assert!(malformed.message().contains("executor-strict-fields"), "{malformed:?}");
    // As controls, known fields are accepted, and so are unknown fields without strictness.
    assert!(send(&daemon, run, newer("a", None, ""), Some("true")).unwrap().created);
    assert!(send(&daemon, run, newer("b", Some(1), "vm"), None).unwrap().created);
}

#[test]
fn unknown_method_is_unimplemented_and_features_listed() {
    let daemon = Daemon::start();
    let unknown = send(&daemon, "/executor.v1.Executor/Newer", newer("a", None, ""), None).unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented, "{unknown:?}");
    let unknown = send(&daemon, "/executor.v9.Other/Call", newer("a", None, ""), None).unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented, "{unknown:?}");
    let features = daemon.api.info().features;
    for feature in ["exact-event-gaps", "strict-fields", "validate"] {
        assert!(features.iter().any(|known| known == feature), "{features:?}");
    }
}
