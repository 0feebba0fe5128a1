//! Containers of one image share its layers. Each container uses disk space only for its upper layer.

use std::os::unix::fs::MetadataExt as _;

use executor_proto::v1::{DeleteRequest, ListRequest, State};
use integration::daemon::{Daemon, Setup};
use integration::images::{Image, layers};
use integration::lanes::for_all;
use integration::request::{RequestBuilder, program, sh};
use integration::{host, wait};

const CONTAINERS: usize = 100;
/// Size of the disk in bytes, enough for all containers and for many copies of the image.
const DISK: u64 = 4 << 30;
/// Maximum number of bytes that a container may use before it writes anything: its directories, and its files in /etc.
const EACH: u64 = 32 << 10;
/// Number of bytes that one of the containers writes.
const WRITTEN: u64 = 32 << 20;

/// Returns the number of bytes used on the state directory's own file system, including unlinked files. The ledger is
/// excluded, because it keeps records of containers. Warm containers also have directories, so the figure is read when
/// the pool is full.
fn used(daemon: &Daemon) -> u64 {
    daemon.api.wait_until_warm_pool_is_ready();
    let noted = || -> u64 {
        let ledger = std::fs::read_dir(daemon.setup().state_dir().join("ledger")).unwrap().flatten();
        ledger.map(|file| file.metadata().map_or(0, |meta| meta.blocks() * 512)).sum()
    };
    wait::until("the disk usage is measured while the ledger does not grow", || {
        let (before, used) = (noted(), daemon.setup().state_disk().used());
        (noted() == before).then(|| used - before)
    })
}

#[test]
fn hundred_containers_take_the_layers_once() {
    let image = Image::debian();
    image.readable(true);
    let reference: &'static str = image.layout().leak();
    let daemon = Setup::default().disk(DISK).start();
    let used = || used(&daemon);
    // The first run fetches the image and creates everything that exists until the daemon exits.
    daemon.api.run_to_end(program("/bin/true", &[]).id("first").rootfs(reference));
    daemon.api.delete("first", false).unwrap();
    wait::until("the first container's shim has exited", || daemon.footprint().processes.is_empty().then_some(()));
    let (before, unpacked, taken) = (used(), layers(&daemon.setup().state_dir()), daemon.footprint());
    assert!(before > 40 << 20, "control: the layers exist and are counted: {before}");

    let request = |id: &str| program("/bin/sleep", &["100000"]).id(id).rootfs(reference).memory(16 << 20);
    for_all(&daemon, CONTAINERS, move |mut rpc, id| async move { rpc.run(request(&id)).await.map(drop) });
    let all = daemon.api.list(ListRequest { page_size: 1000, ..ListRequest::default() }).unwrap().containers;
    assert_eq!(all.iter().filter(|container| container.state() == State::Running).count(), CONTAINERS);
    let asleep = |pid: u32| host::status(pid as i32, "Name").as_deref() == Some("sleep");
    assert!(all.iter().all(|container| asleep(container.processes[0].pid)), "all at the same time");
    let grown = used() - before;
    assert!(grown < CONTAINERS as u64 * EACH, "{grown} bytes for {CONTAINERS} containers");
    assert_eq!(layers(&daemon.setup().state_dir()), unpacked);

    // As a control, the same measurement includes data that one container writes, and the data is removed with the
    // container.
    let script = format!("head -c {WRITTEN} /dev/zero >/var/new && echo written && exec sleep 100000");
    daemon.api.started(sh(&script).id("writer").rootfs(reference));
    wait::until_ok("the container has written", || match daemon.api.logs_so_far("writer") {
        said if said == "written\n" => Ok(()),
        said => Err(said),
    });
    let with_writer = used() - before - grown;
    assert!((WRITTEN..WRITTEN + EACH).contains(&with_writer), "{with_writer}");
    daemon.api.delete("writer", true).unwrap();
    wait::until("the container's data is gone", || (used() < before + grown + EACH).then_some(()));

    for_all(
        &daemon,
        CONTAINERS,
        |mut rpc, id| async move { rpc.delete(DeleteRequest { id, force: true }).await.map(drop) },
    );
    daemon.wait_until_back_at(&taken);
    wait::until_ok("the upper layers are gone", || match used().saturating_sub(before) {
        ..EACH => Ok(()),
        left => Err(format!("{left} bytes of {grown} are left")),
    });
    assert_eq!(layers(&daemon.setup().state_dir()), unpacked);
}
