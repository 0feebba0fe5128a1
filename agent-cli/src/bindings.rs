//! Service bindings at the command line: from the flags to files of a request.
//!
//! The rules are `executor_bindings`'; here are the sources ([`tree`] reads directories, VCAP_SERVICES is read as every
//! other secret is), where the files go in the container, and [`mod@write`] for those that go nowhere but to a directory.

mod args;
mod replace;
mod tree;
mod write;

use std::ffi::OsString;
use std::io::Read;

use executor_bindings::{Bindings, Builder, DEFAULT_ROOT, Layout, ONE_FILE, Profile, Refused, VCAP_SERVICES};
use executor_client::v1::{self, EnvironmentVariable};

use crate::failure::Failure;
use crate::request::Request;
use crate::source::{self, Argument, Flag, Source, SourceError};
use crate::text::plain;

pub(crate) use args::{BindingArgs, DeliveryArgs};
pub(crate) use tree::TreeError;
pub(crate) use write::{WriteError, write};

/// An empty file at the root of bindings where there is none, so that the variable names a directory that is there, and that
/// a rotation can put bindings into. Readers of bindings pass over names that begin with a dot.
const NONE_YET: &str = ".bindings";

/// Errors of reading, translating and writing bindings.
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
    #[error("--binding-root {path}: is not an absolute path of plain names")]
    Root { path: String },
    #[error("{VCAP_SERVICES} is not set beside {variable}: programs would not know which to believe; leave out {flag}")]
    Both { variable: &'static str, flag: &'static str },
}

impl From<BindingsError> for Failure {
    fn from(error: BindingsError) -> Self {
        Self::wrap(error, crate::exit::OURS)
    }
}

/// Reads and judges the bindings that the flags name; `None` where they name none. `others` are the arguments of other
/// flags that may want standard input, too.
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

/// Bindings on their way into a container.
pub(crate) struct Delivery {
    bindings: Bindings,
    /// The container's own root of bindings, if it is not executord's.
    root: Option<String>,
    /// Access to every file.
    access: source::Access,
}

/// A delivery with its place.
pub(crate) struct Lowered {
    /// The files of the request.
    pub(crate) files: Vec<v1::File>,
    /// The directory that they lie in, if it is not executord's.
    pub(crate) directory: Option<String>,
    /// The variable that names the bindings' place to the process.
    pub(crate) variable: EnvironmentVariable,
}

impl Delivery {
    /// Reads the bindings as [`read`] does, and the container's root.
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

    /// Refuses to stand beside a VCAP_SERVICES: the modes exclude one another.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Failure> {
        let variable = self.bindings.layout().variable();
        request.flag_of(VCAP_SERVICES).map_or(Ok(()), |flag| Err(BindingsError::Both { variable, flag }.into()))
    }

    /// Lowers the delivery to files and a variable. `files_root` is executord's; empty where it is too old to tell.
    pub(crate) fn lower(self, files_root: &str) -> Lowered {
        let Self { bindings, root, access } = self;
        // Below executord's own root the paths stay relative: the limit counts them as Cloud Controller does.
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
            files.push(v1::File { path: place(NONE_YET.to_owned()), public: true, ..v1::File::default() });
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

/// Executord's root, or what it is by default.
fn known(files_root: &str) -> String {
    if files_root.is_empty() { DEFAULT_ROOT.to_owned() } else { files_root.trim_end_matches('/').to_owned() }
}

/// An absolute path, without a slash at its end.
fn absolute(path: &str) -> Result<String, BindingsError> {
    let names = path.strip_prefix('/').map(|rest| rest.trim_end_matches('/'));
    match names {
        Some(names) if names.split('/').all(|name| !matches!(name, "" | "." | "..")) => Ok(format!("/{names}")),
        _ => Err(BindingsError::Root { path: plain(path) }),
    }
}

#[cfg(test)]
mod tests;
