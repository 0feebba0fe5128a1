//! Tests files that a container's process may change: which operations succeed, and that all files are wiped.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use executor_proto::v1::{RunRequest, WritableFiles};
use integration::api::{ending, exit};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::request::{ATTACKERS, RequestBuilder, program, sh, sleeper, update};
use integration::rootfs::Rootfs;
use integration::runtime::{TOKEN, socket, token, values, with_token};
use integration::{api, wait};
use tonic::Code;

use crate::rotation::{ROOT, content, inside};

const MOST: u64 = 1 << 20;

fn writable(request: RunRequest) -> RunRequest {
    RunRequest { writable_files: Some(WritableFiles { bytes_max: MOST }), ..request }
}

fn anyone() -> Daemon {
    Setup::default().config("[policy]\nallow_host_userns = true\n").start()
}

/// Changes the files. Exits with 9 if a forbidden operation succeeds.
const CHANGES: &str = r#"set -e
grep -q ' /etc/cf-service-bindings rw,nosuid,nodev,noexec' /proc/self/mountinfo
cd /etc/cf-service-bindings
echo changed >db/user
echo new >db/new; mv db/new db/password
mkdir made; echo x >made/x; ln made/x made/y; ln -s x made/link; mv made other; rm other/x other/link
rm token
printf '#!/bin/sh\nexit 0\n' >run; chmod 755 run; ./run 2>/dev/shm/err && exit 9
echo more >>/root/.token; rm /root/.token 2>/dev/shm/err && exit 9
echo config >/root/.kube/lock; mv /root/.kube/lock /root/.kube/config
touch /dev/executor-files/x 2>/dev/shm/err && exit 9
rm -f /dev/executor-files/0 2>/dev/shm/err && exit 9
cat db/user db/password /root/.token /root/.kube/config other/y
dd if=/dev/zero of=large bs=64k 2>/dev/shm/err && exit 9
grep 'No space left' /dev/shm/err >/dev/null
rm large; echo again >db/user; dd if=/dev/zero of=large bs=64k 2>/dev/shm/err || exit 0"#;

fn request_with_files(id: &str, script: &str, rootfs: &Rootfs) -> RunRequest {
    let request = sh(script).id(id).rootfs(&rootfs.reference()).unmasked();
    let request = request.file("db/user", b"user").file("db/password", b"password").file("token", b"token");
    request.file("/root/.token", b"secret ").file("/root/.kube/config", b"kube")
}

#[test]
fn process_changes_and_adds_writable_files() {
    let (daemon, rootfs) = (anyone(), Rootfs::busybox());
    for attacker in ATTACKERS {
        let begun = writable(request_with_files(attacker.name, CHANGES, &rootfs).by(attacker));
        let ended = daemon.api.run_to_end(begun);
        let printed = daemon.api.output(attacker.name);
        assert_eq!(
            (exit(&ended), printed.text()),
            (Ok(0), "changed\nnew\nsecret more\nconfig\nx\n".into()),
            "{printed:?}"
        );
        assert_eq!(ended.spec.as_ref().unwrap().writable_files, Some(WritableFiles { bytes_max: MOST }));
        let reported: Vec<_> = ended.files.iter().map(|file| (&*file.mount_point, &*file.mount_options)).collect();
        let options = "rw,nosuid,nodev,noexec";
        let points = [ROOT, ROOT, ROOT, "/root/.token", "/root/.kube"];
        assert_eq!(reported, points.map(|point| (point, options)));
        // Ten files: the five files of the request, some only under their second names; the two files that replaced
        // `password` and `config`; and y, run and large.
        let wipe = ending(&ended).wipe.as_ref().unwrap();
        assert_eq!((wipe.verified, wipe.files, &*wipe.wiped_by), (true, 10, "shim"), "{wipe:?}");
        assert!(wipe.bytes > MOST - (64 << 10), "{wipe:?}");
    }
    // As a control, the files are read-only without `writable_files`.
    let ended =
        daemon.api.run_to_end(request_with_files("control", "echo x >/etc/cf-service-bindings/db/user", &rootfs));
    assert!(exit(&ended) != Ok(0), "{ended:?}");
    assert!(ended.files[0].mount_options.starts_with("ro,"));
}

#[test]
fn writable_files_cannot_be_updated() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let container = daemon.api.started(writable(sleeper("w").rootfs(&rootfs.reference()).file("a", b"old")));
    let refused = daemon.api.update(update("w", &[("a", b"new")])).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("writable_files"), "{refused}");
    assert_eq!(content(&container, &format!("{ROOT}/a")).as_deref(), Some("old"));
    assert_eq!(daemon.api.get("w").unwrap().files_generation, 1);
    // Invalid requests are reported.
    let nothing = daemon.api.run(writable(sh("true").rootfs(&rootfs.reference()))).unwrap_err();
    assert!(nothing.code() == Code::InvalidArgument && nothing.message().contains("writable_files"), "{nothing}");
}

/// The holder of the token gets the files as in the request, regardless of the process's changes to its files. These
/// changes cannot make root read any other file.
#[test]
fn original_files_can_be_requested_again() {
    let daemon = Daemon::start();
    let script = "cd /etc/executor-test && rm a && ln -s /etc/hostname a && >b && truncate -s 1T b && mkfifo x && mv x c && \
                  echo up && exec sleep 100000";
    let request = sh(script).id("t").runtime_token(TOKEN).secret_env("PW", "pw").unmasked();
    let files = ["a", "b", "c"].map(|name| format!("/etc/executor-test/{name}"));
    let request = files.iter().fold(request, |request, path| request.file(path, format!("was {path}").as_bytes()));
    let container = daemon.api.up(writable(request));
    let answer = with_token(&socket(&daemon), &token(api::pid(&container))).unwrap();
    let given = files.map(|path| format!("{path}=was {path}"));
    assert_eq!(values(&answer), [&["PW=pw".to_owned()][..], &given[..]].concat());
    daemon.api.stop("t", Some(0)).unwrap();
    // Eight files: the three files of the request under their second names, the copies of these files, the token, and
    // the stored inputs next to the copies. The changed `b` is still the file of the request.
    let wipe = daemon.api.wait("t").unwrap().result.unwrap().wipe.unwrap();
    assert_eq!((wipe.verified, wipe.files), (true, 3 + 3 + 1 + 1));
}

