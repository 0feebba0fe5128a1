//! Runs many short-lived containers, consecutively and eight at a time. Afterwards no resource use of the daemon may
//! have grown. All containers use an image and a secret file. Every hundredth container has a rotation of the file,
//! unless it runs concurrently with others. Every second container is on a built-in network, half of these with a
//! published port.
//!
//! EXECUTOR_LIVES sets the number of containers; EXECUTOR_LIVES_JSON names an output file for the figures. The daemon's
//! figures are measured at rest after each tenth of the containers. The limits for kept results and kept events are
//! reached in the first tenth. A figure that is higher after the last tenth than after the second, by more than its
//! slack, is a leak. The durations of the runs are reported and not evaluated.

mod evaluate;
mod look;
mod report;

use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use executor_proto::v1::{self, PortMapping, RunRequest, State, WaitRequest};
use integration::api::exit;
use integration::daemon::{Daemon, Setup};
use integration::images::Image;
use integration::lanes::{LANES, for_each};
use integration::mount::Tmpfs;
use integration::network::Network;
use integration::request::{RequestBuilder, program, sh, sleeper, update};
use integration::rootfs::Rootfs;
use integration::wait;

use crate::lives::evaluate::{Figures, TENTHS, grown};
use crate::lives::report::Report;

/// Number of containers in the ordinary tests.
const FEW: usize = 300;
/// Number of results that the daemon keeps.
const KEPT: usize = 20;
/// Number of events that the daemon keeps.
const EVENTS: usize = 100;
/// Number of containers for each container with a rotation.
const ROTATED: usize = 100;
const SECRET: &str = "db/password";
const ID: &str = "life-";
/// Number of containers that the control keeps running, to show that all figures except memory and ledger size rise.
const CONTROLS: usize = 12;

