//! A kept environment is stored only in the container's volume, and is overwritten with zeros after the container's
//! exit.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use executor_proto::v1::{ExecStart, RunRequest};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Place, Search};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sleeper};
use integration::streams::{Executed, start};
use integration::wait;

const SIZE: usize = 4096;

/// Returns findings in the memory, the environment and the arguments of processes. Findings in the volume itself, to
/// which the shim and the launcher have descriptors, are excluded.
fn found<'a>(needles: &Needles, processes: impl Iterator<Item = &'a Process>) -> Vec<String> {
    let mut search = Search::new(needles);
    processes.for_each(|process| search.process(process));
    let hits = search.report().hits.into_iter();
    let in_volume = |place: &Place| matches!(place, Place::Descriptor { target, .. } if !target.starts_with("/memfd:"));
    hits.filter(|hit| !in_volume(&hit.place)).map(|hit| hit.to_string()).collect()
}

/// Opens the file with the kept environment through the shim's handle of the volume.
fn kept(shim: i32) -> File {
    let fds = std::fs::read_dir(format!("/proc/{shim}/fd")).unwrap().flatten();
    let mut opened = fds.filter_map(|fd| File::open(fd.path().join("steps/environment")).ok());
    opened.next().expect("a handle of the volume")
}

/// While an executed process runs with the environment, the memory of executord, the launcher, the shim and the
/// process's supervisor does not contain the environment. As controls, the search finds the environment in both
/// processes of the container, and in the shim if the shim masks it; the file contains the environment before the exit,
/// and zeros afterwards.
#[test]
fn kept_environment_is_in_no_executor_process() {
    let daemon = Daemon::start();
    for (id, masked) in [("unmasked", false), ("masked", true)] {
        let canary = Canary::random(SIZE).expect("randomness");
        let mut needles = Needles::new().expect("randomness");
        needles.add("kept", canary.as_bytes());
        let request = sleeper(id).secret_env("PW", canary.as_str());
        let request = if masked { request } else { request.unmasked() };
        daemon.api.started(RunRequest { keep_environment: true, ..request });
        let shell = ExecStart { container_environment: true, stdin: true, ..start(id, "/bin/sh", &[]) };
        let mut process = Executed::start(&daemon.api, shell).unwrap();
        process.send_input(b"echo ${#PW}\n");
        process.until(&SIZE.to_string());
        let record = daemon.record(id);
        let own =
            [process.pid, record.prepared.unwrap().init.pid].map(|pid| Process::from_pid(pid.cast_unsigned()).unwrap());
        assert_eq!(own.iter().filter(|process| !found(&needles, std::iter::once(*process)).is_empty()).count(), 2);
        let shim = Process::from_pid(record.shim.pid.cast_unsigned()).unwrap();
        let hits = found(&needles, std::iter::once(&shim));
        assert_eq!(!hits.is_empty(), masked, "{id}: {hits:?}");
        wait::until_ok("no other process holds the environment", || {
            let all = Process::all();
            let roots = [daemon.pid(), daemon.launcher().unwrap()].map(i32::cast_unsigned);
            let below = roots.iter().flat_map(|root| Process::descendants(&all, *root));
            let roots = roots.iter().filter_map(|root| Process::from_pid(*root));
            let ours: Vec<Process> =
                roots.chain(below.filter(|process| !process.contained && process.pid != shim.pid)).collect();
            assert!(ours.len() >= 3, "executord, launcher, supervisor");
            let hits = found(&needles, ours.iter());
            if hits.is_empty() { Ok(()) } else { Err(hits.join(", ")) }
        });
        let file = kept(record.shim.pid);
        let mut content = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content.windows(SIZE).any(|window| window == canary.as_bytes()), "control failed");
        daemon.api.stop(id, Some(0)).unwrap();
        let wipe = daemon.api.wait(id).unwrap().result.unwrap().wipe.expect("a receipt");
        assert!(wipe.verified && wipe.files == 1 && wipe.bytes == content.len() as u64, "{wipe:?}");
        let length = content.len();
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content, vec![0; length]);
        drop(process);
    }
}
