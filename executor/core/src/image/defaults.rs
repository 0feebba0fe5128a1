//! Extracts process defaults from an image's configuration, and combines them with a request.
//!
//! The rules are the same as in Docker: a request without a program runs Entrypoint followed by the request's
//! arguments, or by Cmd if the request has no arguments; a program in the request replaces both. Variables of the
//! request override the variables of the image with the same name. An image is untrusted: this module limits the
//! image's values, and the caller then validates the merged request.

use std::collections::BTreeMap;

use oci_spec::image::ImageConfiguration;
use serde_json::Value;

use super::signal::parse_signal;
use crate::limits::{ARG_TOTAL_MAX, LIST_MAX, PATH_MAX};
use crate::text::printable;
use crate::violation::Violation;

/// Maximum number of volumes that an image may declare.
const VOLUMES_MAX: usize = 64;

/// Defaults of a container from an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageDefaults {
    /// Entrypoint: the program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Cmd: arguments after the entrypoint, if the request has no arguments.
    pub cmd: Vec<String>,
    /// Environment variables as name and value, each name once.
    pub env: Vec<(String, String)>,
    /// Absolute path of the working directory; empty for `/`.
    pub working_dir: String,
    /// User as `user[:group]`; empty for root.
    pub user: String,
    /// Number of the stop signal; unset for SIGTERM.
    pub stop_signal: Option<i32>,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
    /// Sorted absolute paths of the image's volumes, which become writable directories.
    pub volumes: Vec<String>,
}

/// Error from reading a configuration; holds every violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the image's configuration: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ConfigError(pub Vec<Violation>);

/// Reason why there is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCommand {
    /// Neither the image nor the request names a program.
    #[error("is empty, and the image has neither an entrypoint nor a command")]
    Missing,
    /// The first argument would become the program, but it is secret.
    #[error("is empty, and the image has no entrypoint; the first argument is secret and cannot be the program")]
    Secret,
}

/// The command of an image combined with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Path or name of the program.
    pub path: String,
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// Offset of the request's own arguments in `args`; -1 if the first argument became the program.
    pub shift: i64,
}

impl ImageDefaults {
    /// Extracts the defaults from a configuration.
    ///
    /// # Errors
    /// Returns all invalid values if there are any.
    pub fn from_configuration(configuration: &ImageConfiguration) -> Result<Self, ConfigError> {
        let Some(config) = configuration.config() else { return Ok(Self::default()) };
        let mut found = Vec::new();
        let list = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (mut entrypoint, cmd) = (list(config.entrypoint()), list(config.cmd()));
        // `ENTRYPOINT [""]` resets the entrypoint of the base image: Docker then runs Cmd.
        if entrypoint == [""] {
            entrypoint.clear();
        }
        strings("Entrypoint", &entrypoint, &mut found);
        strings("Cmd", &cmd, &mut found);
        let env = list(config.env());
        strings("Env", &env, &mut found);
        let working_dir = clean(&text(config.working_dir()));
        if !working_dir.is_empty() && !is_path(&working_dir) {
            found.push(Violation::new("WorkingDir", "is not an absolute path, or contains `..`"));
        }
        let stop_signal = config.stop_signal().as_deref().filter(|signal| !signal.is_empty()).and_then(|signal| {
            let number = parse_signal(signal);
            if number.is_none() {
                found.push(Violation::new("StopSignal", format!("{:?} is not a signal", printable(signal, 80))));
            }
            number
        });
        let mut volumes: Vec<String> =
            list(config.volumes()).into_iter().map(|volume| clean(&volume)).filter(|volume| volume != "/").collect();
        volumes.sort_unstable();
        volumes.dedup();
        if volumes.len() > VOLUMES_MAX {
            found.push(Violation::new(
                "Volumes",
                format!("has {} entries; at most {VOLUMES_MAX} are allowed", volumes.len()),
            ));
        } else if volumes.iter().any(|volume| !is_path(volume)) {
            found.push(Violation::new("Volumes", "has an entry that is not an absolute path, or contains `..`"));
        }
        if !found.is_empty() {
            return Err(ConfigError(found));
        }
        Ok(Self {
            entrypoint,
            cmd,
            env: variables(env),
            working_dir,
            user: text(config.user()),
            stop_signal,
            labels: config.labels().clone().unwrap_or_default().into_iter().collect(),
            volumes,
        })
    }

    /// Returns the command for a request. `secret` returns true if the request's argument with this index is secret.
    ///
    /// # Errors
    /// Returns the reason if there is no program.
    pub fn command(
        &self,
        path: String,
        args: Vec<String>,
        secret: impl Fn(usize) -> bool,
    ) -> Result<Command, NoCommand> {
        if !path.is_empty() {
            return Ok(Command { path, args, shift: 0 });
        }
        let own = args.len();
        let tail = if args.is_empty() { self.cmd.clone() } else { args };
        let mut all = self.entrypoint.iter().cloned().chain(tail);
        let path = all.next().ok_or(NoCommand::Missing)?;
        if self.entrypoint.is_empty() && own > 0 && secret(0) {
            return Err(NoCommand::Secret);
        }
        let shift = i64::try_from(self.entrypoint.len()).unwrap_or(i64::MAX) - 1;
        match path.is_empty() {
            true => Err(NoCommand::Missing),
            false => Ok(Command { path, args: all.collect(), shift }),
        }
    }

