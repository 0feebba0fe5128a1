//! The image of `run`: the root file system, the program, and the pull policy.

use std::ffi::OsString;
use std::io::Read;

use clap::{Args, ValueEnum};
use executor_cli_kit::failure::Failure;
use executor_client::v1::{PullPolicy, RunRequest};

use crate::registry::{RegistryArgs, from_here, is_image, long};

/// Options of `run` for the image.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Image")]
pub(crate) struct ImageOfRun {
    /// Program to run instead of the image's entrypoint and command; '' runs the program that CMD names
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) entrypoint: Option<String>,
    /// When to pull the image [default: missing]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) pull: Option<PullArg>,
    /// Required platform of the image (linux/amd64); rejected if this machine has another platform
    #[arg(long, value_name = "PLATFORM")]
    pub(crate) platform: Option<String>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Image named by the first positional argument.
    #[arg(skip)]
    pub(crate) image: Option<String>,
}

/// Pull policy of an image, as named by `--pull`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PullArg {
    /// If executord does not have the image
    Missing,
    /// Always, to get the image that the name currently refers to
    Always,
    /// Never: the run fails if executord does not have the image
    Never,
}

/// The program to run: from the command line, or from the image.
pub(crate) struct Program {
    /// Path or name of the program; empty if the image's program is run.
    pub(crate) path: String,
    pub(crate) args: Vec<String>,
}

impl ImageOfRun {
    /// Returns the reference of the root file system, and the program with its arguments.
    ///
    /// # Errors
    /// Returns an error if there is nothing to run.
    pub(crate) fn rootfs_and_program(
        &mut self,
        rootfs: Option<String>,
        command: Vec<String>,
    ) -> Result<(String, Program), Failure> {
        let rootfs = match (self.image.take(), rootfs) {
            (Some(image), _) => from_here(long(image)),
            (None, rootfs) => from_here(rootfs.unwrap_or_else(|| "host".to_owned())),
        };
        let is_image = is_image(&rootfs);
        let mut command = command.into_iter();
        let path = match (self.entrypoint.take(), is_image) {
            (Some(program), true) if program.is_empty() => command.next().ok_or_else(|| {
                Failure::Usage("--entrypoint '' leaves nothing to run: name the program after the image".into())
            })?,
            (Some(_), false) => {
                return Err(Failure::Usage(
                    "--entrypoint needs an image; without an image, the first word is the program".into(),
                ));
            }
            (Some(program), true) => program,
            (None, true) => String::new(),
            (None, false) => command.next().ok_or_else(|| {
                Failure::Usage(
                    "name the program: run [IMAGE] -- CMD [ARG]...; only an image has a default command".into(),
                )
            })?,
        };
        Ok((rootfs, Program { path, args: command.collect() }))
    }

    /// Returns the reference of the root file system for a tree of actions, which names the programs itself.
    ///
    /// # Errors
    /// Returns an error if a program is given.
    pub(crate) fn rootfs(&mut self, rootfs: Option<String>, command: &[String]) -> Result<String, Failure> {
        if let Some(word) = command.first() {
            let why = format!(
                "`{}`: a program cannot be used with --action; the file of --action names the programs",
                executor_cli_kit::text::plain(word)
            );
            return Err(Failure::Usage(why));
        }
        Ok(match (self.image.take(), rootfs) {
            (Some(image), _) => from_here(long(image)),
            (None, rootfs) => from_here(rootfs.unwrap_or_else(|| "host".to_owned())),
        })
    }

    /// Adds the pull policy, the platform and the registry credentials to a request.
    ///
    /// # Errors
    /// Returns the same errors as [`RegistryArgs::credentials`].
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

    /// Returns true if the password is read from standard input.
    pub(crate) fn takes_stdin(&self) -> bool {
        self.registry.registry_password.as_deref() == Some("@-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_and_entrypoint_select_program() {
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
