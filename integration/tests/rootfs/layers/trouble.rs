//! Leftovers after a kill during unpacking, on a full disk, or from a hostile blob.

use std::path::Path;

use executor_core::protocol::{LauncherAnswer, Reason, Refused};
use integration::launcher::Launcher;
use integration::layers::Blob;
use integration::mount::Tmpfs;
use integration::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use std::os::fd::AsFd;

fn refused(answer: LauncherAnswer) -> Refused {
    match answer {
        LauncherAnswer::Refused(refused) => refused,
        other => panic!("{other:?}"),
    }
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// Requests a layer. Stops the unpacking process with SIGSTOP after the first write.
fn stop_while_unpacking(launcher: &Launcher, blob: &Blob) -> i32 {
    let request = executor_core::protocol::LauncherRequest { sequence: 7, call: Some(blob.request(&[])) };
    launcher.connection.send(&request.encode_to_vec(), &[blob.file.as_fd()]).unwrap();
    wait::until("an unpacker has written its first directory", || {
        let pid = launcher.layer_worker()?;
        signal(pid, Signal::SIGSTOP);
        let begun = launcher.stored("ingest").iter().any(|dir| dir.join("fs/d0").exists());
        if !begun {
            signal(pid, Signal::SIGCONT);
        }
        begun.then_some(pid)
    })
}

fn answer(launcher: &Launcher) -> LauncherAnswer {
    let mut buffer = vec![0; 8192];
    let (length, _) = launcher.connection.recv(&mut buffer).unwrap().unwrap();
    executor_core::protocol::LauncherReply::decode(&buffer[..length]).unwrap().answer.unwrap()
}

const FILES: u32 = 20_000;

#[test]
fn killed_unpacker_leaves_nothing() {
    let launcher = Launcher::start(&[]);
    let blob = Blob::from_many_files(FILES, "x");
    let pid = stop_while_unpacking(&launcher, &blob);
    assert!(launcher.stored("sha256").is_empty(), "a partial layer is not stored");
    signal(pid, Signal::SIGKILL);
    let refused = refused(answer(&launcher));
    assert!(refused.message.contains("signal 9"), "{refused:?}");
    wait::until("the ingest directory is empty", || launcher.stored("ingest").is_empty().then_some(()));
    assert!(launcher.stored("sha256").is_empty());
    assert!(matches!(launcher.unpack(&blob, &[]), LauncherAnswer::Done(_)));
}

/// If a launcher is killed together with its unpacker, no partial layer is left: the next launcher removes the partial
/// layer, and unpacks the layer again.
#[test]
fn killed_launcher_leaves_no_half_layer() {
    let mut launcher = Launcher::start(&[]);
    let blob = Blob::from_many_files(FILES, "x");
    let pid = stop_while_unpacking(&launcher, &blob);
    launcher.kill();
    wait::until("the unpacker exits with its launcher", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    assert_eq!(launcher.stored("ingest").len(), 1, "control: there are leftovers");
    assert!(launcher.stored("sha256").is_empty());
    launcher.start_again();
    wait::until("the ingest directory is empty", || launcher.stored("ingest").is_empty().then_some(()));
    assert!(matches!(launcher.unpack(&blob, &[]), LauncherAnswer::Done(_)));
    assert_eq!(launcher.stored("sha256").len(), 1);
    // A complete layer is kept.
    launcher.kill();
    launcher.start_again();
    assert!(matches!(launcher.call(blob.request(&[]), &[]), LauncherAnswer::Done(_)));
}

#[test]
fn full_disk_is_reported_and_leaves_nothing() {
    let mut launcher = Launcher::start(&[]);
    launcher.kill();
    let disk = Tmpfs::mount(&launcher.state_dir().join("layers"), 4 << 20);
    launcher.start_again();
    let (large, small) = (Blob::from_many_files(3000, &"x".repeat(5000)), Blob::from_many_files(10, "x"));
    let reported = refused(launcher.unpack(&large, &[]));
    assert_eq!(reported.reason, Reason::Exhausted as i32, "{reported:?}");
    assert!(reported.message.contains("No space left on device"), "{reported:?}");
    assert!(launcher.stored("ingest").is_empty() && launcher.stored("sha256").is_empty());
    assert!(matches!(launcher.unpack(&small, &[]), LauncherAnswer::Done(_)));
    // The mount is in the launcher's directories, and is removed before them.
    launcher.kill();
    drop(disk);
    launcher.start_again();
}

/// An unpacker has few privileges, because it reads untrusted data.
#[test]
fn unpacker_can_do_little() {
    let launcher = Launcher::start(&[]);
    let pid = stop_while_unpacking(&launcher, &Blob::from_many_files(FILES, "x"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    // The capabilities are CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETFCAP, and SYS_ADMIN for the overlay's attributes. No
    // program can gain others.
    for line in [
        "CapEff:\t000000008020001b",
        "CapPrm:\t000000008020001b",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    let of = |pid: u32, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
    for name in ["net", "mnt", "ipc"] {
        assert_ne!(of(pid as u32, name), of(launcher.child.id(), name), "{name}");
    }
    let fds: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().collect();
    let open: Vec<_> = fds.iter().filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let of_a_container = |path: &Path| path.starts_with(launcher.run_dir()) || path.starts_with("/sys");
    assert!(open.len() < 20 && !open.iter().any(|path| of_a_container(path)), "{open:?}");
    signal(pid, Signal::SIGCONT);
    assert!(matches!(answer(&launcher), LauncherAnswer::Done(_)));
}

/// The launcher's response names the fault of a layer. `executor-layers` tests each attack separately.
#[test]
fn layer_errors_are_reported() {
    let launcher = Launcher::start(&[]);
    let blob = |archive: Vec<u8>| Blob::from_archive(&archive);
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..15].copy_from_slice(b"../../etc/evil\0");
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(0);
    header.set_mode(0o644);
    header.set_cksum();
    let up = blob([&header.as_bytes()[..], &[0; 1024]].concat());
    let mut other = blob(vec![0; 1024]);
    other.diff_id.replace_range(7..9, if &other.diff_id[7..9] == "00" { "01" } else { "00" });
    let mut image = blob(vec![0; 1024]);
    image.media_type = "application/vnd.oci.image.manifest.v1+json".into();
    for (blob, words) in [
        (up, "`../../etc/evil` escapes the layer"),
        (other, "the layer's diffID is sha256:"),
        (image, "is not supported for layers"),
        (blob(b"garbage".repeat(200)), "not a tar archive"),
    ] {
        let reported = refused(launcher.unpack(&blob, &[]));
        assert!(reported.reason == Reason::Precondition as i32 && reported.message.contains(words), "{reported:?}");
    }
    let mut named = blob(vec![0; 1024]);
    named.diff_id = "sha256:../../../etc".into();
    for answer in [launcher.call(named.request(&[]), &[]), launcher.remove_layer(&named)] {
        assert_eq!(refused(answer).reason, Reason::Invalid as i32);
    }
    assert!(launcher.stored("ingest").is_empty() && launcher.stored("sha256").is_empty());
}
