//! Writes requests to convention servers and parses the responses. Both are `PodConventionContext` objects (rules 2, 3,
//! 4 and 11 of `docs/guides/conventions.md`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::template;
use crate::transport::Reply;
use crate::violation::{Violations, shown};

const API_VERSION: &str = "webhooks.conventions.carto.run/v1alpha1";
const KIND: &str = "PodConventionContext";

/// Metadata of an image in the template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageConfig {
    /// Image reference with digest, as in the template.
    pub image: String,
    /// Software bills of materials.
    pub boms: Vec<Bom>,
    /// Configuration of the image (image-spec, `config.md`).
    pub config: Value,
}

/// A software bill of materials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bom {
    /// Name: `cnb-app:` and the path in the layer.
    pub name: String,
    /// Content, in base64.
    pub raw: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    spec: RequestSpec<'a>,
    /// Empty status, as sent by Cartographer's controller. Servers may fill it in.
    status: EmptyStatus,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestSpec<'a> {
    template: &'a Value,
    image_config: &'a [ImageConfig],
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct EmptyStatus {
    template: EmptyTemplate,
    applied_conventions: Option<()>,
}

#[derive(Default, Serialize)]
struct EmptyTemplate {
    metadata: EmptyMetadata,
    spec: EmptySpec,
}

#[derive(Default, Serialize)]
struct EmptyMetadata {}

#[derive(Default, Serialize)]
struct EmptySpec {
    containers: Option<()>,
}

/// Writes the request for a convention.
pub(crate) fn request(convention: &str, template: &Value, images: &[ImageConfig]) -> Vec<u8> {
    let request = Request {
        api_version: API_VERSION,
        kind: KIND,
        metadata: Metadata { name: convention },
        spec: RequestSpec { template, image_config: images },
        status: EmptyStatus::default(),
    };
    serde_json::to_vec(&request).unwrap_or_default() // strings, lists and numbers always serialize
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    /// As in Kubernetes clients, a missing `apiVersion` or `kind` defaults to the expected value.
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<ResponseMetadata>,
    status: ResponseStatus,
}

#[derive(Deserialize)]
struct ResponseMetadata {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponseStatus {
    template: Value,
    applied_conventions: Option<Vec<String>>,
}

/// Response of a convention server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) template: Value,
    pub(crate) applied: Vec<String>,
    /// Fields of the response that were dropped, because this version of Kubernetes does not define such fields.
    pub(crate) unknown: Vec<String>,
}

/// Parses and validates a response.
pub(crate) fn answer(convention: &str, reply: &Reply) -> Result<Answer, Violations> {
    let wrong = |field: &str, message: String| Violations::one(Some(convention), field, 11, message);
    match reply.status {
        200 => {}
        300..=399 => {
            return Err(wrong("", format!("responded with status {}; redirects are not followed", reply.status)));
        }
        status => return Err(wrong("", format!("responded with status {status}; it must be 200"))),
    }
    let media_type = reply.content_type.as_deref().map(|text| text.split(';').next().unwrap_or_default().trim());
    if let Some(other) = media_type.filter(|media_type| !media_type.eq_ignore_ascii_case("application/json")) {
        return Err(wrong("", format!("responded with content type {}; it must be application/json", shown(other))));
    }
    // Report only the position: the parser's message could contain a value.
    let document: Value = serde_json::from_slice(&reply.body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        wrong("", format!("the response is not JSON, or is nested too deeply (line {line}, column {column})"))
    })?;
    let no_context = || wrong("", "the response is not a PodConventionContext with a status.template".to_owned());
    // Refuse lists, which serde would accept as objects.
    if !document.is_object() || !document["status"].is_object() {
        return Err(no_context());
    }
    let response = Response::deserialize(document).map_err(|_| no_context())?;
    let name = response.metadata.and_then(|metadata| metadata.name);
    for (field, is, must) in [
        ("apiVersion", &response.api_version, API_VERSION),
        ("kind", &response.kind, KIND),
        ("metadata.name", &name, convention),
    ] {
        if let Some(is) = is.as_deref().filter(|is| !is.is_empty() && *is != must) {
            return Err(wrong(field, format!("is {}; it must be {must}", shown(is))));
        }
    }
    let (template, unknown) =
        template::checked(&response.status.template).map_err(|why| wrong("status.template", why))?;
    Ok(Answer { template, applied: response.status.applied_conventions.unwrap_or_default(), unknown })
}
