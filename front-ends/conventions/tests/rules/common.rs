//! Provides conventions without a network: servers are functions, and images are a table.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use executor_conventions::images::ImageSource;
use executor_conventions::registration::{Registration, Registrations};
use executor_conventions::secrets::SecretValues;
use executor_conventions::template;
use executor_conventions::transport::{Reply, Transport};
use executor_conventions::violation::Violations;
use executor_conventions::{Decorated, ImageConfig, Intent, decorate};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

pub(crate) const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Function that changes a template and returns the applied names.
pub(crate) type Server = Box<dyn Fn(&mut Value, &Value) -> Vec<String> + Send + Sync>;

/// Servers by convention name, and the recorded requests.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) servers: BTreeMap<String, Server>,
    /// Fixed responses by convention name, which replace the responses of the servers.
    pub(crate) replies: BTreeMap<String, Reply>,
    pub(crate) requests: Mutex<Vec<Value>>,
    pub(crate) described: Mutex<Vec<String>>,
    pub(crate) secrets: SecretValues,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) registrations: String,
}

impl World {
    /// Adds a convention with additional lines in its registration.
    pub(crate) fn convention(
        mut self,
        name: &str,
        more: &str,
        server: impl Fn(&mut Value, &Value) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.registrations += &format!("[[convention]]\nname = {name:?}\nurl = \"https://{name}.example/\"\n{more}\n");
        self.servers.insert(name.to_owned(), Box::new(server));
        self
    }

    pub(crate) async fn decorate(&self, template: &Value) -> Result<Decorated, Violations> {
        self.decorate_with(&serde_json::from_value(template.clone()).unwrap(), self).await
    }

    /// Decorates a template with images from another source.
    pub(crate) async fn decorate_with(
        &self,
        template: &PodTemplateSpec,
        images: &impl ImageSource,
    ) -> Result<Decorated, Violations> {
        let registrations = Registrations::parse(&self.registrations, Path::new("/"))?;
        let intent = Intent { template, labels: &self.labels, secrets: &self.secrets };
        decorate(&intent, &registrations, images, self).await
    }

    /// Decorates a template and returns it as a document.
    pub(crate) async fn document(&self, template: &Value) -> Value {
        template::document(&self.decorate(template).await.unwrap().template)
    }

    /// Decorates a template and returns the error.
    pub(crate) async fn refused(&self, template: &Value) -> String {
        self.decorate(template).await.unwrap_err().to_string()
    }

    pub(crate) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

impl Transport for World {
    async fn call(&self, registration: &Registration, request: Vec<u8>) -> Result<Reply, String> {
        let mut context: Value = serde_json::from_slice(&request).unwrap();
        self.requests.lock().unwrap().push(context.clone());
        if let Some(reply) = self.replies.get(&registration.name) {
            return Ok(reply.clone());
        }
        let mut template = context["spec"]["template"].clone();
        let applied = self.servers[&registration.name](&mut template, &context);
        context["status"] = json!({"template": template, "appliedConventions": applied});
        Ok(ok(&context))
    }
}

impl ImageSource for World {
    async fn describe(&self, image: &str) -> Result<Arc<ImageConfig>, String> {
        self.described.lock().unwrap().push(image.to_owned());
        if image.contains("missing") {
            return Err("it is not there".to_owned());
        }
        let long = match image.contains('@') {
            true => image.to_owned(),
            false => format!("r.example/{image}:latest@{DIGEST}"),
        };
        let config = json!({"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b"]}});
        Ok(Arc::new(ImageConfig { image: long, boms: Vec::new(), config }))
    }
}

/// Returns a valid response.
pub(crate) fn ok(context: &Value) -> Reply {
    let content_type = Some("application/json; charset=utf-8".to_owned());
    Reply { status: 200, content_type, body: context.to_string().into_bytes() }
}

/// Returns a template with one container.
pub(crate) fn app() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    })
}

/// Returns a server that adds a variable to the first container if the variable does not exist.
pub(crate) fn add_variable(name: &'static str, value: &'static str) -> impl Fn(&mut Value, &Value) -> Vec<String> {
    move |template, _| {
        let container = &mut template["spec"]["containers"][0];
        if !container["env"].is_array() {
            container["env"] = json!([]);
        }
        let env = container["env"].as_array_mut().unwrap();
        if env.iter().any(|variable| variable["name"] == name) {
            return Vec::new();
        }
        env.push(json!({"name": name, "value": value}));
        vec![format!("add-{name}")]
    }
}

/// Implements a server that changes nothing.
pub(crate) fn nothing(_: &mut Value, _: &Value) -> Vec<String> {
    Vec::new()
}
