//! Traces as a third-party collector receives them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use executor_proto::v1::RunRequest;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, program, sh, sleeper};
use integration::wait;
use integration::web::{WebAnswer, WebServer, free_port};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::{python, scrape, value};

const CANARY: &str = "c4nary-0f-a-secret-that-no-trace-may-have";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Spans and bytes that a collector has received.
#[derive(Clone, Default)]
struct Received {
    spans: Arc<Mutex<Vec<Span>>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Received {
    fn take(&self, request: ExportTraceServiceRequest) {
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        self.spans.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
    }

    /// Returns the spans of a container by name. Waits for the container's own span, which is sent last.
    fn spans(&self, id: &str) -> BTreeMap<String, Span> {
        wait::until(&format!("the span of {id} was received"), || {
            let spans = self.spans.lock().unwrap();
            let of = spans.iter().filter(|span| attribute(span, "container.id") == Some(Value::StringValue(id.into())));
            let of: BTreeMap<String, Span> = of.map(|span| (span.name.clone(), span.clone())).collect();
            of.contains_key("container").then_some(of)
        })
    }

    fn has(&self, text: &str) -> bool {
        self.bytes.lock().unwrap().windows(text.len()).any(|part| part == text.as_bytes())
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attribute(span: &Span, name: &str) -> Option<Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    found.value.as_ref()?.value.clone()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a collector that uses gRPC. Returns the port of a relay in front of the collector, which records the traffic.
fn collector(runtime: &tokio::runtime::Runtime, received: &Received) -> u16 {
    let port = free_port();
    let service = TraceServiceServer::new(received.clone());
    let address = ([127, 0, 0, 1], port).into();
    runtime.spawn(tonic::transport::Server::builder().add_service(service).serve(address));
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let (relayed, bytes) = (relay.local_addr().unwrap().port(), Arc::clone(&received.bytes));
    std::thread::spawn(move || {
        for from in relay.incoming() {
            let (mut from, bytes) = (from.unwrap(), Arc::clone(&bytes));
            std::thread::spawn(move || {
                let mut to = wait::until_ok("the collector listens", || TcpStream::connect(("127.0.0.1", port)));
                let (mut answers, mut back) = (to.try_clone().unwrap(), from.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
                let mut some = [0; 4096];
                while let Ok(length @ 1..) = from.read(&mut some) {
                    bytes.lock().unwrap().extend_from_slice(&some[..length]);
                    if to.write_all(&some[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    relayed
}

fn traced(endpoint: &str, keys: &str) -> Daemon {
    let setup = Setup::default();
    let metrics = setup.run_dir().join("metrics.sock");
    let config =
        format!("[metrics]\nlisten = \"unix:{}\"\n[traces]\nendpoint = \"{endpoint}\"\n{keys}\n", metrics.display());
    setup.config(&config).start()
}

/// Adds the canary to each kind of input in a request, and to the output of the program.
fn secret(request: RunRequest) -> RunRequest {
    request
        .file("db/password", CANARY.as_bytes())
        .secret_env("PASSWORD", CANARY)
        .env("PLAIN", CANARY)
        .label("l", CANARY)
}

/// Runs a request with a trace parent.
fn run(daemon: &Daemon, request: RunRequest, flags: &str) {
    let mut request = Request::new(request);
    let fields = request.metadata_mut();
    fields.insert("traceparent", format!("00-{TRACE}-{PARENT}-{flags}").parse().unwrap());
    fields.insert("tracestate", format!("vendor={CANARY}").parse().unwrap());
    daemon.api.block_on(daemon.api.rpc().run(request)).unwrap();
}

/// Each phase of a run has a span, and no span contains a secret. A restart of executord continues the trace of a
/// running container.
#[test]
fn each_phase_has_span_without_secrets() {
    let (runtime, received) = (tokio::runtime::Runtime::new().unwrap(), Received::default());
    let port = collector(&runtime, &received);
    let mut daemon = traced(&format!("http://127.0.0.1:{port}"), "");
    run(&daemon, secret(sh("echo \"$PASSWORD\"; exit 3").id("traced-bad")), "01");
    let spans = received.spans("traced-bad");
    let names: Vec<&str> = spans.keys().map(String::as_str).collect();
    assert_eq!(names, ["admit", "container", "finish", "launch", "prepare", "run", "start"]);
    let root = &spans["container"];
    assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(attribute(root, "executor.exit_code"), Some(Value::IntValue(3)));
    assert_eq!(attribute(root, "executor.wipe_verified"), Some(Value::BoolValue(true)));
    let mut before = root.start_time_unix_nano;
    for phase in ["admit", "launch", "prepare", "start", "run", "finish"] {
        let span = &spans[phase];
        assert_eq!((&span.trace_id, &span.parent_span_id), (&root.trace_id, &root.span_id), "{phase}");
        assert_eq!(span.start_time_unix_nano, before, "{phase} begins at the end of the previous phase");
        assert!(
            span.end_time_unix_nano >= span.start_time_unix_nano && span.end_time_unix_nano <= root.end_time_unix_nano
        );
        before = span.end_time_unix_nano;
    }
    // A span reports only the kind of a failure, because the message contains the path.
    run(&daemon, secret(program(&format!("/{CANARY}"), &[CANARY]).id("traced-missing")), "01");
    let missing = received.spans("traced-missing");
    assert_eq!(attribute(&missing["container"], "executor.failure"), Some(Value::StringValue("exec".into())));
    assert!(!missing.contains_key("run") && missing.contains_key("prepare"), "{missing:?}");
    assert_eq!(missing["container"].status.as_ref().unwrap().message, "exec");

    run(&daemon, secret(sleeper("traced-long")), "01");
    daemon.terminate();
    daemon.start_again();
    daemon.api.stop("traced-long", Some(0)).unwrap();
    let long = received.spans("traced-long");
    assert_eq!(hex(&long["container"].trace_id), TRACE);
    assert_eq!(attribute(&long["container"], "executor.signal"), Some(Value::IntValue(9)));
    assert!(long.contains_key("start") && long.contains_key("run"), "{long:?}");

    // If the caller is not sampled, there is no trace. If the caller has no trace, a new trace is created.
    run(&daemon, sh("exit 0").id("traced-not"), "00");
    daemon.api.run_to_end(sh("exit 0").id("traced-alone"));
    let alone = &received.spans("traced-alone")["container"];
    assert!(hex(&alone.trace_id) != TRACE && alone.parent_span_id.is_empty(), "{alone:?}");
    assert!(!received.has("traced-not"));

    assert!(received.has("traced-bad") && received.has("traced-long"), "control: sent text is found");
    assert!(!received.has(CANARY) && !received.has(&CANARY[..16]));
    let text = scrape(&daemon, "text/plain");
    assert!(value(&text, "executor_spans_exported_total").unwrap() >= 3.0, "{text}");
    daemon.api.delete("traced-long", true).unwrap();
}

/// A Python collector, with other libraries for gRPC and messages, can read the spans.
#[test]
fn python_collector_reads_the_spans() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/collector.py");
    let mut collector = python(&[script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(collector.stdout.take().unwrap()).lines().map(Result::unwrap);
    let daemon = traced(&format!("http://127.0.0.1:{}", lines.next().unwrap()), "");
    run(&daemon, secret(sh("exit 3").id("traced-python")), "01");
    let mut spans: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    while !spans.contains_key("container") {
        let line = lines.next().expect("the collector keeps running");
        assert!(!line.contains(CANARY), "{line}");
        let span: serde_json::Value = serde_json::from_str(&line).unwrap();
        spans.insert(span["name"].as_str().unwrap().to_owned(), span);
    }
    let (_, _) = (collector.kill(), collector.wait());
    let names: Vec<&str> = spans.keys().map(String::as_str).collect();
    assert_eq!(names, ["admit", "container", "finish", "launch", "prepare", "run", "start"]);
    let root = &spans["container"];
    assert_eq!((&root["trace"], &root["parent"]), (&TRACE.into(), &PARENT.into()));
    assert_eq!(root["attributes"]["executor.exit_code"], "3", "JSON encodes a 64-bit number as a string");
    assert_eq!(root["resource"]["service.name"], "executord");
    let children = spans.values().filter(|span| span["name"] != "container");
    assert!(children.clone().all(|span| span["parent"] == root["span"] && span["trace"] == TRACE), "{spans:?}");
    let sum: u64 = children.map(|span| span["nanoseconds"].as_u64().unwrap()).sum();
    assert!(sum > 0 && sum <= root["nanoseconds"].as_u64().unwrap(), "phases follow one another: {spans:?}");
}

#[test]
fn traces_go_over_http_too() {
    let received = Received::default();
    let taken = received.clone();
    let collector = WebServer::start(move |_, request| {
        taken.bytes.lock().unwrap().extend_from_slice(&request.body);
        assert_eq!(request.target, "/v1/traces");
        taken.take(ExportTraceServiceRequest::decode(&*request.body).unwrap());
        WebAnswer::Full("200 OK", vec![("content-type", "application/x-protobuf".to_owned())], Vec::new())
    });
    let daemon = traced(&collector.url(""), "protocol = \"http\"");
    daemon.api.run_to_end(secret(sh("echo \"$PASSWORD\"").id("traced-http")));
    assert_eq!(received.spans("traced-http").len(), 7);
    assert!(received.has("traced-http") && !received.has(&CANARY[..16]));
}

/// If a collector never responds or is missing, containers run, the queue is limited, and dropped spans are counted and
/// reported.
#[test]
fn collector_that_fails_hurts_no_run() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let unused = free_port();
    for (port, protocol) in [(silent.local_addr().unwrap().port(), "grpc"), (unused, "grpc"), (unused, "http")] {
        let daemon = traced(&format!("http://127.0.0.1:{port}"), &format!("protocol = \"{protocol}\"\nqueue_max = 5"));
        for i in 0..4 {
            daemon.api.run_to_end(sh("exit 0").id(&format!("c-{i}")));
        }
        let dropped = |text: &str, reason: &str| {
            value(text, &format!("executor_spans_dropped_total{{reason=\"{reason}\"}}")).unwrap()
        };
        wait::until("drops are counted for both reasons", || {
            daemon.api.run_to_end(sh("exit 0"));
            let text = scrape(&daemon, "text/plain");
            (dropped(&text, "queue_full") > 0.0 && dropped(&text, "export_failed") > 0.0).then_some(())
        });
        wait::until("drops are reported", || daemon.setup().logged().contains("dropped spans").then_some(()));
        assert_eq!(value(&scrape(&daemon, "text/plain"), "executor_spans_exported_total"), Some(0.0));
    }
}
