//! Stages 5 and 6 of creating a container: injects the secret files, and reads the values that are masked in the
//! output.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::limits::WRITABLE_ENTRIES;
use executor_core::placement::{self, VolumeSize};
use executor_core::plan::{Plan, WritableFiles};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{ContainerRecord, PreparedContainer};
use executor_secrets::TokenDigest;
use executor_secrets::volume::Volume;
use zeroize::Zeroizing;

use super::Undo;
use super::create::WaitingInit;
use crate::errors::failed;
use crate::finish::now;
use crate::host::Host;
use crate::network;
use crate::seccomp::Filter;
use crate::shim::files::inject;
use crate::shim::init::create;
use crate::shim::output::container_log;
use crate::shim::output::redaction::MaskedValues;
use crate::shim::output::termination_message::{MessageFile, Placing};
use crate::shim::running::control::Control;
use crate::shim::running::limits;
use crate::shim::running::usage::Interfaces;
use crate::shim::steps::RunningSteps;

/// Stage 5: the secret files are mounted.
pub(super) struct Injected {
    pub(super) waiting: WaitingInit,
    pub(super) token: Option<TokenDigest>,
    pub(super) message: Option<MessageFile>,
    pub(super) interfaces: Interfaces,
}

/// Stage 6: the container is ready to be started.
pub(super) struct BuiltContainer {
    pub(super) record: ContainerRecord,
    pub(super) container: create::Created,
    pub(super) target: Option<OwnedFd>,
    pub(super) ports: Option<network::Reserved>,
    pub(super) log: container_log::Log,
    pub(super) token: Option<TokenDigest>,
    pub(super) watch: MaskedValues,
    pub(super) steps: Option<RunningSteps>,
    pub(super) message: Option<MessageFile>,
    pub(super) interfaces: Interfaces,
}

impl WaitingInit {
    pub(super) fn inject(mut self, host: &Host, site: &mut Undo, control: &mut Control) -> Result<Injected, Refused> {
        let is_filled = !site.remains.volumes.is_empty(); // true if the files of a warm container are already written
        let message = self.message_file(host)?;
        let volume = if is_filled { None } else { self.volume(host, site, control)? };
        site.remains.volumes.extend(volume);
        self.prepared.volume = site.remains.volumes.first().map(Volume::kind);
        let injection = inject::Injection {
            host,
            plan: &self.record.plan,
            cgroup: &self.record.cgroup,
            init: self.container.pidfd().as_fd(),
            network_is_set_up: self.container.was_warm(),
            prepared: &self.prepared,
            id_map: self.id_map,
            volume: site.remains.volumes.first(),
            message: message.as_ref().zip(self.message.as_ref()).map(|(file, point)| Placing { file, point }),
            shm: self.shm.as_ref(),
            late: &self.late,
            process: &site.remains.inputs[0],
            files: &site.remains.inputs[1],
            staging: &self.dirs.staging(),
            devices: &self.devices,
        };
        let token = if is_filled { None } else { injection.execute()? };
        if let (Some(WritableFiles { bytes_max }), Some(volume)) =
            (self.record.plan.writable_files, site.remains.volumes.first())
        {
            let room = VolumeSize { bytes: bytes_max.next_multiple_of(host.page), inodes: WRITABLE_ENTRIES };
            volume.leave_room(room).map_err(|error| failed("cannot grow the secret file system", &error))?;
        }
        let interfaces = Interfaces::new(&self.record.plan, self.container.pid());
        Ok(Injected { waiting: self, token, message, interfaces })
    }

    /// Creates the termination message file, if the plan has one.
    fn message_file(&self, host: &Host) -> Result<Option<MessageFile>, Refused> {
        let user = &self.prepared.user;
        let owner = (self.id_map.to_host(user.uid), self.id_map.to_host(user.gid));
        let file = self.message.as_ref().map(|_| MessageFile::create(owner, host.noswap));
        file.transpose().map_err(|error| failed("cannot create the file for the termination message", &error))
    }

