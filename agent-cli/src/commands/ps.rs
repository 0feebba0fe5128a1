//! `ps`: lists containers.

use std::time::SystemTime;

use clap::{Args, ValueEnum};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::{terminal, units};
use executor_client::ListFilter;
use executor_client::v1::{Container, State};

use crate::filter::{self, ContainerFilter};
use crate::view::format::Template;
use crate::view::{human, json};

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Include completed containers
    #[arg(long, short)]
    pub(crate) all: bool,
    /// List only containers in this state; can be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) state: Vec<StateArg>,
    /// List only containers with this label; if repeated, with all of the labels
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    pub(crate) labels: Vec<(String, String)>,
    /// List only members of this pod
    #[arg(long, value_name = "POD")]
    pub(crate) pod: Option<String>,
    /// List only matching containers: status=exited, name=PART, label=NAME; can be repeated
    ///
    /// Keys: ancestor (image), exited (status), health, id, label, name, network, pod, status, until (completed
    /// before). Several values of a key are alternatives; labels, and different keys, must all match.
    #[arg(long = "filter", short, value_name = "KEY=VALUE", value_parser = ContainerFilter::parse)]
    pub(crate) filters: Vec<ContainerFilter>,
    /// Print only ids, one per line
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print one line per container with this template: '{{.ID}} {{.Ports}}'; `table ...` with a heading, `json`
    ///
    /// Fields: .ID, .Names (the same), .Image (its root file system), .Command, .CreatedAt, .RunningFor, .State,
    /// .Status, .Exit, .Ports, .Addresses, .Networks, .Pod, .Labels, .User, .Label "NAME", and each key of --json,
    /// such as .spec.limits.memory_bytes; {{json .FIELD}} prints a field as JSON. \t and \n are a tab and a newline.
    #[arg(long, value_name = "TEMPLATE", value_parser = Template::parse::<Container>, conflicts_with_all = ["json", "quiet"])]
    pub(crate) format: Option<Template>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    Reserved,
    Initializing,
    Created,
    Running,
    Stopping,
    Wiping,
    Completed,
}

pub(super) async fn ps(session: &Session, args: PsArgs) -> Result<u8, Failure> {
    let labels = args.labels.iter().cloned().collect();
    let filter = ListFilter {
        states: wanted(&args),
        labels,
        pod: args.pod.clone().unwrap_or_default(),
        ..ListFilter::default()
    };
    let mut containers = session.client.list(&filter).await.doing("ps")?;
    containers.retain(|container| filter::passes(&args.filters, container));
    if args.quiet {
        session.output.text(containers.iter().map(|container| plain(&container.id) + "\n").collect()).await;
        return Ok(0);
    }
    if let Some(template) = &args.format {
        session.output.text(template.render(&containers, SystemTime::now(), session.style)?).await;
        return Ok(0);
    }
    let document: Vec<_> = containers.iter().map(json::Container::from).collect();
    session
        .print(&document, || human::containers(&containers, SystemTime::now(), session.style, terminal::columns()))
        .await;
    Ok(0)
}

/// Returns the states to list: by default all states except completed. executord lists all states if the list is empty.
fn wanted(args: &PsArgs) -> Vec<State> {
    if !args.state.is_empty() {
        return args.state.iter().map(|state| state_of(*state)).collect();
    }
    if args.all || args.filters.iter().any(ContainerFilter::selects_completed) {
        return Vec::new();
    }
    use StateArg as S;
    [S::Reserved, S::Initializing, S::Created, S::Running, S::Stopping, S::Wiping].map(state_of).into()
}

fn state_of(state: StateArg) -> State {
    match state {
        StateArg::Reserved => State::Reserved,
        StateArg::Initializing => State::Initializing,
        StateArg::Created => State::Created,
        StateArg::Running => State::Running,
        StateArg::Stopping => State::Stopping,
        StateArg::Wiping => State::Wiping,
        StateArg::Completed => State::Completed,
    }
}
