//! `image`: fetch, take in, list, show, remove.

pub(super) mod send;

use std::io::IsTerminal as _;

use executor_proto::v1::images_client::ImagesClient;
use executor_proto::v1::pull_image_response::News;
use executor_proto::v1::{
    self, ImportHeader, InspectImageRequest, ListImagesRequest, PruneImagesRequest, PullImageRequest,
    RemoveImageRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Session;
use crate::cli::images::{
    FormArg, ImageCommand, ImageNameArg, ImageRmArgs, ImportArgs, LsArgs, PruneArgs, PullArgs, from_here, wipe,
};
use crate::failure::Failure;
use crate::view::images::{self as view, Bars};

/// What is asked of executord, secrets read.
pub(crate) enum Job {
    /// Fetch, quietly or not.
    Pull(Box<PullImageRequest>, bool),
    Other(ImageCommand),
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Self::Pull(request, _) = self
            && let Some(credentials) = &mut request.credentials
        {
            wipe(credentials);
        }
    }
}

impl Job {
    /// Reads what a command needs besides its flags.
    pub(super) fn build(command: ImageCommand) -> Result<Self, Failure> {
        let PullArgs { registry, quiet, platform, reference } = match command {
            ImageCommand::Pull(args) => args,
            other => return Ok(Self::Other(other)),
        };
        let reference = from_here(reference);
        let credentials =
            registry.credentials(&reference, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))?;
        let platform = platform.unwrap_or_default();
        Ok(Self::Pull(Box::new(PullImageRequest { reference, credentials, platform }), quiet))
    }
}

fn client(session: &Session) -> ImagesClient<Channel> {
    ImagesClient::new(session.client.channel()).max_decoding_message_size(usize::MAX)
}

pub(super) async fn image(session: &Session, mut job: Job) -> Result<u8, Failure> {
    match &mut job {
        Job::Pull(request, quiet) => pull(session, request, *quiet).await,
        Job::Other(command) => match command {
            ImageCommand::Import(args) => import(session, args).await,
            ImageCommand::Ls(args) => ls(session, args).await,
            ImageCommand::Inspect(args) => inspect(session, args).await,
            ImageCommand::Rm(args) => rm(session, args).await,
            ImageCommand::Prune(args) => prune(session, args).await,
            ImageCommand::Pull(_) => Ok(0), // read before
        },
    }
}

/// The image of an answer.
fn expected(image: Option<v1::Image>, doing: &str) -> Result<v1::Image, Failure> {
    image.ok_or_else(|| Failure::Refused {
        code: Code::Internal,
        message: format!("{doing}: executord's answer lacks the image"),
    })
}

async fn pull(session: &Session, request: &PullImageRequest, quiet: bool) -> Result<u8, Failure> {
    let image = fetch_or_send(session, request, !quiet && !session.json).await?;
    warn(session, &image);
    session.print(&view::Document::from(&image), || format!("{}\n", image.digest)).await;
    Ok(0)
}

/// Fetches an image; one of this machine's disk that executord cannot read, and the caller can, is sent.
pub(super) async fn fetch_or_send(
    session: &Session,
    request: &PullImageRequest,
    shown: bool,
) -> Result<v1::Image, Failure> {
    let failure = match fetch(session, request, shown).await {
        Err(failure) => failure,
        fetched => return fetched,
    };
    match send::instead_of(&failure, &request.reference) {
        Some(image) => send::send(session, image, &request.reference).await,
        None => Err(failure),
    }
}

/// Sends the image of a run before it, where it lies on this machine's disk and executord cannot read it; tells whether it did.
pub(super) async fn send_first(session: &Session, reference: &str) -> Result<bool, Failure> {
    let request = PullImageRequest { reference: reference.to_owned(), ..PullImageRequest::default() };
    let Err(failure) = fetch(session, &request, false).await else { return Ok(false) };
    match send::instead_of(&failure, reference) {
        Some(image) => send::send(session, image, reference).await.map(|_| true),
        // Whatever else it is, the run itself meets it, too.
        None => Ok(false),
    }
}

async fn fetch(session: &Session, request: &PullImageRequest, shown: bool) -> Result<v1::Image, Failure> {
    let doing = format!("pull {}", crate::text::plain(&request.reference));
    let failed = |status: &Status| session.client.failure(&doing, status);
    let answer = client(session).pull(request.clone()).await.map_err(|status| failed(&status))?;
    let mut news = answer.into_inner();
    let mut bars = shown.then(|| Bars::new(std::io::stderr().is_terminal()));
    while let Some(message) = news.message().await.map_err(|status| failed(&status))? {
        match message.news {
            Some(News::Progress(progress)) => {
                for line in bars.as_mut().map(|bars| bars.show(&progress)).unwrap_or_default() {
                    session.output.note(line);
                }
            }
            Some(News::Image(image)) => {
                return Ok(image);
            }
            None => {} // of a newer executord
        }
    }
    expected(None, &doing)
}

