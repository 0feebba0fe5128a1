//! `egress set|show ID`: sets and shows the connections that a container on a network may open.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::v1::{Container, EgressRule, UpdateEgressRequest};

use crate::egress;
use crate::ids;
use crate::view::json;

#[derive(Debug, Args)]
pub(crate) struct EgressArgs {
    #[command(subcommand)]
    pub(crate) command: EgressCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EgressCommand {
    /// Replace all rules of a running container atomically
    ///
    /// Each new connection is checked against either all old or all new rules. Established connections are kept.
    Set(SetArgs),
    /// Show the rules of a container, one per line
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Wanted {
    /// Allow only these destinations, as with `run`
    #[arg(long, value_name = "FILE")]
    pub(crate) egress_rules: Option<PathBuf>,
    /// Allow every destination
    #[arg(long)]
    pub(crate) open: bool,
    /// Allow only the container's own network
    #[arg(long)]
    pub(crate) closed: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
}

/// A command whose rules file was read.
pub(crate) enum Prepared {
    Set { id: String, egress: bool, rules: Vec<EgressRule> },
    Show { id: String },
}

impl EgressCommand {
    /// Reads the file with the rules.
    pub(super) fn prepare(self) -> Result<Prepared, Failure> {
        match self {
            Self::Show(ShowArgs { id }) => Ok(Prepared::Show { id }),
            Self::Set(SetArgs { id, wanted }) => {
                let rules = wanted.egress_rules.as_deref().map(egress::read).transpose()?;
                if let (Some(path), Some([])) = (&wanted.egress_rules, rules.as_deref()) {
                    let why = "the file has no rules; use --closed or --open instead";
                    return Err(Failure::Usage(format!("--egress-rules {}: {why}", path.display())));
                }
                Ok(Prepared::Set { id, egress: !wanted.closed, rules: rules.unwrap_or_default() })
            }
        }
    }
}

pub(super) async fn egress(session: &Session, prepared: Prepared) -> Result<u8, Failure> {
    let client = &session.client;
    let container = match prepared {
        Prepared::Show { id } => {
            let get = |id: String| async move { client.get(&id).await.doing(&format!("egress show {id}")) };
            ids::with(client, id, get).await?
        }
        Prepared::Set { id, egress, rules } => {
            let set = |id: String| {
                let egress_rules = rules.clone();
                async move {
                    let doing = format!("egress set {id}");
                    client.update_egress(UpdateEgressRequest { id, egress, egress_rules }).await.doing(&doing)
                }
            };
            ids::with(client, id, set).await?
        }
    };
    session.print(&json::Egress::from(&container), || lines(&container)).await;
    Ok(0)
}

fn lines(container: &Container) -> String {
    let spec = container.spec.clone().unwrap_or_default();
    match &spec.egress_rules[..] {
        [] if spec.egress => "open\n".into(),
        [] => "closed\n".into(),
        rules => rules.iter().map(|rule| plain(&egress::format_rule(rule)) + "\n").collect(),
    }
}
