//! The peers with which the executor is compared. Each peer creates containers on the calling thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::bubblewrap::Bubblewrap;
use crate::floor;
use crate::host::Host;
use crate::podman::Podman;
use crate::rootfs::Rootfs;
use crate::run::Run;
use crate::runtime::{self, Bundle, Runtime};

/// A contestant other than the executor.
pub(crate) enum Peer {
    /// The floor: the minimum work of any runtime, done directly by system calls.
    Floor(Arc<Rootfs>),
    Bubblewrap(Bubblewrap),
    Podman(Podman),
    Runtime(Runtime),
}

/// A container that is ready to run. The preparation is not measured.
pub(crate) struct Prepared {
    id: String,
    bundle: Option<Bundle>,
}

/// Finds the peers on this machine.
pub(crate) fn find(
    run: &Path,
    rootfs: &Arc<Rootfs>,
    seccomp: Option<&serde_json::Value>,
    host: &Host,
) -> anyhow::Result<Vec<Peer>> {
    let mut peers = vec![Peer::Floor(Arc::clone(rootfs))];
    peers.extend(Bubblewrap::find(rootfs)?.map(Peer::Bubblewrap));
    peers.extend(runtime::find(run, rootfs, seccomp, host)?.into_iter().map(Peer::Runtime));
    Ok(peers)
}

impl Peer {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Floor(_) => "raw floor",
            Self::Bubblewrap(_) => "bwrap",
            Self::Podman(podman) => &podman.name,
            Self::Runtime(runtime) => &runtime.name,
        }
    }

    /// Returns the version as printed by the program.
    pub(crate) fn version(&self) -> Option<&str> {
        match self {
            Self::Floor(_) => None,
            Self::Bubblewrap(bubblewrap) => Some(&bubblewrap.version),
            Self::Podman(podman) => Some(&podman.version),
            Self::Runtime(runtime) => Some(&runtime.version),
        }
    }

    /// Returns true if several containers of the peer are measured concurrently. The floor is not a program, and podman
    /// takes about a second for each container.
    pub(crate) fn runs_several(&self) -> bool {
        !matches!(self, Self::Floor(_) | Self::Podman(_))
    }

    /// Prepares a container. The preparation is not measured. `id` must be unused.
    pub(crate) fn prepare(&self, id: String) -> anyhow::Result<Prepared> {
        let bundle = match self {
            Self::Runtime(runtime) => Some(runtime.bundle(&id)?),
            Self::Floor(_) | Self::Bubblewrap(_) | Self::Podman(_) => None,
        };
        Ok(Prepared { id, bundle })
    }

    /// Runs one container, from its creation to its removal.
    pub(crate) fn run(&self, prepared: &Prepared) -> anyhow::Result<Run> {
        match (self, &prepared.bundle) {
            (Self::Floor(rootfs), _) => Ok(Run::ended(floor::run(rootfs)?)),
            (Self::Bubblewrap(bubblewrap), _) => bubblewrap.run(&prepared.id),
            (Self::Podman(podman), _) => podman.run(&prepared.id),
            (Self::Runtime(runtime), Some(bundle)) => runtime.run(bundle),
            (Self::Runtime(runtime), None) => {
                anyhow::bail!("the container {} of {} has no bundle", prepared.id, runtime.name)
            }
        }
    }

    /// Runs `count` containers, `lanes` at a time. Returns the sorted times of their exits since the common start, and
    /// the time until the last container was deleted.
    pub(crate) fn run_at_once(
        &self,
        lanes: u32,
        count: u32,
        prefix: &str,
    ) -> anyhow::Result<(Vec<Duration>, Duration)> {
        let prepared = (0..count).map(|number| self.prepare(format!("{prefix}-{number}")));
        let prepared = prepared.collect::<anyhow::Result<Vec<_>>>()?;
        let (prepared, next) = (&prepared, &AtomicUsize::new(0));
        let start = Instant::now();
        let lane = || -> anyhow::Result<Vec<Duration>> {
            let mut exits = Vec::new();
            while let Some(prepared) = prepared.get(next.fetch_add(1, Ordering::Relaxed)) {
                let begun = start.elapsed();
                exits.push(begun + self.run(prepared)?.exit);
            }
            Ok(exits)
        };
        let ended: Vec<anyhow::Result<Vec<Duration>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            // Join all threads before the first failure is returned.
            threads.into_iter().map(join).collect()
        });
        let took = start.elapsed();
        let mut exits: Vec<_> = ended.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat();
        exits.sort_unstable();
        Ok((exits, took))
    }
}
