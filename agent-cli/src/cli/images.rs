//! Flags about images: what `run` is made from, and `image`.

#![allow(rustdoc::broken_intra_doc_links)] // help texts: brackets in them are no links

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use executor_proto::v1::{PullPolicy, RegistryCredentials, RunRequest};
use executor_registry_auth::{Credentials, FILE_MAX, from_docker_config};
use zeroize::{Zeroize as _, Zeroizing};

use crate::failure::Failure;
use crate::source::{self, Argument, Flag};
use crate::units;

/// What stands before a reference that says what it is of.
const SCHEMES: [&str; 4] = ["docker://", "oci:", "oci-archive:", "docker-archive:"];
/// Whose images have short names.
const DEFAULT_REGISTRY: &str = "docker.io";

/// A reference of this machine's disk with an absolute path: executord has another working directory.
pub(crate) fn from_here(reference: String) -> String {
    let scheme = SCHEMES[1..].iter().find(|scheme| reference.starts_with(**scheme));
    let Some((scheme, path)) = scheme.and_then(|scheme| Some((scheme, reference.strip_prefix(scheme)?))) else {
        return reference;
    };
    if path.starts_with('/') || path.is_empty() {
        return reference;
    }
    let path = path.strip_prefix("./").unwrap_or(path);
    match std::env::current_dir().ok().as_deref().and_then(std::path::Path::to_str) {
        Some(here) => format!("{scheme}{}/{path}", here.trim_end_matches('/')),
        None => reference,
    }
}

/// Who the caller is to a registry.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryArgs {
    /// User of the image's registry
    #[arg(long, value_name = "NAME", requires = "registry_password", conflicts_with = "registry_auth_file")]
    pub(crate) registry_user: Option<String>,
    /// The user's password: @FILE, @- (standard input) or @env:VARIABLE
    ///
    /// One newline at its end is left out. It is sent to executord for this one image, and kept by nobody.
    #[arg(long, value_name = "SOURCE", requires = "registry_user")]
    pub(crate) registry_password: Option<String>,
    /// File with credentials, as `docker login` and `podman login` write it: ~/.docker/config.json
    ///
    /// The entry for the image's registry is taken. Programs that such a file names are not run.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
}

impl RegistryArgs {
    /// The credentials for an image.
    ///
    /// # Errors
    /// A source cannot be read, or the file has none for the registry.
    pub(crate) fn credentials(
        self,
        reference: &str,
        stdin: &mut dyn Read,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Option<RegistryCredentials>, Failure> {
        if let (Some(username), Some(text)) = (self.registry_user, self.registry_password) {
            let argument = Argument::bare(Flag::RegistryPassword, &text)?;
            let content = source::read_all(vec![argument], stdin, variable)?.pop();
            let password = content.map(|content| content.into_text()).transpose()?.unwrap_or_default();
            return Ok(Some(given(username, &password)));
        }
        let Some(path) = self.registry_auth_file else { return Ok(None) };
        let wrong = |why: String| Failure::Usage(format!("--registry-auth-file {}: {why}", path.display()));
        let Some((registry, repository)) = repository(reference) else {
            return Err(wrong(format!("{} is of no registry", crate::text::plain(reference))));
        };
        let mut content = Zeroizing::new(Vec::with_capacity(FILE_MAX + 1));
        let file = std::fs::File::open(&path).map_err(|error| wrong(error.to_string()))?;
        file.take(FILE_MAX as u64 + 1).read_to_end(&mut content).map_err(|error| wrong(error.to_string()))?;
        match from_docker_config(&content, &registry, &repository).map_err(|error| wrong(error.to_string()))? {
            None => Err(wrong(format!("has no credentials for {registry}"))),
            Some(Credentials::Basic { username, password }) => Ok(Some(given(username, &password))),
            Some(Credentials::IdentityToken(token)) => {
                Ok(Some(RegistryCredentials { identity_token: token.to_string(), ..RegistryCredentials::default() }))
            }
            Some(Credentials::RegistryToken(_)) => {
                Err(wrong(format!("has a registry token for {registry}, which cannot be sent")))
            }
        }
    }
}

fn given(username: String, password: &Zeroizing<String>) -> RegistryCredentials {
    RegistryCredentials { username, password: password.to_string(), identity_token: String::new() }
}

/// Overwrites credentials.
pub(crate) fn wipe(credentials: &mut RegistryCredentials) {
    credentials.password.zeroize();
    credentials.identity_token.zeroize();
}

/// Registry and repository of a reference, which may be short; `None` where it is of no registry.
fn repository(reference: &str) -> Option<(String, String)> {
    let name = match reference.strip_prefix("docker://") {
        Some(name) => name,
        None if SCHEMES.iter().any(|scheme| reference.starts_with(scheme)) => return None,
        None => reference,
    };
    let name = name.split('@').next().unwrap_or(name);
    let path_at = name.rfind('/').map_or(0, |at| at + 1);
    let name = name[path_at..].find(':').map_or(name, |colon| &name[..path_at + colon]);
    Some(match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host.to_owned(), path.to_owned()),
        Some(_) => (DEFAULT_REGISTRY.to_owned(), name.to_owned()),
        None => (DEFAULT_REGISTRY.to_owned(), format!("library/{name}")),
    })
}

