//! Converts the flags for service bindings to files of a request.
//!
//! `executor_bindings` has the rules. This module reads the sources, determines the paths in the container, and writes
//! bindings to a local directory ([`mod@write`]). [`tree`] reads directories; VCAP_SERVICES is read like any other
//! secret.

mod args;
mod replace;
mod tree;
mod write;

use std::ffi::OsString;
use std::io::Read;

use executor_bindings::{Bindings, Builder, DEFAULT_ROOT, Layout, ONE_FILE, Profile, Refused, VCAP_SERVICES};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::Request;
use executor_cli_kit::source::{self, Argument, Flag, Source, SourceError};
use executor_cli_kit::text::plain;
use executor_client::v1::{self, EnvironmentVariable};

pub(crate) use args::{BindingArgs, DeliveryArgs};
pub(crate) use tree::TreeError;
pub(crate) use write::{WriteError, write};

/// Empty file in the root if there are no bindings. The variable then holds the path of an existing directory, and a
/// rotation can add bindings to it. Readers of bindings skip names that begin with a dot.
const EMPTY_MARKER: &str = ".bindings";

/// Errors from reading, translating and writing bindings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindingsError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(
        "--vcap-services takes @FILE, @- (standard input) or @env:VARIABLE; the value itself cannot be given, because \
         everyone on this machine can read a command line"
    )]
    Shape,
    #[error("--vcap-services @env:{variable}: the environment has no {variable}")]
    NoVariable { variable: String },
    #[error("--binding-root {path}: must be an absolute path without `.` and `..`")]
    Root { path: String },
    #[error("{VCAP_SERVICES} and {variable} cannot be used together: each provides bindings to programs; omit {flag}")]
    Both { variable: &'static str, flag: &'static str },
}

impl From<BindingsError> for Failure {
    fn from(error: BindingsError) -> Self {
        Self::wrap(error, executor_cli_kit::exit::OURS)
    }
}

