//! Calls for many containers, a few at a time.

use tonic::Status;

use crate::api::Rpc;
use crate::daemon::Daemon;

/// Concurrent calls.
const LANES: usize = 8;

/// Makes a call for each of `count` containers, with the ids `c000` and so on, eight at a time.
pub fn for_all<F>(daemon: &Daemon, count: usize, call: impl Fn(Rpc, String) -> F + Copy + Send + 'static)
where
    F: Future<Output = Result<(), Status>> + Send,
{
    let lane = |lane: usize| {
        let api = daemon.api.clone();
        daemon.api.spawn(async move {
            for number in (lane..count).step_by(LANES) {
                let id = format!("c{number:03}");
                call(api.rpc(), id.clone()).await.unwrap_or_else(|status| panic!("{id}: {status:?}"));
            }
        })
    };
    let lanes: Vec<_> = (0..LANES).map(lane).collect();
    for lane in lanes {
        daemon.api.block_on(lane).expect("no call fails");
    }
}