    /// Returns the image's variables whose names the request does not set.
    pub fn env_under<'a>(&'a self, used: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = &'a (String, String)> {
        self.env.iter().filter(move |(name, _)| !used(name))
    }
}

/// Parses a configuration. Entrypoint and Cmd may be a string instead of a list, as in Docker: the string becomes a
/// list with one entry.
///
/// # Errors
/// Returns the error of the JSON parser if the document is not a configuration.
pub fn read_configuration(bytes: &[u8]) -> Result<ImageConfiguration, serde_json::Error> {
    serde_json::from_slice(bytes).or_else(|error| {
        let Ok(mut document) = serde_json::from_slice::<Value>(bytes) else { return Err(error) };
        let mut is_changed = false;
        for field in ["Entrypoint", "Cmd"] {
            if let Some(value) = document.pointer_mut(&format!("/config/{field}")).filter(|value| value.is_string()) {
                *value = Value::Array(vec![value.take()]);
                is_changed = true;
            }
        }
        if is_changed { serde_json::from_value(document) } else { Err(error) }
    })
}

/// Checks the limits of a list of strings that become arguments or variables.
fn strings(field: &'static str, list: &[String], found: &mut Vec<Violation>) {
    let bytes: usize = list.iter().map(String::len).sum();
    if list.len() > LIST_MAX || bytes > ARG_TOTAL_MAX {
        let (count, most) = (list.len(), LIST_MAX);
        let why = format!("has {count} entries ({bytes} bytes); at most {most} ({ARG_TOTAL_MAX} bytes) are allowed");
        found.push(Violation::new(field, why));
    }
    if list.iter().any(|text| text.contains('\0')) {
        found.push(Violation::new(field, "contains NUL"));
    }
}

