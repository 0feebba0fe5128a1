//! The canaries of an audit, and the container that receives them.

use std::path::PathBuf;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::signals;
use executor_client::v1::{
    Action, Container, EnvironmentVariable, File, RunAction, RunRequest, SecretArgument, UpdateFilesRequest,
};
use executor_residue::{Canary, Needles};

use super::AuditArgs;

/// Kind of input of the audit's container, such as a secret file or an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    OldFile,
    NewFile,
    SecretVariable,
    SecretArgument,
    Variable,
    Argument,
    Token,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::File,
        Self::OldFile,
        Self::NewFile,
        Self::SecretVariable,
        Self::SecretArgument,
        Self::Variable,
        Self::Argument,
        Self::Token,
    ];

    /// Returns the name of the kind in searches and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::OldFile => "file_before_rotation",
            Self::NewFile => "file_after_rotation",
            Self::SecretVariable => "secret_variable",
            Self::SecretArgument => "secret_argument",
            Self::Variable => "plain_variable",
            Self::Argument => "plain_argument",
            Self::Token => "runtime_token",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns true if the input is declared secret. The shim then also holds the input, to mask it in the log.
    pub(crate) fn is_masked(self) -> bool {
        !matches!(self, Self::Variable | Self::Argument)
    }
}

/// Paths of the files in the container, in a directory that no image contains.
const FILE: &str = "/etc/executor-audit/file";
const ROTATED: &str = "/etc/executor-audit/rotated";
const TOKEN: &str = "/etc/executor-audit/token";
/// Directory that contains the targets of the links to secret files. In an older executord, the generations are next to
/// the links.
const GENERATIONS: &str = "/dev/executor-files";
const SECRET_VARIABLE: &str = "EXECUTOR_AUDIT_SECRET";
const VARIABLE: &str = "EXECUTOR_AUDIT_PLAIN";
/// Markers that the script prints after its secrets, and after the new file.
pub(crate) const READY: &str = "audit-ready";
pub(crate) const AGAIN: &str = "audit-again";
/// Script that prints every secret, as a program could do by mistake. The log must not contain the secrets. `$1` to
/// `$3` are the files, `$4` is the secret argument. Inputs that are not declared secret are not printed, because the
/// log may contain such inputs.
const SCRIPT: &str = r#"
show() { for file in "$@"; do if [ -e "$file" ]; then cat "$file"; echo; fi; done; }
trap 'exit 0' TERM
trap 'show "$2"; echo audit-again' USR1
show "$1" "$2" "$3"
printf '%s\n%s\n' "$EXECUTOR_AUDIT_SECRET" "$4"
echo audit-ready
while :; do sleep 1000 & wait $!; done"#;
/// Index of the secret argument among the arguments.
const SECRET_INDEX: usize = 6;

/// Minimum and maximum size of a canary, in bytes. Two files and their paths must fit into 1,000,000 bytes.
pub(crate) const SIZES: std::ops::RangeInclusive<u64> = 64..=450_000;
/// Maximum size of an argument or variable, in bytes (the kernel's limit is 131,072 bytes, with the name).
const STRING_MAX: u64 = 100_000;

/// The canaries, which are wiped when this value is dropped.
pub(crate) struct Inputs {
    id: String,
    canaries: Vec<(Kind, Canary)>,
}

impl Inputs {
    pub(crate) fn random(size: u64) -> Result<Self, Failure> {
        let canary = |kind| {
            let length = match kind {
                Kind::File | Kind::OldFile | Kind::NewFile | Kind::Token => size,
                _ => size.min(STRING_MAX),
            };
            let canary = Canary::random(usize::try_from(length).unwrap_or(usize::MAX));
            Ok((kind, canary.map_err(|error| Failure::System(std::io::Error::other(error)))?))
        };
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Token); // executord creates the token
        let canaries = kinds.map(canary).collect::<Result<_, Failure>>()?;
        Ok(Self { id: format!("audit-{}", uuid::Uuid::new_v4()), canaries })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the canaries as strings to search for.
    pub(crate) fn needles(&self) -> Result<Needles, Failure> {
        let mut needles = Needles::new().map_err(|error| Failure::System(std::io::Error::other(error)))?;
        for (kind, canary) in &self.canaries {
            needles.add(kind.name(), canary.as_bytes());
        }
        Ok(needles)
    }

    fn text(&self, wanted: Kind) -> String {
        let found = self.canaries.iter().find(|(kind, _)| *kind == wanted);
        found.map_or_else(String::new, |(_, canary)| canary.as_str().to_owned())
    }

    fn file(&self, path: &str, kind: Kind) -> File {
        File { path: path.to_owned(), content: self.text(kind).into_bytes(), ..File::default() }
    }

    pub(crate) fn request(&self, args: &AuditArgs) -> RunRequest {
        let words = ["-c", SCRIPT, "executor-audit", FILE, ROTATED, TOKEN, ""];
        let mut arguments: Vec<String> = words.map(str::to_owned).into();
        arguments.push(self.text(Kind::Argument));
        let variable = |name: &str, kind| EnvironmentVariable {
            name: name.to_owned(),
            value: self.text(kind),
            ..EnvironmentVariable::default()
        };
        let run = RunAction {
            path: "/bin/sh".into(),
            args: arguments,
            user: args.user.clone().unwrap_or_default(),
            env: vec![variable(VARIABLE, Kind::Variable)],
            secret_environment: vec![variable(SECRET_VARIABLE, Kind::SecretVariable)],
            secret_arguments: vec![SecretArgument {
                index: SECRET_INDEX as u32,
                value: self.text(Kind::SecretArgument),
                from: None,
            }],
            volume_mounted_files: vec![self.file(FILE, Kind::File), self.file(ROTATED, Kind::OldFile)],
            ..RunAction::default()
        };
        RunRequest {
            id: self.id.clone(),
            action: Some(Action { run: Some(run), ..Action::default() }),
            rootfs: args.rootfs.clone(),
            labels: [("executor.audit".to_owned(), "true".to_owned())].into(),
            runtime_token_path: TOKEN.into(),
            ..RunRequest::default()
        }
    }

