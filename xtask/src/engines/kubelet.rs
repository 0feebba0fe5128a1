//! `cargo xtask kubelet-test`: a stock kubelet with executor-cri as its runtime, without an API server.
//!
//! The kubelet runs static pods, and each case checks the results through the kubelet's HTTP endpoints. All processes
//! run in their own namespaces ([`super::room`]) with a small disk. One case fills this disk.

mod cases;
mod pods;
mod standalone;
mod view;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::ensure;

use self::cases::{ALONE, TOGETHER};
use super::Kind;
use super::cases::CaseOptions;
use super::node::Node;
use super::site::Site;
use super::supplies::{self, Supplies};
use crate::needs;
use crate::workspace::{Workspace, is_root, step};

/// Builds the kubelet and runs the cases. Fails if a case fails.
pub(crate) fn run_command(workspace: &Workspace, options: &CaseOptions) -> anyhow::Result<ExitCode> {
    let Some(selection) = options.select(TOGETHER, ALONE)? else { return Ok(ExitCode::SUCCESS) };
    ensure!(is_root(), "the kubelet requires root: run the command as root");
    needs::require(&needs::ENGINES)?;
    needs::require(&needs::KUBELET)?;
    let supplies = Supplies::prepare(workspace)?;
    let kubelet = supplies::kubernetes(workspace, "kubelet")?;
    let programs = options.programs(workspace)?;
    step("Starting executord, executor-cri and the kubelet");
    let site = Site::first("kubelet")?;
    let arguments = standalone::write_configuration(&site)?;
    let start = || {
        let registry = supplies.serve(&site.room, &site.directory, &[])?;
        let node = Node::start(workspace, &supplies, &site, programs, registry, Kind::Executor)?;
        node.set_kubelet(kubelet, arguments)?;
        node.start_alone()?;
        Ok(node)
    };
    options.run_and_report(start(), selection, &[Arc::clone(&site)])
}
