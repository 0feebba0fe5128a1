//! Makes calls for many containers with limited concurrency.

use tonic::Status;

use crate::api::Rpc;
use crate::daemon::Daemon;

/// Number of concurrent calls.
pub const LANES: usize = 8;

/// Makes a call for each of `count` containers with the ids `c000`, `c001` and so on, [`LANES`] at a time.
pub fn for_all<F>(daemon: &Daemon, count: usize, call: impl Fn(Rpc, String) -> F + Copy + Send + 'static)
where
    F: Future<Output = Result<(), Status>> + Send,
{
    let ids: Vec<String> = (0..count).map(|number| format!("c{number:03}")).collect();
    for_each(daemon, &ids, call);
}

/// Makes a call for each id in `ids`, [`LANES`] at a time.
pub fn for_each<F>(daemon: &Daemon, ids: &[String], call: impl Fn(Rpc, String) -> F + Clone + Send + 'static)
where
    F: Future<Output = Result<(), Status>> + Send,
{
    let lane = |lane: usize| {
        let (api, call) = (daemon.api.clone(), call.clone());
        let ids: Vec<String> = ids.iter().skip(lane).step_by(LANES).cloned().collect();
        daemon.api.spawn(async move {
            for id in ids {
                call(api.rpc(), id.clone()).await.unwrap_or_else(|status| panic!("{id}: {status:?}"));
            }
        })
    };
    let lanes: Vec<_> = (0..LANES).map(lane).collect();
    for lane in lanes {
        daemon.api.block_on(lane).expect("no call fails");
    }
}
