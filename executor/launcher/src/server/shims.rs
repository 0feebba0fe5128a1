//! Tracks the shims of containers: reads their messages, handles their exits, and runs the watchdog.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::protocol::{LauncherAnswer, LauncherReply, ShimLost};
use executor_core::record::VolumeKind;
use executor_sys::process;
use executor_sys::ready::is_readable;
use prost::Message;

use super::{EXIT_TIMEOUT, Server, StuckShim};
use crate::log::{self, Level};
use crate::shim_handle::{Killed, ShimHandle};
use crate::sweep::{self, Unwiped};

/// Number of checks of a shim within its time limit.
const WATCHES: u32 = 6;

impl Server {
    /// Reads pending messages of every shim.
    pub(super) fn recv_from_shims(&mut self) {
        let kind = self.volume_kind();
        self.shims.values_mut().for_each(|shim| shim.recv(kind));
    }

    /// Reads pending messages of the container's shim, if it has one.
    pub(super) fn recv_from_shim(&mut self, id: &ContainerId) -> Option<&mut ShimHandle> {
        let kind = self.volume_kind();
        let shim = self.shims.get_mut(id)?;
        shim.recv(kind);
        Some(shim)
    }

    /// Returns the type of file system for secret files on this host.
    pub(super) fn volume_kind(&self) -> VolumeKind {
        if self.host.noswap { VolumeKind::TmpfsNoswap } else { VolumeKind::Ramfs }
    }

    /// Completes the containers of shims that have exited.
    pub(super) fn reap_shims(&mut self, has_ended: impl Fn(&ShimHandle) -> bool) {
        let ended: Vec<ContainerId> =
            self.shims.values().filter(|shim| has_ended(shim)).map(|shim| shim.id.clone()).collect();
        for id in &ended {
            self.finish_shim(id);
        }
        if !ended.is_empty()
            && let Err(error) = self.claims.release_unused(&self.ranges(|_| true))
        {
            log::line(Level::Warning, "", format_args!("unused ids were not released: {error}"));
        }
    }

    /// Reaps an exited shim, and completes its container if the shim did not.
    pub(super) fn finish_shim(&mut self, id: &ContainerId) {
        // Completing a container can take a while, and several shims may have exited.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        self.recv_from_shim(id); // the shim's last messages may still be unread
        let Some(shim) = self.shims.remove(id) else { return };
        self.unreaped = true;
        if !is_readable(&shim.pidfd) {
            self.stuck.push(StuckShim { pid: shim.pid, child: shim.child, pidfd: shim.pidfd });
        } else if shim.child {
            let _ = process::wait_for(shim.pid);
        }
        if let Some(place) = &shim.warm {
            self.clear(place);
        }
        // A shim that exited before creating directories is not `done`: its inputs must be wiped and the daemon
        // notified.
        if shim.done && !self.host.containers_run().join(id.as_str()).exists() {
            // The shim itself has removed everything and recorded the exit. The shim has wiped all secret files that it
            // could wipe. A file that the container's process created can be left, if a process outside of the
            // container has a lease on it.
            let volume = shim.volume.map(|volume| Unwiped { id: id.clone(), volume });
            self.unwiped.extend(volume.filter(Unwiped::is_still_leased));
            self.follow_up_detachment(id);
            return;
        }
        let living = self.children().collect();
        self.unwiped.extend(sweep::finish(
            &self.host,
            id,
            shim.volume,
            shim.inputs,
            shim.killed.map(|killed| killed.why),
            &living,
        ));
        self.follow_up_detachment(id);
        if self.host.containers_run().join(id.as_str()).exists() {
            self.ranges_left.extend(shim.id_range.into_iter().chain(shim.pod_range)); // cleanup is incomplete
        }
        let lost = LauncherAnswer::ShimLost(ShimLost { container_id: id.to_string(), created_at: shim.created_at.0 });
        let reply = LauncherReply { sequence: 0, answer: Some(lost) }.encode_to_vec();
        self.daemons.retain(|daemon| daemon.send(&reply, &[]).is_ok());
    }

    /// Returns the interval between two checks of the shims. Returns `None` if no shim runs or the watchdog is off.
    pub(super) fn watch_period(&self) -> Option<Duration> {
        let timeout = self.host.watchdog.filter(|_| !self.shims.is_empty() || !self.stuck.is_empty())?;
        Some(timeout / WATCHES)
    }

    /// Kills shims whose event loop has stopped. The containers are completed after the shims' exit. If a killed shim
    /// does not exit in time, its container is completed anyway, because the shim can execute no further code.
    pub(super) fn watch_shims(&mut self) {
        let Some(timeout) = self.host.watchdog else { return };
        let mut given_up = Vec::new();
        for shim in self.shims.values_mut() {
            match &shim.killed {
                Some(killed) if killed.at.elapsed() >= EXIT_TIMEOUT => given_up.push(shim.id.clone()),
                Some(_) => {}
                None => {
                    let why = shim.watch.as_mut().and_then(|watch| watch.check(timeout, shim.lifeline.as_ref()));
                    if let Some(why) = why {
                        log::line(Level::Error, shim.id.as_str(), format_args!("killing the shim: it {why}"));
                        let _ = process::pidfd_signal(shim.pidfd.as_fd(), libc::SIGKILL); // may have just exited
                        shim.killed = Some(Killed { at: Instant::now(), why });
                    }
                }
            }
        }
        for id in given_up {
            log::line(
                Level::Error,
                id.as_str(),
                "the shim was killed but has not exited: cleaning up the container without the shim",
            );
            self.finish_shim(&id);
        }
        self.stuck.retain(|stuck| {
            let ended = is_readable(&stuck.pidfd);
            if ended && stuck.child {
                let _ = process::wait_for(stuck.pid);
                self.unreaped = true;
            }
            !ended
        });
    }

    /// Returns true if the exit of a shim's container is reported and cleanup is in progress. The daemon may have
    /// received the report before this process did.
    pub(super) fn has_finished(&self, shim: &ShimHandle) -> bool {
        shim.done || self.has_removed(shim)
    }

    /// Returns true if a shim has removed its container's run directory, which is the last step of the cleanup.
    pub(super) fn has_removed(&self, shim: &ShimHandle) -> bool {
        shim.listening && !self.host.containers_run().join(shim.id.as_str()).exists()
    }
}
