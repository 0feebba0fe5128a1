//! Implements the protocol of command drivers, with which cnab-go and Porter delegate an action to another program.
//!
//! `cnab-executor --handles` prints the supported types of images. Without arguments it reads one operation from
//! standard input: the image, its variables and files, and the outputs to write to `CNAB_OUTPUT_DIR`. The operation
//! does not mark secrets. All variables and files are treated as secret, except the runtime's own variables and files.
//! If the operation contains the bundle, the values of parameters that are not `writeOnly` are also public.
//!
//! The driver is agent-cli-cnab under another name, so that both connect to executord in the same manner.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use executor_cnab::invocation::Invocation;
use executor_cnab::paths::{BUNDLE_PATH, OUTPUTS, RELOCATION_PATH, RUN};
use executor_cnab::secret::Secret;
use executor_cnab::write_only;
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::error::CnabError;

/// Program name under which agent-cli-cnab is a driver.
const NAME: &str = "cnab-executor";
/// Output of `--handles`.
pub(crate) const HANDLES: &str = "docker,oci\n";
/// Maximum size of an operation, in bytes.
const OPERATION_MAX: u64 = 64 << 20;

/// Returns true if this program was called as the driver.
pub(crate) fn is_called() -> bool {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    called.as_deref().and_then(std::path::Path::file_name).is_some_and(|name| name == NAME)
}

