//! Implements the gRPC service `Images`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use executor_core::image::{ImageDefaults, ImageReference};
use executor_core::time::Timestamp;
use executor_core::validate::{Violation, ViolationReason};
use executor_images::{Credentials, ImageError, ImageRecord, ImportFormat, Progress, PruneRules, Stage};
use executor_proto::v1;
use executor_proto::v1::images_server::{Images, ImagesServer};
use executor_proto::v1::import_image_request::Part;
use executor_proto::v1::pull_image_response::News;
use executor_transport::wire::conversation::{Answers, Conversation, Outlet, Requests};
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use crate::api_error::{ApiError, Kind};
use crate::images::{self, from_image_error, from_image_error_in};
use crate::node::Node;
use crate::requests::draft;
use crate::server::OTHER_MESSAGE_MAX;

/// Minimum interval between two progress messages of a pull. Without a minimum, each chunk would cause a message.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for the next chunk of an archive.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);

/// Implements the gRPC service `Images`.
#[derive(Clone, Debug)]
pub(super) struct ImageService {
    node: Arc<Node>,
}

pub(super) fn service(node: &Arc<Node>) -> ImagesServer<ImageService> {
    ImagesServer::new(ImageService { node: Arc::clone(node) })
        .max_decoding_message_size(OTHER_MESSAGE_MAX)
        .max_encoding_message_size(usize::MAX)
}

#[tonic::async_trait]
impl Images for ImageService {
    type PullStream = Answers<v1::PullImageResponse>;

