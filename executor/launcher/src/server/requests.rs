//! What the daemon asks.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::payload::BYTES_MAX;
use executor_core::protocol::{
    Done, Hello, Launch, LauncherAnswer, LauncherCall, LauncherReply, LauncherRequest, PLAN_MAX, Reason, Refused,
    RemoveLayer, VERSION, Welcome,
};
use executor_core::time::Timestamp;
use executor_secrets::TagKey;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, Fork};
use executor_sys::seqpacket::Seqpacket;
use prost::Message;

use super::{Server, has_ended_within};
use crate::dirs::Dirs;
use crate::layers::Client;
use crate::log::{self, Level};
use crate::network::{self, Patience};
use crate::rootfs::failed;
use crate::shim;
use crate::watched::Shim;

/// Largest request: ids, a tag and a key, or the digests of 127 layers. On the stack, so that a shim, which is forked in the middle of one, does not
/// keep it for as long as its container lives.
const REQUEST_MAX: usize = 8192;
/// How long a shim may take from its last word to its end.
const LAST_STEPS: Duration = Duration::from_secs(5);

impl Server {
    /// Answers every request that has come.
    pub(super) fn serve_daemons(&mut self) {
        let mut index = 0;
        while index < self.daemons.len() {
            match self.serve(index) {
                Ok(true) => {}
                Ok(false) => index += 1,
                Err(Gone) => {
                    self.daemons.remove(index);
                }
            }
        }
    }

    /// Answers one request of one daemon. Tells whether there was one.
    fn serve(&mut self, index: usize) -> Result<bool, Gone> {
        let mut buffer = [0; REQUEST_MAX];
        let (length, fds) = match self.daemons[index].recv(&mut buffer) {
            Ok(None) => return Err(Gone),
            Ok(Some(message)) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(_) => return Err(Gone),
        };
        let request = LauncherRequest::decode(&buffer[..length]).map_err(|_| Gone)?;
        let client = || Client::new(&self.daemons[index], request.sequence);
        let answer = match request.call {
            Some(LauncherCall::Hello(hello)) => self.hello(&hello).map(Some),
            Some(LauncherCall::Launch(launch)) => self.launch(launch, fds).map(Some),
            Some(LauncherCall::Exec(exec)) => self.exec(exec, fds).map(Some),
            Some(LauncherCall::Remove(remove)) => self.remove(&remove.container_id).map(Some),
            Some(LauncherCall::Shutdown(_)) => {
                self.shutdown = true;
                Ok(Some(LauncherAnswer::Done(Done {})))
            }
            Some(LauncherCall::UnpackLayer(unpack)) => {
                let client = client();
                self.layers.unpack(&unpack, fds.into_iter().next(), client)
            }
            Some(LauncherCall::RemoveLayer(remove)) => {
                let client = client();
                self.remove_layer(&remove, client)
            }
            None => Err(Refused::new(Reason::Invalid, "a request that this launcher does not know")),
        };
        // What takes its time is answered when it is done.
        let Some(answer) = answer.unwrap_or_else(|refused| Some(LauncherAnswer::Refused(refused))) else {
            return Ok(true);
        };
        let reply = LauncherReply { sequence: request.sequence, answer: Some(answer) };
        self.daemons[index].send(&reply.encode_to_vec(), &[]).map_err(|_| Gone)?;
        Ok(true)
    }

    fn hello(&mut self, hello: &Hello) -> Result<LauncherAnswer, Refused> {
        if hello.version != VERSION {
            let why = format!("this launcher speaks version {VERSION}, the daemon {}", hello.version);
            return Err(Refused::new(Reason::Precondition, why));
        }
        self.await_shims().map_err(|error| failed("shims", &error))?;
        // The key outlives either process in the other's memory.
        let internal = |error: &dyn std::fmt::Display| Refused::new(Reason::Internal, format!("tag key: {error}"));
        let key = match self.tag_key.take() {
            Some(key) => key,
            None if hello.tag_key.is_empty() => TagKey::random().map_err(|error| internal(&error))?,
            None => TagKey::from_bytes(&hello.tag_key).map_err(|error| internal(&error))?,
        };
        let welcome = Welcome {
            version: VERSION,
            tag_key: key.as_bytes().to_vec(),
            noswap: self.host.noswap,
            cgroups: self.host.hierarchies.name().to_owned(),
        };
        self.tag_key = Some(key);
        Ok(LauncherAnswer::Welcome(welcome))
    }

