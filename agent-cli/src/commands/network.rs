//! `network`: lists networks and shows their details.

use clap::{Args, Subcommand};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_document;
use executor_client::Error;
use executor_client::v1::NodeNetwork;
use executor_client::v1::network_check::Outcome;

use crate::batch;
use crate::view::{json, networks as view};

#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// List networks that `run --network` accepts
    ///
    /// The driver is bridge for a built-in network and cni for a network of CNI plugins. Warnings, for example about a
    /// CNI file that cannot be read, are written to standard error.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Show all details of networks, with their containers and warnings
    Inspect(NetworkNamesArg),
    /// Let the plugins of a CNI network check that its containers are still connected
    ///
    /// Lists each container as connected, broken (with the plugin's message) or skipped (with the reason). The exit
    /// status is 1 if a container is broken or was not checked for lack of time. Built-in networks have no plugins.
    Check(NetworkNameArg),
}

#[derive(Debug, Args)]
pub(crate) struct NetworkNameArg {
    /// Name of the network
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Print only names, one per line
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NetworkNamesArg {
    /// Names of the networks
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(super) async fn network(session: &Session, command: NetworkCommand) -> Result<u8, Failure> {
    match command {
        NetworkCommand::Ls(args) => ls(session, &args).await,
        NetworkCommand::Inspect(args) => inspect(session, &args.names).await,
        NetworkCommand::Check(args) => check(session, &args.name).await,
    }
}

async fn ls(session: &Session, args: &LsArgs) -> Result<u8, Failure> {
    let listed = session.client.networks(&[]).await.doing("network ls")?;
    for warning in &listed.warnings {
        session.output.note(format!("warning: {}", plain(warning)));
    }
    if args.quiet {
        session.output.text(listed.networks.iter().map(|network| plain(&network.name) + "\n").collect()).await;
        return Ok(0);
    }
    let documents: Vec<_> = listed.networks.iter().map(json::NodeNetwork::from).collect();
    session.print(&documents, || view::table(&listed.networks, session.style)).await;
    Ok(0)
}

async fn inspect(session: &Session, names: &[String]) -> Result<u8, Failure> {
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        all.push((name, find(session, name).await));
    }
    if !session.json {
        let found = all.iter().filter_map(|(_, found)| found.as_ref().ok());
        let texts: Vec<String> = found.map(|network| view::inspect(network, session.style)).collect();
        session.output.text(texts.join("\n")).await;
    } else if let [(_, found)] = &all[..] {
        if let Ok(network) = found {
            session.output.text(to_document(&json::NodeNetwork::from(network))).await;
        }
    } else {
        let documents: Vec<_> = all.iter().map(|(name, found)| json::TriedNetwork::new(name, found)).collect();
        session.output.text(to_document(&documents)).await;
    }
    batch::successes(session, all.into_iter().map(|(_, found)| found).collect()).map(|_| 0)
}

async fn check(session: &Session, name: &str) -> Result<u8, Failure> {
    let doing = format!("network check {}", plain(name));
    let checked = session.client.check_network(name).await.doing(&doing)?;
    session.print(&json::NetworkChecks::from(&checked), || view::checks(&checked, session.style)).await;
    let is_broken = checked.checks.iter().any(|check| check.outcome() == Outcome::Broken);
    Ok(u8::from(is_broken || checked.unchecked > 0))
}

/// Returns the network of this name.
async fn find(session: &Session, name: &String) -> Result<NodeNetwork, Failure> {
    let doing = format!("network inspect {}", plain(name));
    let listed = session.client.networks(std::slice::from_ref(name)).await.doing(&doing)?;
    listed.networks.into_iter().next().ok_or(Error::Incomplete("the network")).doing(&doing)
}