/// What `run` says of an image.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Image")]
pub(crate) struct ImageOfRun {
    /// Program instead of the image's entrypoint and command; '' for what CMD names
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) entrypoint: Option<String>,
    /// When to fetch the image [default: missing]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) pull: Option<PullArg>,
    /// Platform that the image must be for (linux/amd64); refused where this machine is another one
    #[arg(long, value_name = "PLATFORM")]
    pub(crate) platform: Option<String>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// As the first word named it.
    #[arg(skip)]
    pub(crate) image: Option<String>,
}

/// When an image is fetched.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PullArg {
    /// When it is not there
    Missing,
    /// Each time
    Always,
    /// Not at all
    Never,
}

/// What is run: a program of its own, or what an image says.
pub(crate) struct Program {
    /// Empty for the image's.
    pub(crate) path: String,
    pub(crate) args: Vec<String>,
}

impl ImageOfRun {
    /// The root file system's reference, and the program with its arguments.
    ///
    /// # Errors
    /// Nothing to run.
    pub(crate) fn rootfs_and_program(
        &mut self,
        rootfs: Option<String>,
        command: Vec<String>,
    ) -> Result<(String, Program), Failure> {
        let rootfs = match (self.image.take(), rootfs) {
            (Some(image), _) => from_here(long(image)),
            (None, rootfs) => from_here(rootfs.unwrap_or_else(|| "host".to_owned())),
        };
        let is_image = SCHEMES.iter().any(|scheme| rootfs.starts_with(scheme));
        let mut command = command.into_iter();
        let path = match (self.entrypoint.take(), is_image) {
            (Some(program), true) if program.is_empty() => command.next().ok_or_else(|| {
                Failure::Usage("--entrypoint '' leaves nothing to run: name the program behind the image".into())
            })?,
            (Some(_), false) => {
                return Err(Failure::Usage("--entrypoint is of an image; here the program is the first word".into()));
            }
            (Some(program), true) => program,
            (None, true) => String::new(),
            (None, false) => command.next().ok_or_else(|| {
                Failure::Usage(
                    "name the program: run [IMAGE] -- CMD [ARG]...; only an image has a command of its own".into(),
                )
            })?,
        };
        Ok((rootfs, Program { path, args: command.collect() }))
    }

