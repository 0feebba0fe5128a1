//! Instance identity in real containers: certificates are verified with OpenSSL and renewed, a CA may be unable to
//! sign, and keys exist only where they must.

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

/// Returns the host path of a container's file.
fn file(container: &Container, name: &str) -> PathBuf {
    identity::file(pid(container), name)
}

/// Returns the pids of the signer processes.
fn signers(daemon: &Daemon) -> Vec<i32> {
    daemon.launcher().into_iter().flat_map(identity::signers).collect()
}