/// Splits `NAME=VALUE` entries. The last value of a repeated name wins, as in a shell; entries without a name are
/// left out.
fn variables(list: Vec<String>) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = Vec::with_capacity(list.len());
    let mut at = BTreeMap::new();
    for text in list {
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        if name.is_empty() {
            continue;
        }
        match at.get(name) {
            Some(index) => {
                let entry: &mut (String, String) = &mut variables[*index];
                entry.1 = value.to_owned();
            }
            None => {
                at.insert(name.to_owned(), variables.len());
                variables.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    variables
}

/// Removes repeated and trailing slashes, and `.` components.
fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("{}{}", if path.starts_with('/') { "/" } else { "" }, parts.join("/"))
}

fn is_path(path: &str) -> bool {
    let safe = path.starts_with('/') && path.len() < PATH_MAX && !path.contains(['\0', '\n']);
    safe && path.split('/').all(|part| part != ".." && part.len() <= crate::limits::NAME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_configuration(config: &str) -> Result<ImageDefaults, ConfigError> {
        let json = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{config},"rootfs":{{"type":"layers","diff_ids":[]}}}}"#
        );
        ImageDefaults::from_configuration(&serde_json::from_str(&json).unwrap())
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    /// Entrypoint, Cmd and the request's path and arguments give the same command as in Docker.
    #[test]
    fn entrypoint_and_cmd_combine_like_docker() {
        // Entrypoint, cmd, path and args, with the expected command and shift.
        type CommandRow<'a> = (&'a [&'a str], &'a [&'a str], &'a str, &'a [&'a str], Option<(&'a [&'a str], i64)>);
        let table: [CommandRow<'_>; 9] = [
            (&["/e", "-x"], &["c"], "", &[], Some((&["/e", "-x", "c"], 1))),
            (&["/e", "-x"], &["c"], "", &["a"], Some((&["/e", "-x", "a"], 1))),
            (&["/e"], &["c"], "/p", &["a"], Some((&["/p", "a"], 0))),
            (&["/e"], &["c"], "/p", &[], Some((&["/p"], 0))),
            (&[], &["/c", "d"], "", &[], Some((&["/c", "d"], -1))),
            (&[], &["/c"], "", &["/a", "b"], Some((&["/a", "b"], -1))),
            (&["/e"], &[], "", &[], Some((&["/e"], 0))),
            (&[], &[], "", &[], None),
            (&[""], &["c"], "", &[], None),
        ];
        for (entrypoint, cmd, path, args, expected) in table {
            let defaults =
                ImageDefaults { entrypoint: strings(entrypoint), cmd: strings(cmd), ..ImageDefaults::default() };
            let got = defaults.command(path.to_owned(), strings(args), |_| false).ok();
            let got = got.map(|Command { path, args, shift }| ([vec![path], args].concat(), shift));
            assert_eq!(
                got,
                expected.map(|(all, shift)| (strings(all), shift)),
                "{entrypoint:?} {cmd:?} {path} {args:?}"
            );
        }
        let none = ImageDefaults::default();
        assert_eq!(none.command(String::new(), strings(&["", "x"]), |index| index == 0), Err(NoCommand::Secret));
    }

    #[test]
    fn a_configuration_is_read() {
        let defaults = from_configuration(
            r#"{"User":"1000:www","Env":["PATH=/bin","A=1","A=2","=x","B","C=x=y"],"Cmd":["sh"],
            "WorkingDir":"/./srv//","StopSignal":"SIGQUIT","Volumes":{"/b//c/":{},"/a":{},"/":{}},"Labels":{"k":"v"},
            "Entrypoint":null,"ExposedPorts":null,"OnBuild":null,"Healthcheck":{"Test":["CMD"]}}"#,
        );
        let defaults = defaults.unwrap();
        let env: Vec<_> = defaults.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["PATH=/bin", "A=2", "B=", "C=x=y"]);
        assert_eq!((&*defaults.user, &*defaults.working_dir, defaults.stop_signal), ("1000:www", "/srv", Some(3)));
        assert_eq!(defaults.volumes, ["/a", "/b/c"]);
        let under: Vec<_> = defaults.env_under(|name| name == "A").map(|(name, _)| &**name).collect();
        assert_eq!(under, ["PATH", "B", "C"]);
        assert_eq!(from_configuration("null").unwrap(), ImageDefaults::default());
    }

    /// Null, `[]`, `[""]`, `""` and a plain string are parsed as in Docker, in each list of a configuration.
    #[test]
    fn image_config_lists_parse_like_docker() {
        let read = |config: &str| {
            let json = format!(
                r#"{{"architecture":"amd64","os":"linux","config":{config},"rootfs":{{"type":"layers","diff_ids":[]}}}}"#
            );
            read_configuration(json.as_bytes()).ok().map(|read| read.config().clone().unwrap_or_default())
        };
        for (field, value, expected) in [
            ("Entrypoint", "null", Some(None)),
            ("Entrypoint", "[]", Some(Some(vec![]))),
            ("Entrypoint", r#"[""]"#, Some(Some(vec![""]))),
            ("Entrypoint", r#""""#, Some(Some(vec![""]))),
            ("Entrypoint", r#""/e""#, Some(Some(vec!["/e"]))),
            ("Cmd", "null", Some(None)),
            ("Cmd", r#""/c x""#, Some(Some(vec!["/c x"]))),
            ("Cmd", "7", None),
            ("Env", "null", Some(None)),
            ("Env", r#""A=1""#, None),
            ("Volumes", "null", Some(None)),
            ("Volumes", "{}", Some(Some(vec![]))),
            ("Volumes", r#"["/v"]"#, None),
        ] {
            let got = read(&format!(r#"{{"{field}":{value}}}"#)).map(|config| match field {
                "Entrypoint" => config.entrypoint().clone(),
                "Cmd" => config.cmd().clone(),
                "Env" => config.env().clone(),
                _ => config.volumes().clone(),
            });
            let expected = expected.map(|list| list.map(|list| list.into_iter().map(str::to_owned).collect()));
            assert_eq!(got, expected, "{field} {value}");
        }
        let other = read(r#"{"Labels":null,"ExposedPorts":null,"User":null,"WorkingDir":null,"StopSignal":null}"#);
        assert!(other.is_some() && read("null").is_some());
    }

    #[test]
    fn entrypoint_of_empty_string_counts_as_none() {
        for entrypoint in ["null", "[]", r#"[""]"#] {
            let defaults = from_configuration(&format!(r#"{{"Entrypoint":{entrypoint},"Cmd":["/c","d"]}}"#)).unwrap();
            let command = defaults.command(String::new(), Vec::new(), |_| false).unwrap();
            assert_eq!((&*command.path, &*command.args), ("/c", &["d".to_owned()][..]), "{entrypoint}");
        }
        let none = from_configuration(r#"{"Entrypoint":[""],"Cmd":[]}"#).unwrap();
        assert_eq!(none.command(String::new(), Vec::new(), |_| false), Err(NoCommand::Missing));
    }

    #[test]
    fn invalid_configuration_reports_all_fields() {
        let bad = from_configuration(
            r#"{"Env":["A=\u0000"],"WorkingDir":"srv","StopSignal":"SIGNOPE","Volumes":{"/a/../b":{}}}"#,
        );
        let fields: Vec<_> = bad.unwrap_err().0.into_iter().map(|violation| violation.field).collect();
        assert_eq!(fields, ["Env", "WorkingDir", "StopSignal", "Volumes"]);
    }
}