    async fn pull(&self, request: Request<v1::PullImageRequest>) -> Result<Response<Self::PullStream>, Status> {
        let conversation = Conversation::from_extensions(request.extensions())?;
        let v1::PullImageRequest { reference, credentials, platform } = request.into_inner();
        let reference = parsed(&reference, "reference")?;
        draft::platform("platform", &platform).map_err(|violation| ApiError::invalid(vec![violation]))?;
        let credentials = images::credentials(credentials, "credentials")?;
        // Fail before the image is fetched if no launcher is connected.
        self.node.launcher.session()?;
        let (sender, answers) = conversation.answers();
        tokio::spawn(run_transfer(Arc::clone(&self.node), reference, credentials, sender));
        Ok(Response::new(answers))
    }

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportImageRequest>>,
    ) -> Result<Response<v1::ImportImageResponse>, Status> {
        let mut parts = Conversation::from_extensions(request.extensions())?.requests(request.into_inner());
        let Some(Part::Header(header)) = next(&mut parts).await?.and_then(|message| message.part) else {
            return Err(ApiError::invalid_field(
                "header",
                ViolationReason::Required.because("must be the first message"),
            )
            .into());
        };
        // Check the policy before the client sends the archive.
        self.node
            .config
            .policy
            .images
            .may_import()
            .map_err(|refused| Status::from(from_image_error(&refused.into())))?;
        let form = match header.form() {
            v1::import_header::Form::OciArchive => ImportFormat::OciArchive,
            v1::import_header::Form::DockerArchive => ImportFormat::DockerArchive,
            v1::import_header::Form::Unspecified => ImportFormat::Archive,
        };
        let name = match header.reference.as_str() {
            "" => None,
            name => Some(parsed(name, "header.reference")?),
        };
        let inner = (!header.image.is_empty()).then_some(header.image);
        self.node.launcher.session()?;
        let reported = |error: ImageError| {
            let field = if matches!(error, ImageError::OtherForm { .. }) { "header.form" } else { "data" };
            Status::from(from_image_error_in(&error, field))
        };
        let mut upload = self.node.images.upload().await.map_err(reported)?;
        while let Some(message) = next(&mut parts).await? {
            match message.part {
                Some(Part::Data(data)) => upload = upload.write(data).await.map_err(reported)?,
                _ => return Err(ApiError::invalid_field("data", "only data may follow the header").into()),
            }
        }
        // Use a task, so that a client that disconnects does not leave a partial import.
        let images = Arc::clone(&self.node.images);
        let task = tokio::spawn(async move { images.import(upload, form, inner, name.as_ref()).await });
        let record = task.await.map_err(ApiError::from)?.map_err(reported)?;
        images::keep_to_budget(&self.node);
        Ok(Response::new(v1::ImportImageResponse { image: Some(image(&record)) }))
    }

    async fn list(&self, _: Request<v1::ListImagesRequest>) -> Result<Response<v1::ListImagesResponse>, Status> {
        let images = self.node.images.list().iter().map(image).collect();
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn inspect(
        &self,
        request: Request<v1::InspectImageRequest>,
    ) -> Result<Response<v1::InspectImageResponse>, Status> {
        let reported = |error: ImageError| Status::from(from_image_error_in(&error, "image"));
        let record = self.node.images.find(images::image_name(&request.get_ref().image)?).map_err(reported)?;
        let json = self.node.images.configuration(&record).await.map_err(reported)?;
        let broken = |why: String| {
            ApiError::new(Kind::Corrupt, format!("malformed configuration of image {}: {why}", record.digest))
        };
        let parsed = executor_core::image::read_configuration(&json).map_err(|error| broken(error.to_string()))?;
        let defaults = ImageDefaults::from_configuration(&parsed).map_err(|error| broken(error.to_string()))?;
        let config_json = String::from_utf8(json).map_err(|error| broken(error.to_string()))?;
        let all = self.node.images.list();
        let is_other =
            |other: &&ImageRecord| other.config_digest == record.config_digest && other.digest != record.digest;
        let same_configuration = all.iter().filter(is_other).map(image).collect();
        let (image, config) = (Some(image(&record)), Some(config(defaults)));
        Ok(Response::new(v1::InspectImageResponse { image, config, config_json, same_configuration }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let name = images::image_name(&request.get_ref().image)?.to_owned();
        let all_names = request.get_ref().all_names;
        let node = Arc::clone(&self.node);
        let task = tokio::spawn(async move {
            images::wait_for_release(&node).await;
            let used_by = |digest: &_| images::user_of(&node, digest);
            node.images.remove(&name, all_names, used_by).await
        });
        let done = task.await.map_err(ApiError::from)?;
        let (record, removed) = done.map_err(|error| from_image_error_in(&error, "image"))?;
        tracing::info!(image = %record.digest, removed, "image removed");
        Ok(Response::new(v1::RemoveImageResponse { image: Some(image(&record)), removed }))
    }

    async fn store_usage(
        &self,
        _: Request<v1::ImageStoreUsageRequest>,
    ) -> Result<Response<v1::ImageStoreUsageResponse>, Status> {
        Ok(Response::new(images::store_usage(&self.node).await?))
    }

    async fn prune(
        &self,
        request: Request<v1::PruneImagesRequest>,
    ) -> Result<Response<v1::PruneImagesResponse>, Status> {
        let v1::PruneImagesRequest { unused_for, bytes_budget, dry_run } = request.into_inner();
        let unused_for = match unused_for {
            None => None,
            Some(duration) => {
                let why = || ViolationReason::OutOfRange.because("must not be negative");
                Some(duration.try_into().map_err(|_| ApiError::invalid_field("unused_for", why()))?)
            }
        };
        let node = Arc::clone(&self.node);
        let task = tokio::spawn(async move {
            images::wait_for_release(&node).await;
            let used_by = |digest: &_| images::user_of(&node, digest);
            node.images.prune(PruneRules { unused_for, bytes_budget, dry_run }, used_by).await
        });
        let done = task.await.map_err(ApiError::from)?;
        let pruned = done.map_err(|error| from_image_error(&error))?;
        Ok(Response::new(v1::PruneImagesResponse {
            images: pruned.images.iter().map(image).collect(),
            layers: pruned.layers,
            partial_bytes: pruned.partial_bytes,
            in_use: pruned.in_use,
        }))
    }
}

/// Parses a client's image reference, which may be a short name.
fn parsed(text: &str, field: &str) -> Result<ImageReference, ApiError> {
    ImageReference::parse_short(text).map_err(|bad| {
        let fault = |fault: &executor_core::image::Fault| Violation::new(field, fault.reported());
        ApiError::invalid(bad.0.iter().map(fault).collect())
    })
}

/// Waits for the client's next message, within the time limit.
async fn next(parts: &mut Requests<v1::ImportImageRequest>) -> Result<Option<v1::ImportImageRequest>, Status> {
    let late =
        |_| ApiError::new(Kind::Unavailable, format!("no archive data arrived within {} s", CHUNK_TIMEOUT.as_secs()));
    tokio::time::timeout(CHUNK_TIMEOUT, parts.next()).await.map_err(late)?
}

/// Runs a pull, and sends its progress and its result to the client.
async fn run_transfer(
    node: Arc<Node>,
    reference: ImageReference,
    credentials: Option<Credentials>,
    sender: Outlet<v1::PullImageResponse>,
) {
    let (seen, reported) = tokio::select! {
        reported = follow(&node, &reference, credentials, &sender) => reported,
        () = node.until_stopping() => (None, Err(ApiError::stopping())),
        () = sender.closed() => return,
    };
    let last = match reported {
        Ok(record) => {
            images::keep_to_budget(&node);
            Ok(v1::PullImageResponse { news: Some(News::Image(image(&record))) })
        }
        Err(problem) => Err(problem.into()),
    };
    // Report the last progress, too.
    if let Some(seen) = seen {
        let _ = sender.send(Ok(news(&seen))).await;
    }
    let _ = sender.send(last).await;
}

/// Follows a pull to completion. Progress is sent only if the client is ready to read, because a slow client must not
/// keep the credentials in memory. Returns the unsent progress and the result.
async fn follow(
    node: &Arc<Node>,
    reference: &ImageReference,
    credentials: Option<Credentials>,
    sender: &Outlet<v1::PullImageResponse>,
) -> (Option<Progress>, Result<ImageRecord, ApiError>) {
    loop {
        let mut watcher = node.images.pull(reference, credentials.clone());
        let mut before = None;
        while let Some(state) = watcher.next().await {
            let is_new = !state.progress.layers.is_empty() && before.as_ref() != Some(&state.progress);
            if let Some(outcome) = state.outcome {
                return (
                    is_new.then_some(state.progress),
                    outcome.map_err(|error| from_image_error_in(&error, "reference")),
                );
            }
            if is_new && sender.try_send(&news(&state.progress)) {
                before = Some(state.progress);
                tokio::time::sleep(PROGRESS_INTERVAL).await;
            }
        }
        // The joined pull was just cancelled: start another pull.
    }
}

fn news(seen: &Progress) -> v1::PullImageResponse {
    v1::PullImageResponse { news: Some(News::Progress(progress(seen))) }
}

fn progress(progress: &Progress) -> v1::PullProgress {
    use v1::pull_progress::Stage as Reported;
    let layers = progress.layers.iter().map(|layer| v1::pull_progress::Layer {
        digest: layer.digest.to_string(),
        size: layer.size,
        done: layer.done,
        stage: match layer.stage {
            Stage::Waiting => Reported::Waiting,
            Stage::Fetching => Reported::Fetching,
            Stage::Fetched => Reported::Fetched,
            Stage::Unpacking => Reported::Unpacking,
            Stage::Done => Reported::Done,
            Stage::Present => Reported::Present,
        }
        .into(),
    });
    v1::PullProgress {
        digest: progress.digest.as_ref().map(ToString::to_string).unwrap_or_default(),
        layers: layers.collect(),
    }
}

fn image(record: &ImageRecord) -> v1::Image {
    let layers = record.layers.iter().map(|layer| v1::ImageLayer {
        diff_id: layer.diff_id.to_string(),
        digest: layer.digest.to_string(),
        size: layer.size,
        media_type: layer.media_type.clone(),
    });
    v1::Image {
        digest: record.digest.to_string(),
        index_digest: record.index_digest.as_ref().map(ToString::to_string).unwrap_or_default(),
        config_digest: record.config_digest.to_string(),
        references: record.references.keys().cloned().collect(),
        platform: record.platform.clone(),
        size: record.size,
        layers: layers.collect(),
        pulled_at: Some(convert::timestamp(Timestamp(record.pulled_at))),
        last_used_at: Some(convert::timestamp(Timestamp(record.last_used_at))),
        warnings: record.warnings.clone(),
    }
}

fn config(defaults: ImageDefaults) -> v1::ImageConfig {
    v1::ImageConfig {
        entrypoint: defaults.entrypoint,
        cmd: defaults.cmd,
        env: defaults.env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
        working_dir: defaults.working_dir,
        user: defaults.user,
        stop_signal: defaults.stop_signal.map_or(0, i32::unsigned_abs),
        labels: defaults.labels.into_iter().collect::<HashMap<_, _>>(),
        volumes: defaults.volumes,
    }
}