/// Reads and validates the bindings that the flags name. Returns `None` if the flags name no bindings. `others` are the
/// arguments of other flags that may also read standard input.
pub(crate) fn read(
    args: &BindingArgs,
    others: &[(Flag, &[String])],
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<Bindings>, Failure> {
    if args.vcap_services.is_none() && args.bind.is_empty() {
        return Ok(None);
    }
    let profile = args.binding_profile.map_or_else(Profile::default, Profile::from);
    let mut builder = Builder::new();
    if let Some(text) = &args.vcap_services {
        let vcap_services = vcap_services(text, others, stdin, variable)?;
        if args.vcap_file {
            return Ok(Some(Bindings::one_file(&vcap_services.bytes).map_err(BindingsError::from)?));
        }
        builder = builder.vcap_services(&vcap_services.bytes, profile);
    }
    for dir in &args.bind {
        for (name, entries) in tree::read(dir).map_err(BindingsError::from)? {
            builder = builder.binding(&name, entries);
        }
    }
    Ok(Some(builder.finish().map_err(BindingsError::from)?))
}

fn vcap_services(
    text: &str,
    others: &[(Flag, &[String])],
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<source::Content, Failure> {
    let source = match text.strip_prefix('@') {
        None | Some("" | "env:") => return Err(BindingsError::Shape.into()),
        Some("-") => Source::Stdin,
        Some(rest) => match rest.strip_prefix("env:") {
            Some(name) if variable(name).is_none() => {
                return Err(BindingsError::NoVariable { variable: plain(name) }.into());
            }
            Some(name) => Source::Environment(name.to_owned()),
            None => Source::File(rest.into()),
        },
    };
    if source == Source::Stdin
        && let Some((flag, other)) = others
            .iter()
            .find_map(|(flag, texts)| Some((flag, texts.iter().find_map(|text| text.strip_suffix("=@-"))?)))
    {
        let (first, second) = (Flag::VcapServices.name().to_owned(), format!("{flag} {other}"));
        return Err(SourceError::StdinTwice { first, second }.into());
    }
    let argument =
        Argument { flag: Flag::VcapServices, key: text.to_owned(), source, access: source::Access::default() };
    let mut contents = source::read_all(vec![argument], stdin, variable)?;
    contents.pop().ok_or_else(|| BindingsError::Shape.into())
}

/// Bindings to deliver to a container.
pub(crate) struct Delivery {
    bindings: Bindings,
    /// Root of bindings in the container; `None` for executord's default.
    root: Option<String>,
    access: source::Access,
}

/// A delivery with its final paths.
pub(crate) struct Lowered {
    pub(crate) files: Vec<v1::File>,
    /// Directory of the files, if it is not executord's default.
    pub(crate) directory: Option<String>,
    /// Variable with the path of the bindings, for the process.
    pub(crate) variable: EnvironmentVariable,
}

impl Delivery {
    /// Reads the bindings like [`read`], and determines the root in the container.
    pub(crate) fn read(
        args: &DeliveryArgs,
        others: &[(Flag, &[String])],
        stdin: &mut dyn Read,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, Failure> {
        let root = args.binding_root.as_deref().map(absolute).transpose()?;
        let bindings = read(&args.from, others, stdin, variable)?;
        let access = source::Access { mode: args.binding_mode, group: args.binding_group.clone() };
        Ok(bindings.map(|bindings| Self { bindings, root, access }))
    }

    /// Returns an error if the request also sets VCAP_SERVICES, which must not be combined with bindings in files.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Failure> {
        let variable = self.bindings.layout().variable();
        request.flag_of(VCAP_SERVICES).map_or(Ok(()), |flag| Err(BindingsError::Both { variable, flag }.into()))
    }

    /// Lowers the delivery to files and a variable. `files_root` is executord's directory for files with relative
    /// paths; it is empty if executord is too old to report it.
    pub(crate) fn lower(self, files_root: &str) -> Lowered {
        let Self { bindings, root, access } = self;
        // Paths below executord's default root stay relative, so that their length counts toward the limit as in Cloud
        // Controller.
        let place = |path: String| root.as_ref().map_or_else(|| path.clone(), |root| format!("{root}/{path}"));
        let layout = bindings.layout();
        let files = bindings.into_files().into_iter().map(|mut file| v1::File {
            path: place(std::mem::take(&mut file.path)),
            content: std::mem::take(&mut *file.content),
            public: file.public,
            mode: access.mode,
            group: access.group.clone(),
            from: None,
        });
        let mut files: Vec<v1::File> = files.collect();
        if files.is_empty() {
            files.push(v1::File { path: place(EMPTY_MARKER.to_owned()), public: true, ..v1::File::default() });
        }
        let directory = root.clone();
        let root = root.unwrap_or_else(|| known(files_root));
        let value = match layout {
            Layout::Directories => root,
            Layout::OneFile => format!("{root}/{ONE_FILE}"),
        };
        let variable =
            EnvironmentVariable { name: layout.variable().to_owned(), value, ..EnvironmentVariable::default() };
        Lowered { files, directory, variable }
    }
}

/// Returns executord's directory for files with relative paths, or the default if the directory is unknown.
fn known(files_root: &str) -> String {
    if files_root.is_empty() { DEFAULT_ROOT.to_owned() } else { files_root.trim_end_matches('/').to_owned() }
}

/// Validates an absolute path and removes trailing slashes.
fn absolute(path: &str) -> Result<String, BindingsError> {
    let names = path.strip_prefix('/').map(|rest| rest.trim_end_matches('/'));
    match names {
        Some(names) if names.split('/').all(|name| !matches!(name, "" | "." | "..")) => Ok(format!("/{names}")),
        _ => Err(BindingsError::Root { path: plain(path) }),
    }
}

#[cfg(test)]
mod tests;