#[test]
fn short_lives_leave_nothing_that_grows() {
    let count = std::env::var("EXECUTOR_LIVES").map_or(FEW, |text| text.parse().expect("a number"));
    let tenth = count / TENTHS;
    assert!(tenth > KEPT, "EXECUTOR_LIVES={count}: must be at least {}", TENTHS * (KEPT + 1));

    let rootfs = Rootfs::busybox();
    let image = Image::new();
    image.copy(rootfs.path());
    image.commit();
    image.readable(true);
    let network = Network::forwarding();
    let policy = network.policy();
    let config = format!("[retention]\ncompleted = {KEPT}\nevents = {EVENTS}\n[policy]\n{policy}");
    let daemon = Setup::default().config(&config).network(&network.namespace()).start();
    let node = Node { daemon, network, reference: image.layout() };

    let (mut figures, mut took) = (Vec::new(), Vec::new());
    for number in 0..TENTHS {
        let lives = number * tenth..(number + 1) * tenth;
        // In the last fifth of each tenth, several containers run concurrently.
        let crowd = lives.end - tenth / 5;
        took.extend((lives.start..crowd).map(|number| node.live(number)));
        node.live_at_once(crowd..lives.end);
        figures.push(node.at_rest());
        eprintln!("{} of {} containers", lives.end, tenth * TENTHS);
    }
    let report =
        Report { lives: tenth * TENTHS, at_once: tenth / 5 * TENTHS, kept: KEPT, figures: &figures, took: &took };
    report.print();
    if let Some(path) = std::env::var_os("EXECUTOR_LIVES_JSON") {
        std::fs::write(&path, report.json()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let found = grown(&figures);
    assert!(found.is_empty(), "{}", found.join("\n"));
    node.figures_rise_with_containers(&figures);
}

/// The daemon, its host, and the image of all containers.
struct Node {
    daemon: Daemon,
    network: Network,
    reference: String,
}

impl Node {
    fn request(&self, request: RunRequest, number: usize) -> RunRequest {
        asked(request, number, &self.reference)
    }

    /// Runs one container to its exit and returns the duration. Returns `None` for a container with a rotation, because
    /// its duration is not reported.
    fn live(&self, number: usize) -> Option<Duration> {
        if number % ROTATED == ROTATED - 1 {
            self.live_with_rotation(number);
            return None;
        }
        let request = self.request(program("/bin/true", &[]), number);
        let start = Instant::now();
        let ended = self.daemon.api.run_to_end(request);
        let took = start.elapsed();
        assert_eq!(exit(&ended), Ok(0), "{ended:#?}");
        Some(took)
    }

    /// Runs a container that exits when it reads the new content of its file.
    fn live_with_rotation(&self, number: usize) {
        let script = format!("until grep -q new /etc/cf-service-bindings/{SECRET}; do sleep 0.01; done");
        let api = &self.daemon.api;
        api.run(self.request(sh(&script), number)).unwrap();
        api.update(update(&id(number), &[(SECRET, b"new")])).unwrap();
        let ended = api.wait(&id(number)).unwrap();
        assert_eq!(exit(&ended), Ok(0), "{ended:#?}");
        assert_eq!(ended.state(), State::Completed);
    }

    fn live_at_once(&self, numbers: Range<usize>) {
        // Start the containers in batches, so that all lanes complete a batch within the timeout of a call.
        for start in numbers.clone().step_by(10 * LANES) {
            let reference: std::sync::Arc<str> = self.reference.as_str().into();
            let some: Vec<_> = (start..numbers.end.min(start + 10 * LANES)).map(id).collect();
            for_each(&self.daemon, &some, move |mut rpc, id| {
                let number = id.strip_prefix(ID).and_then(|number| number.parse().ok()).expect("an id of this test");
                let request = asked(program("/bin/true", &[]), number, &reference);
                async move {
                    rpc.run(request).await?;
                    let ended = rpc.wait(WaitRequest { id }).await?.into_inner().container.unwrap();
                    assert_eq!(exit(&ended), Ok(0), "{ended:#?}");
                    Ok(())
                }
            });
        }
    }

    /// Returns the figures when superfluous results are removed and no count changes any more.
    fn at_rest(&self) -> Figures {
        wait::until("results beyond those to be kept are removed", || {
            (self.daemon.api.ids().len() <= KEPT).then_some(())
        });
        // Warm containers are created at the lowest priority. On a busy machine, a half-created warm container may make
        // no progress, so wait until the pool is ready.
        self.daemon.api.wait_until_warm_pool_is_ready();
        let mut before = look::counts(&self.daemon, &self.network);
        wait::until("the daemon is at rest", || {
            std::thread::sleep(look::POLL_INTERVAL);
            let now = look::counts(&self.daemon, &self.network);
            (std::mem::replace(&mut before, now) == now).then_some(())
        });
        look::figures(&self.daemon, &self.network)
    }

    /// Checks, as a control, that every figure except memory and ledger size is higher while containers and mounts
    /// exist.
    fn figures_rise_with_containers(&self, figures: &[Figures]) {
        let ids: Vec<_> = (0..CONTROLS).map(id).collect();
        for number in 0..CONTROLS {
            self.daemon.api.run(self.request(sleeper(""), number)).unwrap();
        }
        let on_host = Tmpfs::mount(&self.daemon.setup().home().join("control"), 1 << 20);
        self.mount_at_the_launcher();
        let found = grown(&[figures, &[look::figures(&self.daemon, &self.network)]].concat());
        drop(on_host);
        let counted = ["executord_descriptors", "launcher_descriptors", "launcher_mounts", "host_mounts", "cgroups"];
        for what in counted.into_iter().chain(["files", "processes", "interfaces", "rules"]) {
            assert!(found.iter().any(|line| line.starts_with(what)), "{what} is missing in the control: {found:?}");
        }
        for id in &ids {
            self.daemon.api.delete(id, true).unwrap();
        }
    }

    /// Creates a mount that exists only in the launcher's namespace.
    fn mount_at_the_launcher(&self) {
        let (launcher, at) = (self.daemon.launcher().unwrap(), self.daemon.setup().home().join("launcher-control"));
        std::fs::create_dir(&at).unwrap();
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--mount=/proc/{launcher}/ns/mnt")).args(["mount", "-t", "tmpfs", "control"]).arg(&at);
        assert!(nsenter.status().unwrap().success(), "a mount in the launcher's namespace");
    }
}

/// Builds the request of a short-lived container.
fn asked(request: RunRequest, number: usize, image: &str) -> RunRequest {
    let request = request.id(&id(number)).rootfs(image).user("app").file(SECRET, b"old");
    if number.is_multiple_of(2) {
        return request;
    }
    // Containers that run at the same time have different ports.
    let host_port = 10_000 + u32::try_from(number % 10_000).expect("a port");
    let port = PortMapping { host_port, container_port: 80, ..PortMapping::default() };
    let ports = if number % 4 == 1 { vec![port] } else { Vec::new() };
    RunRequest { network: v1::Network::Cni.into(), network_name: "bridge".into(), ports, ..request }
}

fn id(number: usize) -> String {
    format!("{ID}{number}")
}
