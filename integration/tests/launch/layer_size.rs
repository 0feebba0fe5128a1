//! Size of a container's writable layer in its counters (CRI rules G15 and C41 of docs/guides/cri-rules.md).

use executor_proto::v1::{LayerUsage, RunRequest, StatsRequest};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::wait;

fn layer(daemon: &Daemon, id: &str) -> Option<LayerUsage> {
    let request = StatsRequest { ids: vec![id.into()], ..StatsRequest::default() };
    let stats = daemon.api.block_on(daemon.api.rpc().stats(request)).unwrap().into_inner();
    stats.containers.first()?.usage?.writable_layer
}

#[test]
fn layer_size_counts_written_files_only() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let start = |id: &str, script: &str| {
        let script = format!("{script}; echo ready; exec sleep 100000");
        let request: RunRequest = sh(&script).id(id).rootfs(&rootfs.reference());
        daemon.api.started(request.user("0"));
        wait::until("the files are written", || daemon.api.logs_so_far(id).contains("ready").then_some(()));
        let size = wait::until("the layer is measured", || layer(&daemon, id));
        assert!(size.time.is_some(), "{size:?}");
        size
    };
    let write = "mkdir /d; dd if=/dev/zero of=/d/a bs=64k count=32 2>/dev/null; ln /d/a /d/b; ln -s / /d/root; sync";
    let (empty, full) = (start("empty", "true"), start("full", write));
    assert_eq!(full.used_inodes, empty.used_inodes + 3, "a directory, a file with two names, a link");
    let written = full.used_bytes - empty.used_bytes;
    assert!((2 << 20..3 << 20).contains(&written), "{written}");
    daemon.api.started(sleeper("host"));
    assert_eq!(layer(&daemon, "host"), None, "control: no writable layer");
    for id in ["empty", "full", "host"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}
