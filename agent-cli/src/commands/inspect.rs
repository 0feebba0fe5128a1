//! `inspect ID...`: shows all details of containers, except secrets.

use std::time::SystemTime;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::Container;

use crate::batch;
use crate::view::format::Template;
use crate::view::inspect;

#[derive(Clone, Debug, Args)]
pub(crate) struct InspectArgs {
    /// Print one line per container with this template: '{{.State}} {{json .spec.labels}}'
    ///
    /// The fields are all fields of `ps --format`, and each key of --json, such as .spec.limits.memory_bytes.
    #[arg(long, short, value_name = "TEMPLATE", value_parser = Template::parse::<Container>, conflicts_with = "json")]
    pub(crate) format: Option<Template>,
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

pub(super) async fn inspect(session: &Session, args: InspectArgs) -> Result<u8, Failure> {
    let got =
        batch::each(
            session,
            args.ids,
            |client, id| async move { client.get(&id).await.doing(&format!("inspect {id}")) },
        );
    let got = got.await;
    let found: Vec<Container> = got.iter().filter_map(|(_, got)| got.as_ref().ok().cloned()).collect();
    let (now, style) = (SystemTime::now(), session.style);
    if let Some(template) = &args.format {
        session.output.text(template.render(&found, now, style)?).await;
    } else if !session.json {
        let texts = found.iter().map(|container| inspect::container(container, now, style));
        session.output.text(texts.collect::<Vec<_>>().join("\n")).await;
    }
    batch::report(session, got).await.map(|_| 0)
}
