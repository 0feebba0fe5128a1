//! Parses the network flag of a container, and formats published ports.

use std::str::FromStr;

use executor_client::v1::{Network, PortMapping, RunRequest};

/// The network selected on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    None,
    Host,
    /// Name of a network of the node; empty for the default network.
    Cni(String),
    Path(String),
}

impl Chosen {
    /// Sets the network in a request.
    pub fn apply(&self, request: &mut RunRequest) {
        let (network, name) = match self {
            Self::None => (Network::None, String::new()),
            Self::Host => (Network::Host, String::new()),
            Self::Cni(name) => (Network::Cni, name.clone()),
            Self::Path(path) => {
                request.network_namespace.clone_from(path);
                (Network::Path, String::new())
            }
        };
        request.set_network(network);
        request.network_name = name;
    }
}

impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("is empty".into()),
            "none" => Ok(Self::None),
            "host" => Ok(Self::Host),
            path if path.starts_with("ns:") => match &path[3..] {
                path if path.starts_with('/') => Ok(Self::Path(path.to_owned())),
                _ => Err("ns: takes an absolute path: ns:/run/netns/NAME".into()),
            },
            "cni" => Ok(Self::Cni(String::new())),
            name => Ok(Self::Cni(name.strip_prefix("cni:").unwrap_or(name).to_owned())),
        }
    }
}

/// Formats a published port as on the command line.
pub fn written(port: &PortMapping) -> String {
    between(port, ":")
}

/// Formats a published port as in docker's lists.
pub fn leads_to(port: &PortMapping) -> String {
    between(port, "->")
}

fn between(port: &PortMapping, sign: &str) -> String {
    let ip = match port.host_ip.as_str() {
        "" => String::new(),
        ip if ip.contains(':') => format!("[{ip}]:"),
        ip => format!("{ip}:"),
    };
    let protocol = port.protocol().as_str_name().trim_start_matches("PROTOCOL_").to_ascii_lowercase();
    format!("{ip}{}{sign}{}/{protocol}", port.host_port, port.container_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_names_are_parsed() {
        let of = |text: &str| text.parse::<Chosen>();
        let cni = |name: &str| Ok(Chosen::Cni(name.into()));
        assert_eq!((of("none"), of("host")), (Ok(Chosen::None), Ok(Chosen::Host)));
        assert_eq!([of("cni"), of("blue"), of("cni:none")], [cni(""), cni("blue"), cni("none")]);
        assert_eq!(of("ns:/run/netns/a"), Ok(Chosen::Path("/run/netns/a".into())));
        assert!(of("").is_err() && of("ns:").is_err() && of("ns:a").is_err());
    }
}