/// Attempts to keep a secret, or to prevent the wipe.
const MISCHIEF: &str = r#"
import mmap, os, socket, sys, time
os.chdir(sys.argv[1])
open('file', 'w').write('S3CR3T')
os.link('file', 'other'); os.link('a', 'db/another'); os.remove('a')
os.symlink('/etc/hostname', 'link'); os.symlink('/etc', 'way'); os.mkfifo('pipe')
socket.socket(socket.AF_UNIX).bind('socket')
with open('sparse', 'wb') as f: f.truncate(1 << 50); f.seek(1 << 40); f.write(b'S3CR3T')
with open('mapped', 'wb') as f: f.write(b'x')
held = open('mapped', 'r+b'); m = mmap.mmap(held.fileno(), 0); os.ftruncate(held.fileno(), 4096)
os.mkdir('shut'); open('shut/file', 'w').write('S3CR3T'); os.chmod('shut/file', 0); os.chmod('shut', 0)
for n in range(2000): open('wide%d' % n, 'w').close()
for n in range(3000): os.mkdir('d'); os.chdir('d')
open('deep', 'w').write('S3CR3T')
print('up', flush=True)
time.sleep(100000)
"#;

#[test]
fn process_files_cannot_prevent_wipe() {
    let hostname = fs::read("/etc/hostname").unwrap_or_default();
    for (attacker, end) in ATTACKERS.into_iter().zip(["shim", "stop", "all"]) {
        let mut daemon = anyone();
        let id = attacker.name;
        let request = program("/usr/bin/python3", &["-c", MISCHIEF, ROOT]).id(id).by(attacker).memory(128 << 20);
        let request = RunRequest { writable_files: Some(WritableFiles::default()), ..request };
        let container = daemon.api.up(request.file("a", b"S3CR3T").file("db/b", b"S3CR3T"));
        let deep = format!("{ROOT}/{}", "d/".repeat(1500));
        assert!(inside(&container, &deep).is_dir(), "{id}");
        let kept = ["file", "db/another", "sparse", "shut/file"];
        let kept = kept.map(|name| File::open(inside(&container, &format!("{ROOT}/{name}"))).unwrap());
        let begun = Instant::now();
        let shim = daemon.record(id).shim.pid;
        match end {
            "stop" => drop(daemon.api.stop(id, Some(0)).unwrap()),
            "shim" => kill(shim, 9),
            _ => {
                let launcher = daemon.launcher().unwrap();
                daemon.kill();
                for pid in [launcher, shim] {
                    kill(pid, 9);
                    wait::until("the killed process has exited", || has_ended(pid).then_some(()));
                }
                daemon.start_again();
            }
        }
        let ended = daemon.api.wait(id).unwrap();
        let wipe = ending(&ended).wipe.as_ref().unwrap_or_else(|| panic!("{ended:?}"));
        let files = 2 + 1 + 1 + 1 + 1 + 2000 + 1;
        assert_eq!((wipe.verified, wipe.files), (true, files), "{id}: {wipe:?} after {:?}", begun.elapsed());
        for file in &kept {
            let mut left = [1; 64];
            let read = file.read_at(&mut left, 0).unwrap();
            assert!(left[..read].iter().all(|byte| *byte == 0), "{id}");
        }
        assert_eq!(
            fs::read("/etc/hostname").unwrap_or_default(),
            hostname,
            "{id}: a link to a file outside of the directory was followed"
        );
    }
}

/// Takes a lease on a file, and does not release it.
const LEASE: &str = "import fcntl, os, signal, sys\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n\
    fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)\nprint(flush=True)\nsignal.pause()";

/// The executor keeps no descriptor of a file that the container's process created. If a process outside of the
/// container has a lease on such a file, only the wipe of this file is delayed, and the result has no receipt.
#[test]
fn leased_file_is_wiped_later() {
    let daemon = Daemon::start();
    let script = "cd /etc/cf-service-bindings; echo S3CR3T >own; echo up; exec sleep 100000";
    let container = daemon.api.up(writable(sh(script).id("l").file("a", b"S3CR3T")));
    let path = inside(&container, &format!("{ROOT}/own"));
    let kept = [path.clone(), inside(&container, &format!("{ROOT}/a"))].map(|path| File::open(path).unwrap());
    let mut lease = Command::new("python3");
    let mut lease = lease.args(["-c", LEASE]).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(lease.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    daemon.api.stop("l", Some(0)).unwrap();
    let ended = daemon.api.wait("l").unwrap();
    let first = |file: &File| {
        let mut bytes = [1];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes[0]
    };
    assert_eq!(ending(&ended).wipe, None, "{ended:?}");
    assert_eq!(kept.each_ref().map(first), [b'S', 0], "the other file is wiped immediately");
    lease.kill().unwrap();
    lease.wait().unwrap();
    wait::until("the file is wiped", || (first(&kept[0]) == 0).then_some(()));
    wait::until("the late wipe is logged", || {
        daemon.setup().logged().contains("1 secret files were wiped late").then_some(())
    });
}
