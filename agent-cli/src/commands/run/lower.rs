//! Converts the flags of `run` to its request.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::{Request, to_proto};
use executor_cli_kit::source::{self, Argument, Content, Flag, Source};
use executor_cli_kit::status::Named;
use executor_cli_kit::text::plain;
use executor_cli_kit::units::Ulimit;
use executor_client::Wiped;
use executor_client::v1::{
    self, Action, EnvironmentVariable, ProviderToken, Redaction, ResourceLimits, RunAction, RunRequest, SecretArgument,
};

use super::args::{RedactArg, RunArgs};
use super::logging::pairs;
use super::program::Program;
use crate::actions;
use crate::variables::environment;

/// Reads the sources of files and variables and builds the request. Generates the id, so that the client can repeat the
/// same request after a lost connection.
pub(super) fn lower(
    mut args: RunArgs,
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Request, Failure> {
    let flags = [
        (Flag::File, &args.files),
        (Flag::PublicFile, &args.public_files),
        (Flag::SecretEnv, &args.secret_env),
        (Flag::SecretArg, &args.secret_args),
        (Flag::ProviderToken, &args.provider_tokens),
    ];
    let sourced = flags.into_iter().flat_map(|(flag, texts)| texts.iter().map(move |text| (flag, text)));
    let sourced = sourced.map(|(flag, text)| Argument::parse(flag, text)).collect::<Result<Vec<_>, _>>()?;
    if args.image.takes_stdin() && sourced.iter().any(|argument| argument.source == Source::Stdin) {
        let why = "standard input is already the password of --registry-password; use @FILE or @env:VARIABLE for the other value";
        return Err(Failure::Usage(why.into()));
    }
    let named = named(&args);
    let actions = args.action.take().map(|file| actions::read(&file)).transpose()?;
    let (rootfs, Program { path, args: mut arguments }) = match &actions {
        None => args.image.rootfs_and_program(args.rootfs.take(), std::mem::take(&mut args.command))?,
        Some(_) => {
            let rootfs = args.image.rootfs(args.rootfs.take(), &args.command)?;
            (rootfs, Program { path: String::new(), args: Vec::new() })
        }
    };
    let mut nofile = args.nofile;
    let mut ulimits = BTreeMap::new();
    for limit in std::mem::take(&mut args.ulimit) {
        match limit {
            Ulimit::Files(files) => nofile = Some(files),
            Ulimit::Of(limit) => drop(ulimits.insert(limit.name.clone(), limit)),
        }
    }
    let secrets = Secrets::sort(source::read_all(sourced, stdin, variable)?)?;
    append_placeholders(&mut arguments, &secrets.arguments)?;
    let run = RunAction {
        path,
        args: arguments,
        dir: args.dir.unwrap_or_default(),
        env: environment(&args.env_file, args.env, variable)?,
        resource_limits: nofile.map(|nofile| ResourceLimits { nofile: Some(nofile), ..ResourceLimits::default() }),
        user: args.user.unwrap_or_default(),
        log_source: args.log_source.unwrap_or_default(),
        suppress_log_output: args.no_logs,
        volume_mounted_files: secrets.files,
        secret_environment: secrets.environment,
        secret_arguments: secrets.arguments,
    };
    let mut request = RunRequest {
        reserved: args.reservation.is_some(),
        nonce: args.name.as_ref().map_or(String::new(), |_| uuid::Uuid::new_v4().to_string()),
        id: args.reservation.or(args.name).or(args.id).unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
        action: Some(Action { run: Some(run), ..Action::default() }),
        rootfs,
        limits: Some(args.limits.limits()),
        labels: pairs("--label", args.labels)?,
        grace_period: args.grace.map(to_proto).transpose()?,
        outputs: args.outputs.declared(),
        redaction: match args.redact {
            RedactArg::Auto => Redaction::Auto,
            RedactArg::All => Redaction::All,
            RedactArg::None => Redaction::None,
        }
        .into(),
        runtime_token_path: args.runtime_token.unwrap_or_default(),
        provider_tokens: secrets.tokens,
        file_directories: args.file_directories,
        writable_files: args.writable_files.map(|most| v1::WritableFiles { bytes_max: most.unwrap_or(0) }),
        remove_when_completed: args.rm && args.detach,
        // The last occurrence of a name wins, as in docker.
        ulimits: ulimits.into_values().collect(),
        keep_until_deleted: args.keep_until_deleted,
        keep_environment: args.keep_env,
        hold: args.hold,
        pod: args.pod.unwrap_or_default(),
        ..RunRequest::default()
    };
    if let Some(actions) = actions {
        apply_actions(&mut request, actions);
    }
    args.network.apply(&mut request)?;
    args.logging.apply(&mut request)?;
    args.surroundings.apply(&mut request);
    args.volumes.apply(&mut request);
    args.checks.apply(&mut request)?;
    args.message.apply(&mut request)?;
    args.restart.apply(&mut request)?;
    args.isolation.apply(&mut request)?;
    args.identity.apply(&mut request)?;
    args.host_options.apply(&mut request)?;
    args.image.apply(&mut request, stdin, variable)?;
    args.streams.apply(&mut request);
    Ok(Request::from_request(request).named(named))
}

/// Returns the user's names for the run, its id and its root file system, for error messages. A generated id appears in
/// no error.
fn named(args: &RunArgs) -> Named {
    let ids = [("--reservation", &args.reservation), ("--name", &args.name), ("--id", &args.id)];
    let id = ids.into_iter().find_map(|(flag, id)| Some((flag, id.as_ref()?)));
    let doing = match (id, &args.image.image, &args.rootfs) {
        _ if args.dry_run => "run --dry-run".to_owned(),
        (Some((flag, id)), ..) => format!("run {flag} {}", plain(id)),
        (None, Some(image), _) => format!("run {}", plain(image)),
        (None, None, Some(rootfs)) => format!("run --rootfs {}", plain(rootfs)),
        (None, None, None) => "run".to_owned(),
    };
    let image = args.image.image.is_some().then_some(("rootfs", "IMAGE"));
    Named { doing, fields: id.map(|(flag, _)| ("id", flag)).into_iter().chain(image).collect() }
}

/// Replaces the program of a request with a tree of actions. The flags that apply to the program then apply to all
/// processes.
fn apply_actions(request: &mut RunRequest, mut actions: Wiped<RunRequest>) {
    let run = request.action.take().and_then(|action| action.run).unwrap_or_default();
    (request.setup, request.action) = (actions.setup.take(), actions.action.take());
    request.sidecars = std::mem::take(&mut actions.sidecars);
    (request.restart_policy, request.monitor) = (actions.restart_policy.take(), actions.monitor.take());
    request.environment = std::mem::take(&mut actions.environment);
    // A variable on the command line replaces a variable of the same name in the file.
    request.environment.retain(|shared| run.env.iter().all(|own| own.name != shared.name));
    request.environment.extend(run.env);
    request.volume_mounted_files.extend(run.volume_mounted_files);
    let own = run.log_source;
    request.log_source = if own.is_empty() { std::mem::take(&mut actions.log_source) } else { own };
}

/// Secret inputs of a request, grouped by target.
#[derive(Default)]
struct Secrets {
    files: Vec<v1::File>,
    environment: Vec<EnvironmentVariable>,
    /// Arguments, sorted by index.
    arguments: Vec<SecretArgument>,
    tokens: Vec<ProviderToken>,
}

impl Secrets {
    fn sort(contents: Vec<Content>) -> Result<Self, Failure> {
        let mut secrets = Self::default();
        for mut content in contents {
            let key = content.key.clone();
            match content.flag {
                Flag::File | Flag::PublicFile => secrets.files.push(content.into_file()),
                Flag::Param => {} // only for bundles
                Flag::SecretEnv => {
                    let from = content.take_reference();
                    let value = std::mem::take(&mut *content.into_value()?);
                    secrets
                        .environment
                        .push(EnvironmentVariable { from, ..EnvironmentVariable::from_bytes(key, value) });
                }
                Flag::SecretArg => {
                    let index = key.parse().map_err(|_| {
                        Failure::Usage("--secret-arg takes INDEX=SOURCE; INDEX counts the arguments from 0".into())
                    })?;
                    let from = content.take_reference();
                    let value = std::mem::take(&mut *content.into_text()?);
                    secrets.arguments.push(SecretArgument { index, value, from });
                }
                Flag::ProviderToken => secrets.tokens.push(content.into_provider_token()?),
                Flag::VcapServices | Flag::RegistryPassword => {} // read elsewhere
            }
        }
        secrets.arguments.sort_by_key(|argument| argument.index);
        Ok(secrets)
    }
}

/// Appends an empty argument for each secret argument that directly follows the last argument.
fn append_placeholders(arguments: &mut Vec<String>, secrets: &[SecretArgument]) -> Result<(), Failure> {
    for SecretArgument { index, .. } in secrets {
        match usize::try_from(*index).unwrap_or(usize::MAX).cmp(&arguments.len()) {
            std::cmp::Ordering::Less => {} // executord checks that the argument is empty
            std::cmp::Ordering::Equal => arguments.push(String::new()),
            std::cmp::Ordering::Greater => {
                let count = arguments.len();
                return Err(Failure::Usage(format!(
                    "--secret-arg {index}: there are {count} arguments, counted from 0; the next index is {count}"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use executor_client::v1::Limits;

    fn build(line: &[&str]) -> Result<Request, Failure> {
        let line: Vec<_> = [&["agent-cli", "run"], line].concat().into_iter().map(OsString::from).collect();
        let cli = crate::cli::Cli::parse_line(&line).unwrap();
        let crate::commands::Command::Run(args) = cli.command else { panic!("not run") };
        let variable = |name: &str| (name == "TOKEN").then(|| OsString::from("canary-0b2f"));
        lower(*args, &mut "from stdin".as_bytes(), &variable)
    }

    #[test]
    fn every_flag_arrives() {
        let request = build(&[
            "--id",
            "web-1",
            "--rootfs",
            "dir:/srv/root",
            "--user",
            "vcap:vcap",
            "--dir",
            "/home",
            "--env",
            "A=1=2",
            "--env",
            "TOKEN",
            "--file",
            "db/password=@-",
            "--file",
            "/abs=@env:TOKEN",
            "--memory",
            "64M",
            "--pids",
            "20",
            "--cpus",
            "0.5",
            "--grace",
            "1m30s",
            "--label",
            "app=web",
            "--network",
            "host",
            "--nofile",
            "1024",
            "--log-source",
            "APP",
            "--no-logs",
            "--output-dir",
            "/srv/out",
            "--output-max",
            "1K",
            "--output-to",
            "here",
            "--public-file",
            "db/type=@env:TOKEN",
            "--secret-env",
            "PW=@env:TOKEN",
            "--secret-arg",
            "3=@env:TOKEN",
            "--secret-arg",
            "2=@env:TOKEN",
            "--redact",
            "all",
            "--runtime-token",
            "executor/token",
            "--",
            "/bin/sh",
            "-c",
            "exit 3",
        ])
        .unwrap();
        let message = request.run().message().clone();
        let outputs = message.outputs.unwrap();
        assert_eq!((outputs.directory.as_str(), outputs.files.len(), outputs.bytes_max), ("/srv/out", 0, 1024));
        let run = message.action.unwrap().run.unwrap();
        assert_eq!((message.id.as_str(), message.rootfs.as_str()), ("web-1", "dir:/srv/root"));
        assert_eq!(
            message.limits,
            Some(Limits { memory_bytes: 64 << 20, pids: 20, cpu_millis: 500, ..Limits::default() })
        );
        assert_eq!(message.grace_period, Some(prost_types::Duration { seconds: 90, nanos: 0 }));
        assert_eq!(message.network, v1::Network::Host as i32);
        assert_eq!(message.labels, HashMap::from([("app".to_owned(), "web".to_owned())]));
        assert_eq!((run.path.as_str(), run.args.join("|").as_str()), ("/bin/sh", "-c|exit 3||"));
        let secret: Vec<_> = run.secret_arguments.iter().map(|a| (a.index, a.value.as_str())).collect();
        assert_eq!(secret, [(2, "canary-0b2f"), (3, "canary-0b2f")]);
        assert_eq!(
            (run.secret_environment[0].name.as_str(), run.secret_environment[0].value.as_str()),
            ("PW", "canary-0b2f")
        );
        assert_eq!((message.redaction, message.runtime_token_path.as_str()), (Redaction::All as i32, "executor/token"));
        assert_eq!((run.user.as_str(), run.dir.as_str(), run.log_source.as_str()), ("vcap:vcap", "/home", "APP"));
        assert_eq!(run.resource_limits.unwrap().nofile, Some(1024));
        assert!(run.suppress_log_output);
        let env: Vec<_> = run.env.iter().map(|v| (v.name.as_str(), v.value.as_str())).collect();
        assert_eq!(env, [("A", "1=2"), ("TOKEN", "canary-0b2f")]);
        let files: Vec<_> = run.volume_mounted_files.iter().map(|f| (f.path.as_str(), &f.content[..])).collect();
        assert_eq!(files, [("db/password", &b"from stdin"[..]), ("/abs", b"canary-0b2f"), ("db/type", b"canary-0b2f")]);
        assert_eq!(run.volume_mounted_files.iter().map(|f| f.public).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn unset_options_are_not_sent() {
        let request = build(&["--", "true"]).unwrap();
        let message = request.run().message().clone();
        assert_eq!(uuid::Uuid::parse_str(&message.id).unwrap().get_version_num(), 4);
        assert_eq!(message.limits, Some(Limits::default()));
        assert_eq!((message.grace_period, message.network, message.outputs), (None, 0, None));
        let run = message.action.unwrap().run.unwrap();
        assert_eq!((run.resource_limits, run.suppress_log_output), (None, false));
    }

    /// The size of `--writable-files` must be part of the flag's word, because the next word would otherwise be parsed
    /// as the size.
    #[test]
    fn writable_files_with_and_without_a_size() {
        let table: [(&[&str], Option<u64>); 4] = [
            (&["--", "x"], None),
            (&["--writable-files", "--", "x"], Some(0)),
            (&["--writable-files", "debian", "x"], Some(0)),
            (&["--writable-files=1.5M", "--", "x"], Some(3 << 19)),
        ];
        for (line, expected) in table {
            let asked = build(line).unwrap().run().message().clone().writable_files;
            assert_eq!(asked.map(|asked| asked.bytes_max), expected, "{line:?}");
        }
    }

    /// Words after the image or the program are its arguments. Without an image and `--rootfs`, `--` must precede the
    /// program.
    #[test]
    fn words_after_image_are_arguments() {
        let table: [(&[&str], &str); 8] = [
            (&["debian", "sh", "-c", "x", "--rm"], "docker://debian  sh -c x --rm"),
            (&["--rm", "-e", "A=1", "debian", "--", "sh", "-c"], "docker://debian  sh -c"),
            (&["debian", "sh", "--", "x"], "docker://debian  sh -- x"),
            (&["--", "sh", "-c", "x"], "host sh -c x"),
            (&["--rootfs", "dir:/r", "sh", "-c", "--", "x"], "dir:/r sh -c -- x"),
            (&["--rootfs", "dir:/r", "--", "sh", "-c"], "dir:/r sh -c"),
            (&["--entrypoint", "", "oci:/a", "sh", "--name"], "oci:/a sh --name"),
            (&["--entrypoint", "/e", "oci:/a", "-x"], "oci:/a /e -x"),
        ];
        for (line, expected) in table {
            let message = build(line).unwrap().run().message().clone();
            let run = message.action.unwrap().run.unwrap();
            assert_eq!(format!("{} {} {}", message.rootfs, run.path, run.args.join(" ")), expected, "{line:?}");
        }
    }

    /// `--action` after the image is rejected.
    #[test]
    fn action_behind_image_is_refused() {
        let read = |line: &[&str]| {
            let line: Vec<_> = [&["agent-cli", "run"], line].concat().into_iter().map(OsString::from).collect();
            crate::cli::Cli::parse_line(&line).map(drop).map_err(|error| error.to_string())
        };
        for line in [&["debian", "--action", "tree.yaml"][..], &["debian", "--action=tree.yaml"]] {
            let refused = read(line).unwrap_err();
            assert!(refused.contains("run --action FILE debian"), "{refused}");
        }
        read(&["debian", "--", "--action", "x"]).unwrap();
        read(&["debian", "sh", "--action", "x"]).unwrap();
    }

    /// `--health-start-period` sets the start timeout of a monitor, which only a file can have.
    #[test]
    fn start_period_limits_monitor() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "action: {run: {path: /a}}\nmonitor: {run: {path: /b}}\n").unwrap();
        let path = file.path().to_str().unwrap();
        let message = build(&["--action", path, "--health-start-period", "90s"]).unwrap().run().message().clone();
        assert_eq!(message.checks.unwrap().start_timeout.unwrap().seconds, 90);
        assert!(build(&["--action", path]).unwrap().run().message().checks.is_none());
        let refused =
            build(&["--action", path, "--health-start-period", "90s", "--health-retries", "2"]).err().unwrap();
        assert!(refused.to_string().contains("--health-retries need a check"), "{refused}");
        let refused = build(&["--health-start-period", "90s", "--", "x"]).err().unwrap();
        assert!(refused.to_string().contains("or a monitor"), "{refused}");
    }

    #[test]
    fn docker_flag_names_are_accepted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# x\nA=1\nB=2\nTOKEN\n").unwrap();
        let path = file.path().to_str().unwrap();
        let line = [
            "--name",
            "n",
            "-w",
            "/x",
            "--pids-limit",
            "9",
            "--ulimit",
            "nofile=99:99",
            "--stop-timeout",
            "7",
            "-m",
            "64m",
        ];
        let line =
            [&line[..], &["--env-file", path, "-e", "B=3", "-e", "C=4", "-e", "C=5", "-d", "--rm", "--", "x"]].concat();
        let message = build(&line).unwrap().run().message().clone();
        let run = message.action.unwrap().run.unwrap();
        let limits = message.limits.unwrap();
        assert_eq!((message.id.as_str(), run.dir.as_str(), limits.pids, limits.memory_bytes), ("n", "/x", 9, 64 << 20));
        assert_eq!((run.resource_limits.unwrap().nofile, message.grace_period.unwrap().seconds), (Some(99), 7));
        let env: Vec<_> = run.env.iter().map(|v| format!("{}={}", v.name, v.value)).collect();
        assert_eq!(env, ["A=1", "TOKEN=canary-0b2f", "B=3", "C=5"]);
        assert!(message.remove_when_completed);
        assert!(
            !build(&["--rm", "--", "x"]).unwrap().run().message().clone().remove_when_completed,
            "without --detach, agent-cli removes the container"
        );
        let line = ["--ulimit", "nproc=5", "--ulimit", "core=0", "--ulimit", "nproc=6:-1", "--", "x"];
        let ulimits = build(&line).unwrap().run().message().ulimits.clone();
        let ulimits: Vec<_> = ulimits.iter().map(|one| (&*one.name, one.soft, one.hard)).collect();
        assert_eq!(ulimits, [("core", 0, 0), ("nproc", 6, -1)]);
        let line = ["-m", "64m", "--memory-swap", "96m", "--memory-reservation", "32m", "--cpuset-cpus", "0-1"];
        let line = [&line[..], &["--oom-score-adj", "-5", "--device", "fuse:r", "--", "x"]].concat();
        let message = build(&line).unwrap().run().message().clone();
        let limits = message.limits.unwrap();
        assert_eq!((limits.swap_bytes, limits.memory_reservation_bytes), (Some(32 << 20), 32 << 20));
        assert_eq!((&*limits.cpuset_cpus, message.oom_score_adj), ("0-1", Some(-5)));
        assert_eq!((&*message.devices[0].name, &*message.devices[0].permissions), ("fuse", "r"));
    }

    #[test]
    fn invalid_options_fail() {
        let table: [(&[&str], &str); 9] = [
            (&["--secret-env", "A=hunter2", "--", "x"], "--secret-env A=...: the value itself cannot be given"),
            (&["--secret-arg", "hunter2", "--", "x"], "--secret-arg takes INDEX=@FILE"),
            (&["--secret-arg", "x=@env:TOKEN", "--", "x"], "INDEX counts the arguments from 0"),
            (&["--secret-arg", "2=@env:TOKEN", "--", "x", "y"], "--secret-arg 2: there are 1 arguments"),
            (&["--secret-env", "A=@-", "--public-file", "b=@-", "--", "x"], "already the content of --public-file b"),
            (&["--label", "a=1", "--label", "a=2", "--", "x"], "--label a is given twice"),
            (&["--env", "NOPE", "--", "x"], "the environment has no NOPE"),
            (&["--env", "=v", "--", "x"], "--env takes NAME=VALUE"),
            (&["--file", "a=hunter2", "--", "x"], "cannot be given"),
        ];
        for (line, expected) in table {
            let error = build(line).err().unwrap().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