/// Operation that cnab-go or Porter requests.
#[derive(Deserialize)]
pub(crate) struct Operation {
    #[serde(default)]
    pub(crate) installation_name: String,
    #[serde(default)]
    pub(crate) action: String,
    pub(crate) image: Image,
    #[serde(default, deserialize_with = "nullable")]
    environment: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable")]
    files: BTreeMap<String, String>,
    /// Names of outputs by path.
    #[serde(default, deserialize_with = "nullable")]
    outputs: BTreeMap<String, String>,
    #[serde(default, rename = "Bundle")]
    bundle: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Image {
    #[serde(default)]
    image_type: String,
    pub(crate) image: String,
    #[serde(default)]
    content_digest: Option<String>,
}

/// Deserializes a map; Go encodes an empty map as null.
fn nullable<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Operation {
    /// Reads an operation, and refuses an operation that is too large.
    pub(crate) fn read(from: &mut dyn Read) -> Result<Self, CnabError> {
        let mut bytes = Zeroizing::new(Vec::new());
        from.take(OPERATION_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| CnabError::Driver(format!("cannot read the operation from standard input: {error}")))?;
        if bytes.len() as u64 > OPERATION_MAX {
            return Err(CnabError::Driver(format!(
                "the operation is larger than the maximum of {OPERATION_MAX} bytes"
            )));
        }
        // The parser's message may quote a secret value.
        let operation: Self = serde_json::from_slice(&bytes).map_err(|error| {
            CnabError::Driver(format!(
                "standard input is not a CNAB driver operation (line {}, column {})",
                error.line(),
                error.column()
            ))
        })?;
        operation.check()?;
        Ok(operation)
    }

    fn check(&self) -> Result<(), CnabError> {
        if !matches!(&*self.image.image_type, "" | "oci" | "docker") {
            return Err(CnabError::Driver(format!(
                "images of type {:?} are not supported; use docker or oci",
                self.image.image_type
            )));
        }
        for path in self.outputs.keys() {
            let below = path.strip_prefix(OUTPUTS).and_then(|rest| rest.strip_prefix('/'));
            if below.is_none_or(|rest| rest.split('/').any(|name| matches!(name, "" | "." | ".."))) {
                return Err(CnabError::Driver(format!("the output {path:?} is not a file below {OUTPUTS}")));
            }
        }
        Ok(())
    }

    pub(crate) fn invocation(&self) -> Invocation {
        let public = self.public();
        let mut invocation = Invocation {
            image: self.image.image.clone(),
            content_digest: self.image.content_digest.clone().filter(|digest| !digest.is_empty()),
            program: RUN,
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            files: BTreeMap::new(),
            secret_files: BTreeMap::new(),
            outputs: self.outputs.clone(),
        };
        for (name, value) in &self.environment {
            if name.starts_with("CNAB_") || value.is_empty() || public.contains(name.as_str()) {
                invocation.env.insert(name.clone(), value.clone());
            } else {
                invocation.secret_env.insert(name.clone(), value.clone().into());
            }
        }
        for (path, content) in &self.files {
            let path = if path.starts_with('/') { path.clone() } else { format!("/{path}") };
            let runtime = [BUNDLE_PATH, RELOCATION_PATH, "/cnab/app/image-map.json"].contains(&&*path);
            if runtime || content.is_empty() || public.contains(path.as_str()) {
                invocation.files.insert(path, content.clone().into_bytes());
            } else {
                invocation.secret_files.insert(path, Secret::from(content.clone()));
            }
        }
        invocation
    }

    /// Returns the names of variables and the paths that belong to parameters without `writeOnly` and to no credential.
    fn public(&self) -> BTreeSet<&str> {
        let section = |name: &str| self.bundle.as_ref().and_then(|bundle| bundle.get(name)).and_then(Value::as_object);
        let places = |destination: &'_ Value| -> Vec<String> {
            ["env", "path"].iter().filter_map(|place| Some(destination.get(place)?.as_str()?.to_owned())).collect()
        };
        let secret: BTreeSet<String> =
            section("credentials").into_iter().flatten().flat_map(|(_, it)| places(it)).collect();
        let is_secret = |name: &str| self.bundle.as_ref().is_none_or(|bundle| write_only::parameter(bundle, name));
        let parameters = section("parameters").into_iter().flatten().filter(|(name, _)| !is_secret(name));
        let destinations = parameters.filter_map(|(_, it)| it.get("destination")?.as_object());
        let places = destinations.flat_map(|it| it.values().filter_map(Value::as_str));
        places.filter(|place| !secret.contains(*place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(text: &str) -> Result<Operation, String> {
        Operation::read(&mut text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn cnab_go_operation_separates_secrets() {
        let text = r#"{"installation_name":"a","revision":"01","action":"install","parameters":{"port":80},
            "image":{"imageType":"docker","image":"example/a:1","contentDigest":"sha256:1"},
            "environment":{"CNAB_ACTION":"install","PORT":"80","PASS":"canary","KEY":"canary","EMPTY":""},
            "files":{"/cnab/bundle.json":"{}","/cnab/claim.json":"canary","/etc/key":"canary","etc/port":"80"},
            "outputs":{"/cnab/app/outputs/x":"x"},
            "Bundle":{"definitions":{"p":{},"w":{"writeOnly":true}},"credentials":{"k":{"env":"KEY","path":"/etc/key"}},
              "parameters":{"port":{"definition":"p","destination":{"env":"PORT","path":"/etc/port"}},
                "pass":{"definition":"w","destination":{"env":"PASS"}},
                "odd":{"definition":"p","destination":{"env":"KEY"}}}}}"#;
        let invocation = operation(text).unwrap().invocation();
        assert_eq!(invocation.env.keys().collect::<Vec<_>>(), ["CNAB_ACTION", "EMPTY", "PORT"]);
        assert_eq!(invocation.secret_env.keys().collect::<Vec<_>>(), ["KEY", "PASS"]);
        assert_eq!(invocation.files.keys().collect::<Vec<_>>(), ["/cnab/bundle.json", "/etc/port"]);
        assert_eq!(invocation.secret_files.keys().collect::<Vec<_>>(), ["/cnab/claim.json", "/etc/key"]);
        assert_eq!((invocation.content_digest.as_deref(), invocation.outputs.len()), (Some("sha256:1"), 1));
    }

    #[test]
    fn nulls_are_empty_missing_bundle_means_secret() {
        let text = r#"{"image":{"image":"a"},"environment":{"X":"y"},"files":null,"outputs":null,"Bundle":null,"parameters":null}"#;
        let invocation = operation(text).unwrap().invocation();
        assert_eq!((invocation.env.len(), invocation.secret_env.len(), invocation.files.len()), (0, 1, 0));
    }

    #[test]
    fn invalid_operation_is_refused_without_its_text() {
        for text in ["", "[]", "{}", r#"{"image":{"image":"a"},"environment":{"X":["canary"]}}"#, r#"{"canary":"#] {
            let error = operation(text).err().unwrap();
            assert!(!error.contains("canary"), "{error}");
        }
        assert!(operation(r#"{"image":{"image":"a","imageType":"qcow"}}"#).err().unwrap().contains("qcow"));
        for path in ["/etc/x", "/cnab/app/outputs", "/cnab/app/outputs/../x", "/cnab/app/outputs//x"] {
            let text = format!(r#"{{"image":{{"image":"a"}},"outputs":{{"{path}":"x"}}}}"#);
            assert!(operation(&text).err().unwrap().contains("not a file below"), "{path}");
        }
    }
}
