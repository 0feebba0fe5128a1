//! Sends requests as a BBS client encodes them: this test contains its own field numbers and wire types from
//! bbs/models/actions.proto, to detect a renumbered field of the executor.

use executor_proto::v1::RunResponse;
use integration::api::{Api, exit};
use integration::daemon::Daemon;
use prost::Message;
use prost::bytes::BufMut;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

/// A codec that passes bytes through unchanged.
#[derive(Default)]
struct Verbatim;

impl Codec for Verbatim {
    type Encode = Vec<u8>;
    type Decode = RunResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Verbatim {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Verbatim {
    type Item = RunResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RunResponse>, Status> {
        RunResponse::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

fn run(api: &Api, request: Vec<u8>) -> Result<RunResponse, Status> {
    api.block_on(async {
        let mut grpc = tonic::client::Grpc::new(api.channel());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/executor.v1.Executor/Run");
        grpc.unary(Request::new(request), path, Verbatim).await.map(tonic::Response::into_inner)
    })
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Encodes a field of wire type 2: a string, bytes, or a message.
fn field(number: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// Encodes a field of wire type 0: a number or a bool.
fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

/// Encodes RunRequest{id=1, action=2}.
fn request(id: &str, action: &[u8]) -> Vec<u8> {
    [field(1, id), field(2, action)].concat()
}

#[test]
fn bbs_run_action_runs_unchanged() {
    let daemon = Daemon::start();
    let script = "id -un; pwd; echo $GREETING; cat /etc/cf-service-bindings/db/password; ulimit -n; exit 4";
    let run_action = [
        field(1, "/bin/sh"),                                                  // path
        field(2, "-c"),                                                       // args
        field(2, script),                                                     //
        field(3, "/tmp"),                                                     // dir
        field(4, [field(1, "GREETING"), field(2, "hello")].concat()),         // env: name, value
        field(5, [number(1, 4321), number(2, 77)].concat()),                  // resource_limits: nofile, nproc
        field(6, "vcap"),                                                     // user
        field(7, "APP/PROC/WEB"),                                             // log_source
        number(8, 0),                                                         // suppress_log_output
        field(9, [field(1, "db/password"), field(2, "from bbs\n")].concat()), // volume_mounted_files: path, content
    ]
    .concat();
    // Unknown fields are ignored: a later BBS may add fields.
    let run_action = [run_action, field(60, "unknown"), number(61, 5)].concat();
    let answer = run(&daemon.api, request("bbs", &field(3, run_action))).unwrap();
    assert!(answer.created);
    let ended = daemon.api.wait("bbs").unwrap();
    assert_eq!(daemon.api.output("bbs").text(), "vcap\n/tmp\nhello\n[REDACTED:db/password]\n4321\n");
    assert_eq!(exit(&ended), Ok(4));
    assert_eq!(daemon.api.follow("bbs").message().unwrap().unwrap().log_source, "APP/PROC/WEB");
}

/// File contents up to the limit of a BBS (`volumeMountedFilesMaxAllowedSize`) are accepted, in files of any number and
/// name; one more byte is refused.
#[test]
fn files_up_to_bbs_limit_are_accepted() {
    let daemon = Daemon::start();
    let action = |sizes: &[usize]| {
        let file = |(number, size): (usize, &usize)| {
            field(9, [field(1, format!("binding-{number}/{}", "n".repeat(100))), field(2, "s".repeat(*size))].concat())
        };
        let files: Vec<u8> = sizes.iter().enumerate().flat_map(file).collect();
        let script = "cat /etc/cf-service-bindings/*/* | wc -c";
        field(3, [field(1, "/bin/sh"), field(2, "-c"), field(2, script), field(6, "vcap"), files].concat())
    };
    run(&daemon.api, request("most", &action(&[1 << 20]))).unwrap();
    run(&daemon.api, request("many", &action(&[1024; 1024]))).unwrap();
    for id in ["most", "many"] {
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Ok(0));
        assert_eq!(daemon.api.output(id).text().trim(), "1048576", "{id}");
    }
    let status = run(&daemon.api, request("more", &action(&[1 << 20, 1]))).unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("1048577 bytes"), "{status:?}");
}

#[test]
fn every_action_runs_or_names_refused_field() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let inner_run = field(3, field(1, "/bin/true"));
    // If a part of a transfer is missing, the violation names its field.
    for (tag, name, body) in [(1, "download", field(1, "artifact")), (2, "upload", field(1, "artifact"))] {
        let action = field(8, [field(1, &inner_run), field(1, field(tag, &body))].concat());
        let status = run(&daemon.api, request(name, &action)).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{name}");
        for end in ["from", "to"] {
            let field = format!("action.serial.actions[1].{name}.{end}");
            assert!(status.message().contains(&field), "{field}: {status:?}");
        }
    }
    // Each other kind of action alone, then all of them nested. Each result equals the result of Diego's executor.
    let timeout = |inner: &[u8]| field(4, [field(1, inner), number(4, 60_000)].concat());
    let nanoseconds = |inner: &[u8]| field(4, [field(1, inner), number(2, 60_000_000_000)].concat());
    let progress = |inner: &[u8]| field(5, [field(1, inner), field(2, "begins")].concat());
    let list = |tag, inner: &[u8]| field(tag, [field(1, inner), field(1, inner)].concat());
    let nested = timeout(&progress(&list(8, &list(7, &field(6, field(1, list(9, &inner_run)))))));
    let table = [
        ("timeout", timeout(&inner_run), None),
        ("nanoseconds", nanoseconds(&inner_run), None),
        ("emit_progress", progress(&inner_run), None),
        ("try", field(6, field(1, &inner_run)), None),
        ("parallel", list(7, &inner_run), None),
        ("serial", list(8, &inner_run), None),
        ("codependent", list(9, &inner_run), Some("Codependent step exited; Codependent step exited")),
        ("nested", nested, None),
    ];
    for (name, action, failure) in table {
        assert!(run(&daemon.api, request(name, &action)).unwrap().created, "{name}");
        let result = daemon.api.wait(name).unwrap().result.unwrap();
        // If two actions end at the same time, one of them may be cancelled before its end is recorded.
        let reported = result.failure.map(|failure| failure.message);
        match (reported.as_deref(), failure) {
            (Some(reported), Some(failure)) => assert!(failure.starts_with(reported), "{name}: {reported}"),
            (reported, failure) => assert_eq!(reported, failure, "{name}"),
        }
        daemon.api.delete(name, true).unwrap();
    }
    let both = [inner_run.clone(), field(6, field(1, &inner_run))].concat();
    let status = run(&daemon.api, request("both", &both)).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("run, try"), "{status:?}");
    let status = run(&daemon.api, request("none", &[])).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(run(&daemon.api, request("control", &inner_run)).unwrap().created);
    daemon.api.wait("control").unwrap();
    daemon.api.delete("control", true).unwrap();
    daemon.wait_until_back_at(&before);
}

#[test]
fn bytes_that_are_no_request_are_refused() {
    let daemon = Daemon::start();
    for bytes in
        [vec![0xff; 16], request("x", &field(3, [0x0a, 0xff])), request("x", &field(3, field(1, [0xff, 0xfe])))]
    {
        let status = run(&daemon.api, bytes).unwrap_err();
        assert!([Code::InvalidArgument, Code::Internal].contains(&status.code()), "{status:?}");
    }
    assert_eq!(daemon.api.ids(), [""; 0]);
}
