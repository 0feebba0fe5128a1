//! The gRPC health service. The status is serving if all of these conditions hold:
//!
//! - A launcher with the same configuration is connected.
//! - Every container of an earlier daemon was recovered.
//! - The cell is not draining, drained or unhealthy.
//! - The state directory has space for another container.
//! - executord is not stopping.
//!
//! If the status is not serving, Info reports the reasons.

use std::sync::Arc;
use std::time::Duration;

use executor_proto::v1::executor_server::SERVICE_NAME;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::launcher::Connection;
use crate::node::Node;

/// Poll interval of the free space in the state directory, for which there is no notification.
const DISK_INTERVAL: Duration = Duration::from_secs(5);

/// Creates the health service, and starts a task that updates it.
pub(super) async fn follow(node: &Arc<Node>) -> HealthServer<impl Health> {
    let (reporter, service) = health_reporter();
    report(&reporter, false).await;
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let (mut launcher, mut settled) = (node.launcher.watch(), node.settled.subscribe());
        let (mut stopping, mut cell) = (node.stopping.subscribe(), node.cell.watch());
        let mut disk = tokio::time::interval(DISK_INTERVAL);
        disk.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let connected =
                matches!(&*launcher.borrow_and_update(), Connection::Up(session) if session.difference().is_none());
            let recovered = *settled.borrow_and_update();
            let healthy = cell.borrow_and_update().unhealthy_reasons().is_empty();
            let has_room = node.check_disk().is_ok();
            report(&reporter, connected && recovered && healthy && has_room && !*stopping.borrow_and_update()).await;
            // `changed` cannot fail: the node owns the senders, and this task holds the node.
            tokio::select! {
                _ = launcher.changed() => {}
                _ = settled.changed() => {}
                _ = stopping.changed() => {}
                _ = cell.changed() => {}
                _ = disk.tick() => {}
            }
        }
    });
    service
}

/// Sets the status of the whole server and of the executor.
async fn report(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in ["", SERVICE_NAME] {
        reporter.set_service_status(name, status).await;
    }
}