    fn launch(&mut self, launch: Launch, fds: Vec<OwnedFd>) -> Result<LauncherAnswer, Refused> {
        let id: ContainerId =
            launch.container_id.parse().map_err(|bad| Refused::new(Reason::Invalid, format!("container id: {bad}")))?;
        self.hear_shims();
        self.make_way(&id);
        if self.shims.contains_key(&id) {
            return Err(Refused::new(Reason::Exists, format!("container {id} is there already")));
        }
        let Ok([connection, plan, process, files]) = <[OwnedFd; 4]>::try_from(fds) else {
            return Err(Refused::new(Reason::Invalid, "a launch comes with four descriptors"));
        };
        let file =
            |fd, most| MemFile::from_fd(fd, most).map_err(|error| Refused::new(Reason::Invalid, error.to_string()));
        let (plan, process, files) =
            (file(plan, PLAN_MAX)?, file(process, BYTES_MAX as u64)?, file(files, BYTES_MAX as u64)?);
        let (lifeline, theirs) = Seqpacket::pair().map_err(|error| failed("lifeline", &error))?;
        lifeline.set_nonblocking(true).map_err(|error| failed("lifeline", &error))?;
        let id_range = self.free_range();
        let pid = match process::fork().map_err(|error| failed("fork", &error))? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop(lifeline);
                self.abandon();
                let created_at = Timestamp(launch.created_at);
                let launch = shim::Launch {
                    request_tag: launch.request_tag,
                    created_at,
                    id_range,
                    connection: connection.into(),
                    plan,
                    process,
                    files,
                };
                process::exit_now(shim::run(&self.host, &self.filter, launch, theirs))
            }
        };
        let pidfd = process::pidfd(pid).map_err(|error| failed("shim", &error))?;
        let shim = Shim {
            id: id.clone(),
            created_at: Timestamp(launch.created_at),
            pid,
            child: true,
            pidfd,
            lifeline: Some(lifeline),
            volume: None,
            inputs: vec![process, files],
            id_range,
            listening: false,
            done: false,
        };
        self.shims.insert(id, shim);
        Ok(LauncherAnswer::Done(Done {}))
    }

    /// Takes a shim of this id that is on its way out, or has closed its end.
    fn make_way(&mut self, id: &ContainerId) {
        let Some(shim) = self.shims.get(id) else { return };
        if (shim.lifeline.is_none() || self.has_finished(shim)) && has_ended_within(&shim.pidfd, LAST_STEPS) {
            self.shim_has_ended(id);
        }
    }

    fn remove_layer(&mut self, remove: &RemoveLayer, client: Client) -> Result<Option<LauncherAnswer>, Refused> {
        self.hear_shims();
        // Whose shim has not told of itself yet may have no record, and be about to mount any layer.
        if let Some(shim) = self.shims.values().find(|shim| !shim.listening && !shim.done) {
            return Err(Refused::new(Reason::Busy, format!("the container {} is being made", shim.id)));
        }
        self.layers.remove(&self.host, remove, client)
    }

    fn remove(&mut self, id: &str) -> Result<LauncherAnswer, Refused> {
        let id: ContainerId =
            id.parse().map_err(|bad| Refused::new(Reason::Invalid, format!("container id: {bad}")))?;
        // The daemon saw the exit record of a shim that was killed before its very last step.
        let ends = |shim: &Shim| has_ended_within(&shim.pidfd, LAST_STEPS);
        if Dirs::of(&self.host, &id).read_exit().is_some() && self.shims.get(&id).is_some_and(ends) {
            self.shim_has_ended(&id);
        }
        if self.host.containers_run().join(id.as_str()).exists() {
            return Err(Refused::new(Reason::Precondition, format!("container {id} is not completed")));
        }
        // One more try, where a plugin failed at its end.
        if let Err(why) = network::detach(&self.host, &id, Patience::brief(&self.host)) {
            log::line(Level::Error, id.as_str(), format_args!("it was not taken off its network: {why}"));
        }
        match Dirs::of(&self.host, &id).remove_state() {
            Ok(()) => Ok(LauncherAnswer::Done(Done {})),
            Err(error) => {
                log::line(Level::Error, id.as_str(), format_args!("its state was not removed: {error}"));
                Err(failed("state directory", &error))
            }
        }
    }
}

/// A daemon that is gone, or speaks something else.
struct Gone;
