//! A container leaves nothing for the next container with the same host ids, with and without a warm pool.

use std::path::Path;
use std::process::Command;

use integration::daemon::Setup;
use integration::id_pool::IdPool;
use integration::request::{RequestBuilder as _, program};
use integration::rootfs::Rootfs;

const PROBE: &str = include_str!("probes/next.pl");

/// Creates a root file system with busybox and this host's perl.
fn with_perl() -> Rootfs {
    let rootfs = Rootfs::busybox();
    let copy = "cp -rL --parents $(ldd /usr/bin/perl | grep -o '/[^ ]*') /usr/bin/perl /usr/lib/*/perl-base \"$1\"";
    let copied = Command::new("sh").args(["-c", copy, "sh"]).arg(rootfs.path()).status().unwrap();
    assert!(copied.success());
    assert!(rootfs.path().join("usr/bin/perl").exists());
    for dir in ["tmp", "run"] {
        let path = rootfs.path().join(dir);
        if !Path::new(&path).exists() {
            std::fs::create_dir(path).unwrap();
        }
    }
    rootfs
}

#[test]
fn next_container_finds_no_leftovers() {
    let rootfs = with_perl();
    let pool = IdPool::reserve(2);
    for warm_pool in [0, 1] {
        let config = format!("[policy]\n{}[warm_pool]\nsize = {warm_pool}\n", pool.policy());
        let daemon = Setup::default().config(&config).start();
        daemon.api.wait_until_warm_pool_is_ready();
        let ended = |id: &str, what: &str| {
            let request = program("/usr/bin/perl", &["-e", PROBE, what]).id(id).rootfs(&rootfs.reference());
            let container = daemon.api.run_to_end(request);
            let printed = daemon.api.output(id).text();
            assert_eq!(integration::api::exit(&container), Ok(0), "{id}: {printed}");
            (container.id_range_start, printed)
        };
        let (first, left) = ended("first", "leave");
        assert_eq!(left.matches(": there").count(), 11, "control failed: the first container left too little: {left}");
        daemon.api.delete("first", false).unwrap();
        // Id ranges are assigned in turn, so several containers are needed until one gets the first range again.
        let mut same = 0;
        for number in 0..4 {
            let id = format!("next-{number}");
            let (range, found) = ended(&id, "look");
            assert_eq!((found.matches(": there").count(), found.matches(": not there").count()), (0, 11), "{found}");
            same += usize::from(range == first);
            daemon.api.delete(&id, false).unwrap();
        }
        assert!(same > 0, "control: a later container had the ids of the first");
        let counts = daemon.api.info().warm_pool.unwrap();
        assert_eq!(counts.used > 0, warm_pool > 0, "{counts:?}");
    }
}
