//! Outputs in case of failures: a full disk, a killed process of the executor, a stop, and a deletion during the
//! capture.

use std::path::PathBuf;

use executor_core::outputs::LIST;
use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::{Container, GetOutputsRequest, Outputs, OutputsSummary, RunRequest, State};
use integration::api::exit;
use integration::daemon::{Daemon, Setup, kill};
use integration::outputs::{directory, fetch, files};
use integration::request::{RequestBuilder, program, sh};
use integration::{host, wait};
use tonic::Code;

const SECRET: &[u8] = b"canary-of-the-faults-51e7";

fn with_outputs(outputs: Option<Outputs>, request: RunRequest) -> RunRequest {
    RunRequest { outputs, ..request }.file("/run/app/key", SECRET)
}

fn summary(container: &Container) -> OutputsSummary {
    container.result.clone().unwrap().outputs.unwrap()
}

/// Checks that the secrets were wiped by the given process.
fn assert_wiped(container: &Container, by: &str) {
    let wipe = container.result.clone().unwrap().wipe.unwrap();
    assert!(wipe.verified && wipe.wiped_by == by && (wipe.files, wipe.bytes) == (1, SECRET.len() as u64), "{wipe:?}");
}

fn outputs_dir(daemon: &Daemon, id: &str) -> PathBuf {
    daemon.setup().state_dir().join("containers").join(id).join("outputs")
}

/// Builds a request whose capture takes a while: the container has so many files that a test can intervene.
fn slow(id: &str) -> RunRequest {
    let many = "import os\nos.mkdir('/tmp/o')\nfor i in range(9990): open(f'/tmp/o/{i:05}', 'w').close()\n";
    with_outputs(directory("/tmp/o"), program("/usr/bin/python3", &["-c", many]).id(id))
}

/// Starts a container with the request of [`slow`] and returns during the capture.
fn in_the_middle(daemon: &Daemon, id: &str) {
    daemon.api.started(slow(id));
    wait::until("the capture has started", || outputs_dir(daemon, id).join("20").exists().then_some(()));
    assert!(!outputs_dir(daemon, id).join(LIST).exists(), "the list is written last");
}

