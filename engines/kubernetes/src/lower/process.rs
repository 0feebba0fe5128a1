//! Lowers the process of a container: rule C23.

use executor_client::v1::{EnvironmentVariable, RunAction};
use executor_core::image::parse_signal;
use executor_cri_api::v1::{ContainerConfig, KeyValue, Signal};

/// Lowers the command, the environment and the directory. `command` replaces the image's entrypoint and its arguments;
/// `args` alone replaces the arguments.
pub(super) fn lower(config: ContainerConfig, envs: Vec<KeyValue>) -> RunAction {
    let mut command = config.command.into_iter();
    let path = command.next().unwrap_or_default();
    let args = command.chain(config.args).collect();
    let env = environment(envs);
    RunAction { path, args, env, dir: config.working_dir, ..RunAction::default() }
}

/// Lowers the environment. If a name occurs several times, its last value is used.
fn environment(envs: Vec<KeyValue>) -> Vec<EnvironmentVariable> {
    let mut variables: Vec<EnvironmentVariable> = Vec::with_capacity(envs.len());
    for KeyValue { key, value } in envs {
        match variables.iter_mut().find(|variable| variable.name == key) {
            Some(earlier) => earlier.set_content(value),
            None => variables.push(EnvironmentVariable::from_bytes(key, value)),
        }
    }
    variables
}

/// Returns the number of a signal; 0 for the stop signal of the image.
pub(crate) fn signal_number(signal: Signal) -> u32 {
    let name = signal.as_str_name().trim_start_matches("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-");
    parse_signal(&name).and_then(|number| number.try_into().ok()).unwrap_or(0)
}

pub(crate) fn signal_of_number(number: u32) -> Signal {
    let all = (1..=65).filter_map(|value| Signal::try_from(value).ok());
    all.into_iter().find(|&signal| signal_number(signal) == number).unwrap_or(Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_a_number() {
        let all: Vec<u32> = (1..=65).map(|value| signal_number(Signal::try_from(value).unwrap())).collect();
        assert!(all.iter().all(|&number| (1..=64).contains(&number)), "{all:?}");
        assert_eq!([Signal::Sigterm, Signal::Sigrtminplus3, Signal::Sigrtmaxminus1].map(signal_number), [15, 37, 63]);
        assert_eq!(signal_number(Signal::RuntimeDefault), 0);
        assert_eq!(signal_of_number(15), Signal::Sigterm);
    }

    /// Rule C23: `command` replaces the image's entrypoint, and `args` alone replaces the arguments.
    #[test]
    fn commands_replace_entrypoints() {
        let list = |words: &[&str]| words.iter().map(|&word| word.into()).collect();
        let config =
            ContainerConfig { command: list(&["sh", "-c"]), args: list(&["true"]), ..ContainerConfig::default() };
        let run = lower(config, Vec::new());
        assert_eq!((&*run.path, run.args), ("sh", list(&["-c", "true"])));
        let config = ContainerConfig { args: list(&["x"]), ..ContainerConfig::default() };
        let run = lower(config, Vec::new());
        assert_eq!((&*run.path, run.args), ("", list(&["x"])));
    }

    #[test]
    fn last_values_count() {
        let env = |value: &str| KeyValue { key: "A".into(), value: value.into() };
        let variables = environment(vec![env("1"), env("2")]);
        assert_eq!(variables.len(), 1);
        assert_eq!(variables[0].value, "2");
        let bytes = environment(vec![KeyValue { key: "A".into(), value: vec![0xff] }]);
        assert_eq!(bytes[0].content(), [0xff]);
    }
}