    pub(crate) fn update(&self) -> UpdateFilesRequest {
        UpdateFilesRequest {
            id: self.id.clone(),
            files: vec![self.file(ROTATED, Kind::NewFile)],
            signal: signals::USR1,
            ..UpdateFilesRequest::default()
        }
    }
}

/// Returns the host path of a path in the container.
fn seen_from_host(container: &Container, path: &str) -> Option<PathBuf> {
    let pid = container.processes.first()?.pid;
    (pid != 0).then(|| format!("/proc/{pid}/root{path}").into())
}

/// Returns the host paths of the mounts of secret files, and of the directory that their links point to, because the
/// search does not follow links.
pub(crate) fn mounts(container: &Container) -> Vec<PathBuf> {
    let mut points: Vec<&str> = container.files.iter().map(|file| file.mount_point.as_str()).collect();
    points.sort_unstable();
    points.dedup();
    let generations = seen_from_host(container, GENERATIONS).filter(|path| path.is_dir());
    points.into_iter().filter_map(|point| seen_from_host(container, point)).chain(generations).collect()
}

/// Returns the kinds that executord accepted, except [`Kind::NewFile`] and [`Kind::Token`]. An older executord ignores
/// unsupported kinds without an error.
pub(crate) fn accepted_kinds(container: &Container) -> Vec<Kind> {
    let spec = container.spec.clone().unwrap_or_default();
    let mut kinds = vec![Kind::File, Kind::OldFile, Kind::Variable, Kind::Argument];
    if spec.secret_environment_names.iter().any(|name| name == SECRET_VARIABLE) {
        kinds.push(Kind::SecretVariable);
    }
    if spec.secret_argument_indices.contains(&(SECRET_INDEX as u32)) {
        kinds.push(Kind::SecretArgument);
    }
    kinds
}

/// Adds the random part of the container's runtime token, if it has a token. The other part is the container's id and
/// is not secret.
pub(crate) fn add_token(needles: &mut Needles, container: &Container) -> bool {
    let Some(path) = seen_from_host(container, TOKEN) else { return false };
    let Ok(token) = std::fs::read(path).map(zeroize::Zeroizing::new) else { return false };
    let random = token.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    let found = random.len() >= 2 * executor_residue::WINDOW;
    if found {
        needles.add(Kind::Token.name(), random);
    }
    found
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{Process, SecretFile};

    use super::*;

    #[test]
    fn every_kind_is_in_the_request_once() {
        let args = AuditArgs { size: 300, rootfs: "host".into(), user: None, journal: false, kernel_memory: false };
        let inputs = Inputs::random(args.size).unwrap();
        let request = inputs.request(&args);
        let run = request.action.unwrap().run.unwrap();
        assert_eq!(run.args[SECRET_INDEX], "");
        assert_eq!(run.args.iter().filter(|argument| argument.is_empty()).count(), 1);
        assert_eq!(run.args[SECRET_INDEX - 3..SECRET_INDEX], [FILE, ROTATED, TOKEN]);
        assert!(SCRIPT.contains(SECRET_VARIABLE) && SCRIPT.contains(READY) && SCRIPT.contains(AGAIN));
        assert!(!SCRIPT.contains(VARIABLE) && !SCRIPT.contains("$5"), "not printed");
        let values = [
            run.args[SECRET_INDEX + 1].as_bytes(),
            run.env[0].value.as_bytes(),
            run.secret_environment[0].value.as_bytes(),
            run.secret_arguments[0].value.as_bytes(),
            &run.volume_mounted_files[0].content,
            &run.volume_mounted_files[1].content,
            &inputs.update().files[0].content,
        ];
        for (index, value) in values.iter().enumerate() {
            assert_eq!(value.len(), 300);
            assert!(!values[..index].contains(value));
        }
        assert_eq!(inputs.needles().unwrap().labels().len(), 7);
    }

    #[test]
    fn older_executord_reports_fewer_audit_inputs() {
        let mut container = Container::default();
        assert_eq!(accepted_kinds(&container).len(), 4);
        let spec = container.spec.get_or_insert_default();
        spec.secret_environment_names = vec![SECRET_VARIABLE.into()];
        spec.secret_argument_indices = vec![SECRET_INDEX as u32];
        assert_eq!(accepted_kinds(&container).len(), 6);
        let file = |path: &str| SecretFile { path: path.into(), mount_point: "/etc/x".into(), ..SecretFile::default() };
        container.files = vec![file("/etc/x/a"), file("/etc/x/b")];
        assert!(mounts(&container).is_empty(), "no process");
        container.processes = vec![Process { pid: 7, ..Process::default() }];
        assert_eq!(mounts(&container), [PathBuf::from("/proc/7/root/etc/x")]);
    }

    #[test]
    fn input_kinds_round_trip_by_name() {
        assert!(Kind::ALL.into_iter().all(|kind| Kind::from_name(kind.name()) == Some(kind)));
        assert_eq!(Kind::from_name("x"), None);
    }
}
