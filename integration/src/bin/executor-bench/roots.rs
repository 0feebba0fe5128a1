//! Compares starts from stored images with starts from `dir:` root file systems with the same content.
//!
//! Each image is fetched before the measured runs.

use crate::Options;
use crate::client::TRUE;
use crate::images::Images;
use crate::latency::{Contestant, Latencies, rounds};
use crate::stage::{Executor, Ours};

/// Measures a daemon's starts, interleaved like all latencies. The first contestant is `dir:`.
pub(crate) async fn measure(options: &Options, images: &Images, executor: &Executor) -> anyhow::Result<Latencies> {
    let mut clients = vec![("dir:".to_owned(), executor.client.lane().await?)];
    for (reference, layers) in images.references() {
        let plural = if layers == 1 { "" } else { "s" };
        clients.push((format!("image, {layers} layer{plural}"), executor.client.with_rootfs(reference)));
    }
    let ours = |(name, client)| Ours { name, daemon: &executor.daemon, client, shape: TRUE };
    let contestants: Vec<_> = clients.into_iter().map(ours).map(Box::new).map(Contestant::Executor).collect();
    rounds(options, "image", &contestants).await
}
