//! Memory of idle containers: memory of the executor's own processes without any container and with fifty.

use anyhow::ensure;

use crate::client::PAUSE;
use crate::processes::{self, Memory};
use crate::stage::Executor;

pub(crate) const CONTAINERS: u32 = 50;

/// Memory of one daemon's processes.
pub(crate) struct Idle {
    pub(crate) name: String,
    pub(crate) before: Memory,
    /// Memory with [`CONTAINERS`] idle containers.
    pub(crate) with: Memory,
}

/// Starts the containers, measures, and removes them.
pub(crate) async fn measure(executor: &Executor) -> anyhow::Result<Idle> {
    let before = Memory::read(&executor.daemon)?;
    let mut outcome = Ok(());
    for number in 0..CONTAINERS {
        integration::interrupt::check()?;
        outcome = executor.client.start(&format!("idle-{number}"), PAUSE).await;
        if outcome.is_err() {
            break;
        }
    }
    let measured = outcome.and_then(|()| {
        let with = Memory::read(&executor.daemon)?;
        let contained = processes::contained(&executor.daemon)?;
        ensure!(contained >= CONTAINERS as usize, "{contained} containers run, expected {CONTAINERS}");
        Ok(Idle { name: executor.name.clone(), before, with })
    });
    for number in 0..CONTAINERS {
        let deleted = executor.client.delete(&format!("idle-{number}"), true).await;
        if measured.is_ok() {
            deleted?;
        }
    }
    measured
}
