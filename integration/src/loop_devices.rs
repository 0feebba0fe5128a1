//! Loop devices that enforce the disk limits of a daemon's containers.

use std::fs;
use std::path::Path;

use crate::daemon::Daemon;
use crate::wait;

/// Returns the backing files of loop devices below a directory, including unlinked files.
pub fn below(directory: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").expect("/sys/block").flatten();
    let files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| Path::new(file).starts_with(directory)).collect()
}

/// Waits until no loop device is backed by a file of the daemon.
pub fn wait_until_free(daemon: &Daemon) {
    wait::until_ok("the loop devices are free", || match below(daemon.setup().home()) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join(" ")),
    });
}
