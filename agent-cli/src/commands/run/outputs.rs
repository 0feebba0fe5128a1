//! Flags of `run` that declare outputs and set their destination.

use std::path::PathBuf;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::units;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Outputs")]
pub(crate) struct OutputArgs {
    /// File to capture when the process has exited; can be repeated
    ///
    /// Captured before the secrets are wiped, however the process ends. Symbolic links, secret files and files that are
    /// not regular are skipped and reported. Needs --output-to, --keep or --detach, because outputs are deleted with
    /// their container.
    #[arg(long, value_name = "PATH", conflicts_with = "output_dir")]
    pub(crate) output: Vec<String>,
    /// Directory to capture recursively
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<String>,
    /// Maximum total size of the outputs: 10M, 1GiB [default: executord's outputs_bytes_max, 64 MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) output_max: Option<u64>,
    /// Directory to fetch the outputs into when the container has completed; created if it does not exist
    ///
    /// Files of --output keep their names, and files below --output-dir keep their relative paths. If the outputs
    /// cannot be fetched, the container is kept.
    #[arg(long, value_name = "DEST")]
    pub(crate) output_to: Option<PathBuf>,
}

impl OutputArgs {
    /// Returns the declared outputs, or `None` if the options declare no output.
    pub(crate) fn declared(&mut self) -> Option<executor_client::v1::Outputs> {
        let (files, directory) = (std::mem::take(&mut self.output), self.output_dir.take());
        (!files.is_empty() || directory.is_some()).then(|| executor_client::v1::Outputs {
            files,
            directory: directory.unwrap_or_default(),
            bytes_max: self.output_max.unwrap_or(0),
        })
    }

    /// Checks for conflicting flags that clap's definitions cannot express.
    pub(crate) fn check(&self, detach: bool, keep: bool) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        let declared = !self.output.is_empty() || self.output_dir.is_some();
        match (&self.output_to, declared) {
            (Some(_), false) => usage("--output-to needs --output or --output-dir, which name the files to fetch"),
            (Some(to), true) if to.as_os_str() == "-" => usage(
                "--output-to must be a directory; to write a file to standard output, use --keep and `agent-cli cp ID:PATH -`",
            ),
            (Some(_), true) if detach => {
                usage("--output-to cannot be used with --detach or --hold; fetch the outputs later with `agent-cli cp`")
            }
            (None, true) if !detach && !keep => usage(
                "--output and --output-dir need --output-to DEST (or --keep, or --detach): outputs are deleted with \
                 their container",
            ),
            (None, false) if self.output_max.is_some() => usage("--output-max needs --output or --output-dir"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_not_declared_to_be_lost() {
        let args = |output: &[&str], to: Option<&str>| OutputArgs {
            output: output.iter().map(|path| (*path).into()).collect(),
            output_to: to.map(PathBuf::from),
            ..OutputArgs::default()
        };
        for (args, detach, keep, fine) in [
            (args(&[], None), false, false, true),
            (args(&["/a"], Some("x")), false, false, true),
            (args(&["/a"], Some("x")), false, true, true),
            (args(&["/a"], None), true, false, true),
            (args(&["/a"], None), false, true, true),
            (args(&["/a"], None), false, false, false),
            (args(&[], Some("x")), false, false, false),
            (args(&["/a"], Some("x")), true, false, false),
            (args(&["/a"], Some("-")), false, false, false),
            (OutputArgs { output_max: Some(1), ..OutputArgs::default() }, false, false, false),
        ] {
            assert_eq!(args.check(detach, keep).is_ok(), fine, "{args:?} {detach} {keep}");
        }
    }
}
