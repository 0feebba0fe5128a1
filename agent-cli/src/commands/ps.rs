//! `ps`: the containers, all pages of them.

use std::collections::HashMap;
use std::time::SystemTime;

use clap::{Args, ValueEnum};
use executor_proto::v1::{ListRequest, State};

use crate::failure::Failure;
use crate::session::Session;
use crate::text::plain;
use crate::units;
use crate::view::format::Template;
use crate::view::{human, json};

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Show completed containers too
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Only in this state; may be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) state: Vec<StateArg>,
    /// Only with this label; with all of them when repeated
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Print ids only, one a line
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print a line for each as this template says: '{{.ID}} {{.Ports}}'; `table ...` with a heading, `json`
    ///
    /// Fields: .ID, .Names (the same), .Image (its root file system), .Command, .CreatedAt, .RunningFor, .State, .Status,
    /// .Exit, .Ports, .Addresses, .Networks, .Labels, .Label \"NAME\"; {{json .FIELD}} writes one as JSON. \\t and \\n are a
    /// tabulator and a new line.
    #[arg(long, value_name = "TEMPLATE", value_parser = Template::parse, conflicts_with_all = ["json", "quiet"])]
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

/// As many as a page may have.
const PAGE: u32 = 1000;

pub(super) async fn ps(session: &Session, args: PsArgs) -> Result<u8, Failure> {
    let states: Vec<i32> = wanted(&args).into_iter().map(i32::from).collect();
    let labels: HashMap<String, String> = args.labels.iter().cloned().collect();
    let mut containers = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRequest {
            page_size: PAGE,
            page_token,
            states: states.clone(),
            labels: labels.clone(),
            ..ListRequest::default()
        };
        let answer = session.client.rpc().list(request).await;
        let page = answer.map_err(|status| session.client.failure("ps", &status))?.into_inner();
        containers.extend(page.containers);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if args.quiet {
        session.output.text(containers.iter().map(|container| plain(&container.id) + "\n").collect()).await;
        return Ok(0);
    }
    if let Some(template) = &args.format {
        session.output.text(template.render(&containers, SystemTime::now(), session.style)).await;
        return Ok(0);
    }
    let document: Vec<_> = containers.iter().map(json::Container::from).collect();
    session.print(&document, || human::containers(&containers, SystemTime::now(), session.style)).await;
    Ok(0)
}

/// Everything but completed containers, unless told otherwise; none listed means all to executord.
fn wanted(args: &PsArgs) -> Vec<State> {
    if !args.state.is_empty() {
        return args.state.iter().map(|state| state_of(*state)).collect();
    }
    if args.all {
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
