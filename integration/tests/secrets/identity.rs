//! Instance identity in real containers: what OpenSSL says of certificates, their replacement, a CA that cannot sign, and where the
//! keys are.

mod authority;
mod delivered;
mod guide;
mod keys;
mod killed;
mod replaced;

use std::path::PathBuf;

use executor_proto::v1::Container;
use integration::api::pid;
use integration::daemon::Daemon;
use integration::identity::{self, Ca, DIR, openssl, with_identity};

/// Path of a container's file, as the host sees it.
fn file(container: &Container, name: &str) -> PathBuf {
    identity::file(pid(container), name)
}

/// Pids of the processes that sign.
fn signers(daemon: &Daemon) -> Vec<i32> {
    daemon.launcher().into_iter().flat_map(identity::signers).collect()
}