/// A file that does not fit on the disk is reported as skipped. Smaller files are captured, and the daemon has enough
/// space to continue.
#[test]
fn full_disk_skips_only_oversized_outputs() {
    let daemon = Setup::default().disk(40 << 20).start();
    let before = daemon.footprint();
    let script = "mkdir /tmp/o; cd /tmp/o; head -c 3000000 /dev/zero >a; head -c 30000000 /dev/zero >b; echo small >c";
    let container = daemon.api.run_to_end(with_outputs(directory("/tmp/o"), sh(script).id("some")));
    let fetched = fetch(&daemon.api, "some", "").unwrap();
    assert_eq!(fetched.paths(), ["/tmp/o/a", "/tmp/o/c"]);
    assert_eq!(fetched.reason("/tmp/o/b"), "no space on the executor's disk");
    assert_eq!(std::fs::read_dir(outputs_dir(&daemon, "some")).unwrap().count(), 3, "a partial file is stored");
    assert_wiped(&container, "shim");

    // The disk is full to the last byte while the container runs. The container's exit is still recorded, and its
    // secrets are wiped.
    let waits = sh("trap 'echo x >/tmp/x; exit 5' TERM; echo up; while :; do sleep 0.05; done");
    daemon.api.up(with_outputs(files(&["/tmp/x"]), waits.id("none")));
    daemon.setup().state_disk().fill();
    daemon.api.stop("none", None).unwrap();
    let container = daemon.api.wait("none").unwrap();
    assert_eq!(exit(&container), Ok(5));
    assert_wiped(&container, "shim");
    let reported = summary(&container);
    assert!(
        reported.files == 0 && (reported.skipped == 1 || reported.failure.contains("No space left")),
        "{reported:?}"
    );
    if !reported.failure.is_empty() {
        let status = fetch(&daemon.api, "none", "").unwrap_err();
        assert!(
            status.code() == Code::FailedPrecondition && status.message().contains(&reported.failure),
            "{status:?}"
        );
    }
    daemon.setup().state_disk().free();
    for id in ["some", "none"] {
        daemon.api.delete(id, false).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If a shim is killed during the capture or just before it, the exit code is known, the launcher wipes the secrets,
/// and a partial capture is discarded.
#[test]
fn lost_shim_has_captured_nothing() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    in_the_middle(&daemon, "middle");
    let shim = daemon.record("middle").shim.pid;
    kill(shim, 9);
    let container = daemon.api.wait("middle").unwrap();
    assert_eq!(exit(&container), Ok(0), "the process exited before the shim was killed");
    assert_wiped(&container, "launcher");

    let script = "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done";
    daemon.api.up(with_outputs(files(&["/etc/passwd"]), sh(script).id("before")));
    kill(daemon.record("before").shim.pid, 9);
    daemon.api.wait("before").unwrap();
    for id in ["middle", "before"] {
        let reported = summary(&daemon.api.get(id).unwrap());
        assert_eq!(reported.failure, "the shim was lost before the outputs were captured", "{id}");
        let status = fetch(&daemon.api, id, "").unwrap_err();
        assert!(
            status.code() == Code::FailedPrecondition && status.message().contains(&reported.failure),
            "{status:?}"
        );
        assert!(!outputs_dir(&daemon, id).exists());
        daemon.api.delete(id, false).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If the daemon is killed during a capture, the shim continues, and the next daemon serves the outputs.
#[test]
fn killed_daemon_loses_no_outputs() {
    let mut daemon = Daemon::start();
    in_the_middle(&daemon, "on");
    daemon.kill();
    daemon.start_again();
    let container = daemon.api.wait("on").unwrap();
    assert_eq!((exit(&container), summary(&container).files), (Ok(0), 9990));
    assert_wiped(&container, "shim");
    assert_eq!(fetch(&daemon.api, "on", "").unwrap().files.len(), 9990);
    daemon.kill();
    daemon.start_again();
    assert_eq!(fetch(&daemon.api, "on", "/tmp/o/00007").unwrap().paths(), ["/tmp/o/00007"]);
}

/// A stop limits a capture to the grace period. A forced deletion does not wait for the capture, and kills its helper.
#[test]
fn stop_cuts_a_capture_short() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    in_the_middle(&daemon, "stopped");
    assert_eq!(daemon.api.get("stopped").unwrap().state(), State::Wiping);
    let shim = daemon.record("stopped").shim.pid;
    let helpers = host::descendants(shim);
    daemon.api.stop("stopped", Some(0)).unwrap();
    let container = daemon.api.wait("stopped").unwrap();
    let reported = summary(&container);
    assert!(reported.files > 0 && reported.files < 9990 && reported.skipped >= 1, "{reported:?}");
    let fetched = fetch(&daemon.api, "stopped", "").unwrap();
    assert_eq!(fetched.reason("/tmp/o"), "the container was stopped before the capture");
    assert_eq!(fetched.files.len(), reported.files as usize);
    assert_wiped(&container, "shim");
    assert_eq!(helpers.len(), 1, "control: one helper was running");
    assert!(helpers.iter().all(|pid| integration::daemon::has_ended(*pid)));
    daemon.api.delete("stopped", false).unwrap();

    in_the_middle(&daemon, "forced");
    daemon.api.delete("forced", true).unwrap();
    assert!(!outputs_dir(&daemon, "forced").exists());
    daemon.wait_until_back_at(&before);
}

/// If outputs are deleted while a client reads them, the client receives whole files and then an error, not a normal
/// end of the stream.
#[test]
fn deletion_during_stream_is_reported() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let script = "mkdir /tmp/o; head -c 20000000 /dev/zero >/tmp/o/a; head -c 20000000 /dev/zero >/tmp/o/b";
    daemon.api.run_to_end(with_outputs(directory("/tmp/o"), sh(script).id("gone").memory(128 << 20)));
    let (bytes, status) = daemon.api.block_on(async {
        let request = GetOutputsRequest { id: "gone".into(), path: String::new() };
        let mut stream = daemon.api.rpc().get_outputs(request).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap().part;
        assert!(matches!(first, Some(Part::File(file)) if file.path == "/tmp/o/a" && file.size == 20_000_000));
        let delete = executor_proto::v1::DeleteRequest { id: "gone".into(), force: false };
        daemon.api.rpc().delete(delete).await.unwrap();
        let mut bytes = 0;
        loop {
            match stream.message().await {
                Ok(Some(message)) => {
                    let Some(Part::Data(data)) = message.part else { panic!("{message:?}") };
                    bytes += data.len();
                }
                Ok(None) => panic!("{bytes} bytes and no error"),
                Err(status) => return (bytes, status),
            }
        }
    });
    assert_eq!((bytes, status.code()), (20_000_000, Code::NotFound));
    assert_eq!(status.message(), "the outputs of container gone were deleted with the container");
    assert_eq!(fetch(&daemon.api, "gone", "").unwrap_err().code(), Code::NotFound);
    daemon.wait_until_back_at(&before);
}