    /// Creates the file system of the secret files, if there are any, and sends the launcher a handle on this file
    /// system.
    fn volume(&self, host: &Host, site: &Undo, control: &mut Control) -> Result<Option<Volume>, Refused> {
        let plan = &self.record.plan;
        if self.prepared.mounts.is_empty() && !plan.has_hidden_secrets() {
            return Ok(None);
        }
        let mut size = placement::volume_size(&plan.files, host.page);
        if inject::keeps_inputs(plan) {
            // The number and names of the inputs are known, but not their sizes. The inputs' total size is less than
            // the payload's size.
            size = size.and_a_file_of(site.remains.inputs[0].len() as u64, host.page);
        }
        if plan.keep_environment {
            size = size.and_a_file_of(site.remains.inputs[0].len() as u64, host.page);
        }
        let mut files = plan.files.len();
        if plan.actions.is_some() {
            let payloads = site.remains.inputs[0].len() as u64;
            let steps =
                placement::steps_size((&plan.processes, &plan.transfers), payloads, plan.files.len(), host.page);
            (size.bytes, size.inodes) = (size.bytes + steps.bytes, size.inodes + steps.inodes);
            files += plan.processes.iter().map(|process| process.files.len() + 4).sum::<usize>();
            files += 2 * plan.transfers.len();
        }
        let volume = Volume::create(size).map_err(|error| failed("cannot create the secret file system", &error))?;
        limits::allow_descriptors(files);
        control.share_volume(&volume);
        Ok(Some(volume))
    }
}

impl Injected {
    pub(super) fn finish(
        self,
        host: &Host,
        filter: &Arc<Filter>,
        site: &Undo,
        control: &mut Control,
    ) -> Result<BuiltContainer, Refused> {
        let Self { waiting, token, message, interfaces } = self;
        let WaitingInit { mut record, dirs, mut log, container, ports, mut prepared, target, contents, .. } = waiting;
        let [process, files] = &site.remains.inputs[..] else {
            let why = format!("a launch needs two payloads, but has {}", site.remains.inputs.len());
            return Err(Refused::new(Reason::Internal, why));
        };
        // Fork the step starter before this process reads a secret.
        let steps = match &record.plan.actions {
            None => None,
            Some(actions) => Some(
                RunningSteps::prepare(host, filter, &record, &prepared, actions, container.pidfd().as_fd())
                    .map_err(|error| failed("cannot prepare the steps", &error))?,
            ),
        };
        record.steps = steps.as_ref().map(RunningSteps::records).unwrap_or_default();
        record.restarts = steps.as_ref().and_then(RunningSteps::restarts).cloned();
        let watch = read_token(&record.plan, &prepared, site.remains.volumes.first())
            .and_then(|token| {
                MaskedValues::start(&record.plan, &host.policy.files_root, process, (files, contents), token)
            })
            .map_err(|error| failed("cannot prepare the masking of secrets", &error))?;
        let masking = watch.masking();
        prepared.warnings.extend_from_slice(masking.warnings());
        log.mask(masking);
        log.open_file(host, &record.plan)?;
        prepared.at = now();
        record.files_generation = u64::from(!prepared.mounts.is_empty());
        record.prepared = Some(prepared);
        record.state = State::Created;
        dirs.write_record(&record).map_err(|error| failed("cannot write the container's record", &error))?;
        control.set_state(State::Created);
        Ok(BuiltContainer { record, container, target, ports, log, token, watch, steps, message, interfaces })
    }
}

/// Reads the runtime token, if the container has one. The token is the last of the container's files.
fn read_token(
    plan: &Plan,
    prepared: &PreparedContainer,
    volume: Option<&Volume>,
) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
    let (Some(volume), Some(_)) = (volume, plan.token_file()) else { return Ok(None) };
    let stored = volume.current(&prepared.mounts, plan.files.len() - 1, plan.layout())?;
    let mut token = Zeroizing::new(vec![0; stored.len()]);
    stored.read_into(&mut token)?;
    Ok(Some(token))
}