    /// Puts the rest into a request.
    ///
    /// # Errors
    /// As [`RegistryArgs::credentials`].
    pub(crate) fn apply(
        self,
        request: &mut RunRequest,
        stdin: &mut dyn Read,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(), Failure> {
        request.pull_policy = match self.pull {
            None | Some(PullArg::Missing) => PullPolicy::IfMissing,
            Some(PullArg::Always) => PullPolicy::Always,
            Some(PullArg::Never) => PullPolicy::Never,
        }
        .into();
        request.platform = self.platform.unwrap_or_default();
        request.registry_credentials = self.registry.credentials(&request.rootfs, stdin, variable)?;
        Ok(())
    }

    /// Standard input is the password.
    pub(crate) fn takes_stdin(&self) -> bool {
        self.registry.registry_password.as_deref() == Some("@-")
    }
}

/// A reference that says what it is of.
fn long(text: String) -> String {
    let has_scheme = SCHEMES.iter().any(|scheme| text.starts_with(scheme));
    if has_scheme || text == "host" || text.starts_with("dir:") { text } else { format!("docker://{text}") }
}

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Fetch an image
    ///
    /// Tells how far it is on standard error, and prints the digest of what came. Ctrl-C ends it; what has come is kept
    /// for a day, and not fetched again.
    Pull(PullArgs),
    /// Take an image in from an archive: of `docker save`, or an OCI layout in a tar file
    Import(ImportArgs),
    /// List images
    Ls(LsArgs),
    /// Show everything about an image
    Inspect(ImageNameArg),
    /// Remove images, or names of them
    ///
    /// An image with several names loses the one; with its last one, or by its digest, the image goes with the layers
    /// that no other image has.
    Rm(ImageRmArgs),
    /// Remove images that no container uses
    ///
    /// Without an option only what belongs to no image goes.
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Print nothing but the digest
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Platform that the image must be for (linux/amd64); refused where this machine is another one
    #[arg(long, value_name = "PLATFORM")]
    pub(crate) platform: Option<String>,
    /// Image, as with `run`
    #[arg(value_name = "IMAGE")]
    pub(crate) reference: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Form of the archive
    #[arg(long, value_enum, default_value_t = FormArg::DockerArchive)]
    pub(crate) form: FormArg,
    /// Name that the image gets [default: what the archive calls it]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// File, or - for standard input; not compressed as a whole
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormArg {
    /// What `docker save` and `skopeo copy ... docker-archive:` write
    DockerArchive,
    /// What `skopeo copy ... oci-archive:` and `buildah push ... oci-archive:` write
    OciArchive,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Print digests only, one a line
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageNameArg {
    /// Name of the image, its digest, or the first 8 or more digits of it
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// Names of images, digests, or the first 8 or more digits of one
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Images that were not used for this long: 12h, 30days
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) unused_for: Option<Duration>,
    /// The longest unused ones, until the rest has no more than this: 10GiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) budget: Option<u64>,
    /// Only show what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_of_references() {
        let table = [
            ("debian:12", Some(("docker.io", "library/debian"))),
            ("docker://a/b@sha256:00", Some(("docker.io", "a/b"))),
            ("127.0.0.1:5000/x/y:tag", Some(("127.0.0.1:5000", "x/y"))),
            ("localhost/x", Some(("localhost", "x"))),
            ("oci:/a", None),
            ("docker-archive:/a.tar:x", None),
        ];
        for (reference, expected) in table {
            let expected = expected.map(|(registry, path)| (registry.to_owned(), path.to_owned()));
            assert_eq!(repository(reference), expected, "{reference}");
        }
    }

    #[test]
    fn what_is_run() {
        let program = |image: Option<&str>, entrypoint: Option<&str>, command: &[&str]| {
            let mut args = ImageOfRun {
                image: image.map(str::to_owned),
                entrypoint: entrypoint.map(str::to_owned),
                ..ImageOfRun::default()
            };
            let command = command.iter().map(|text| (*text).to_owned()).collect();
            let (rootfs, Program { path, args }) = args.rootfs_and_program(None, command).ok()?;
            Some(format!("{rootfs} {path:?} {}", args.join(" ")))
        };
        let table = [
            (program(Some("debian"), None, &[]), Some("docker://debian \"\" ")),
            (program(Some("debian"), None, &["sh", "-c"]), Some("docker://debian \"\" sh -c")),
            (program(Some("oci:/a"), Some("/e"), &["x"]), Some("oci:/a \"/e\" x")),
            (program(Some("oci:/a"), Some(""), &["sh", "-c"]), Some("oci:/a \"sh\" -c")),
            (program(Some("oci:/a"), Some(""), &[]), None),
            (program(Some("host"), None, &["sh", "x"]), Some("host \"sh\" x")),
            (program(Some("dir:/r"), None, &["sh"]), Some("dir:/r \"sh\" ")),
            (program(None, None, &["sh"]), Some("host \"sh\" ")),
            (program(None, None, &[]), None),
            (program(Some("host"), Some("/e"), &["x"]), None),
        ];
        for (got, expected) in table {
            assert_eq!(got.as_deref(), expected);
        }
    }
}