/// Fetches the image of a run before it, where it is not there or wanted anew: for a person, who sees how far it is.
pub(super) async fn fetch_first(session: &Session, request: PullImageRequest, always: bool) -> Result<(), Failure> {
    if session.json || !std::io::stderr().is_terminal() {
        return Ok(()); // executord does it with the run
    }
    let mut job = Job::Pull(Box::new(request), false); // which wipes itself
    let Job::Pull(request, _) = &mut job else { return Ok(()) };
    let known = InspectImageRequest { image: request.reference.clone() };
    if !always && client(session).inspect(known).await.is_ok() {
        return Ok(());
    }
    fetch(session, request, true).await.map(drop)
}

async fn import(session: &Session, args: &ImportArgs) -> Result<u8, Failure> {
    let doing = format!("import {}", args.file.display());
    let form = match args.form {
        FormArg::DockerArchive => v1::import_header::Form::DockerArchive,
        FormArg::OciArchive => v1::import_header::Form::OciArchive,
    };
    let mut reader: Box<dyn std::io::Read + Send> = match args.file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => {
            Box::new(std::fs::File::open(&args.file).map_err(|error| Failure::Usage(format!("{doing}: {error}")))?)
        }
    };
    let reference = args.name.clone().unwrap_or_default();
    let header = ImportHeader { form: form.into(), reference, image: String::new() };
    let image = send::upload(session, &doing, header, move |to| std::io::copy(&mut reader, to).map(drop)).await?;
    warn(session, &image);
    session.print(&view::Document::from(&image), || format!("{}\n", image.digest)).await;
    Ok(0)
}

/// Tells what was left out of an image; a document has it itself.
pub(super) fn warn(session: &Session, image: &v1::Image) {
    if !session.json {
        for warning in &image.warnings {
            session.output.note(format!("warning: {}", crate::text::plain(warning)));
        }
    }
}

async fn ls(session: &Session, args: &LsArgs) -> Result<u8, Failure> {
    let answer = client(session).list(ListImagesRequest {}).await;
    let images = answer.map_err(|status| session.client.failure("image ls", &status))?.into_inner().images;
    if args.quiet {
        session.output.text(images.iter().map(|image| format!("{}\n", image.digest)).collect()).await;
        return Ok(0);
    }
    let documents: Vec<_> = images.iter().map(view::Document::from).collect();
    session.print(&documents, || view::table(&images, std::time::SystemTime::now(), session.style)).await;
    Ok(0)
}

async fn inspect(session: &Session, args: &ImageNameArg) -> Result<u8, Failure> {
    let doing = format!("image inspect {}", crate::text::plain(&args.image));
    let answer = client(session).inspect(InspectImageRequest { image: args.image.clone() }).await;
    let answer = answer.map_err(|status| session.client.failure(&doing, &status))?.into_inner();
    let (image, config) = (expected(answer.image, &doing)?, answer.config.unwrap_or_default());
    let document = view::Inspected::new(&image, &config, &answer.config_json);
    session.print(&document, || view::inspected(&image, &config, session.style)).await;
    Ok(0)
}

async fn rm(session: &Session, args: &ImageRmArgs) -> Result<u8, Failure> {
    let mut done = Vec::with_capacity(args.images.len());
    let mut failures = Vec::new();
    for image in &args.images {
        let shown = crate::text::plain(image);
        let error = match client(session).remove(RemoveImageRequest { image: image.clone() }).await {
            Ok(answer) => {
                let removed = answer.get_ref().removed;
                if !session.json {
                    let what = if removed { "removed" } else { "name removed" };
                    session.output.text(format!("{shown}: {what}\n")).await;
                }
                done.push(view::Removed { image: image.clone(), removed: Some(removed), error: None });
                continue;
            }
            Err(status) => session.client.failure(&format!("remove {shown}"), &status),
        };
        done.push(view::Removed { image: image.clone(), removed: None, error: Some(error.describe()) });
        failures.push(error);
    }
    session.tried(&done, failures).await
}

async fn prune(session: &Session, args: &PruneArgs) -> Result<u8, Failure> {
    let unused_for = args.unused_for.map(prost_types::Duration::try_from).transpose();
    let unused_for = unused_for.map_err(|_| Failure::Usage("--unused-for is too long".into()))?;
    let request = PruneImagesRequest { unused_for, bytes_budget: args.budget, dry_run: args.dry_run };
    let answer = client(session).prune(request).await;
    let pruned = answer.map_err(|status| session.client.failure("image prune", &status))?.into_inner();
    session.print(&view::Pruned::from(&pruned), || view::pruned(&pruned, args.dry_run)).await;
    Ok(0)
}
