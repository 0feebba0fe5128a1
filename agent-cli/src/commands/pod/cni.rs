//! Options of `pod create` for the CNI plugins of the pod's network.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_client::v1::{CniArgument, CniBandwidth, CniOptions};

use super::pairs;

#[derive(Debug, Args)]
#[command(next_help_heading = "CNI plugins")]
pub(super) struct CniArgs {
    /// Argument for CNI plugins (CNI_ARGS), such as K8S_POD_NAME=web; can be repeated
    ///
    /// Options for CNI plugins need permission in executord's configuration (cni_args).
    #[arg(long = "cni-arg", value_name = "NAME=VALUE", value_parser = argument)]
    arguments: Vec<CniArgument>,
    /// Limits on traffic for plugins with the capability bandwidth, in bits per second and bits:
    /// ingress-rate=1000000,ingress-burst=2000000,egress-rate=1000000,egress-burst=2000000
    #[arg(long = "cni-bandwidth", value_name = "LIMITS", value_parser = bandwidth)]
    bandwidth: Option<CniBandwidth>,
    /// Path of a cgroup for plugins with the capability cgroupPath
    #[arg(long = "cni-cgroup-path", value_name = "PATH")]
    cgroup_path: Option<String>,
    /// Annotation for plugins with the capability io.kubernetes.cri.pod-annotations; can be repeated
    #[arg(long = "cni-annotation", value_name = "NAME=VALUE", value_parser = annotation)]
    annotations: Vec<(String, String)>,
}

impl CniArgs {
    /// Returns the options; `None` if no flag is given.
    pub(super) fn options(self) -> Result<Option<CniOptions>, Failure> {
        let options = CniOptions {
            arguments: self.arguments,
            bandwidth: self.bandwidth,
            cgroup_path: self.cgroup_path.unwrap_or_default(),
            pod_annotations: pairs("--cni-annotation", self.annotations)?,
        };
        Ok(Some(options).filter(|options| *options != CniOptions::default()))
    }
}

/// Parses an annotation: `NAME=VALUE`.
fn annotation(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("use NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn argument(text: &str) -> Result<CniArgument, String> {
    annotation(text).map(|(name, value)| CniArgument { name, value })
}

/// Parses limits such as `ingress-rate=1000000,ingress-burst=2000000`.
fn bandwidth(text: &str) -> Result<CniBandwidth, String> {
    let mut limits = CniBandwidth::default();
    for part in text.split(',') {
        let (name, number) = part.split_once('=').unwrap_or((part, ""));
        let limit = match name {
            "ingress-rate" => &mut limits.ingress_rate,
            "ingress-burst" => &mut limits.ingress_burst,
            "egress-rate" => &mut limits.egress_rate,
            "egress-burst" => &mut limits.egress_burst,
            _ => {
                return Err(format!(
                    "{name:?} is unknown; use ingress-rate, ingress-burst, egress-rate and egress-burst"
                ));
            }
        };
        *limit = number.parse().map_err(|_| format!("{name}: {number:?} is not a number"))?;
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_by_name() {
        let limits = bandwidth("egress-burst=4,ingress-rate=1").unwrap();
        assert_eq!(limits, CniBandwidth { ingress_rate: 1, egress_burst: 4, ..CniBandwidth::default() });
        for bad in ["", "rate=1", "ingress-rate", "ingress-rate=1M", "ingress-rate=-1"] {
            assert!(bandwidth(bad).is_err(), "{bad}");
        }
    }
}
