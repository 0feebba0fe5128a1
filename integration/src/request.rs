//! Builder of requests: `sh("id").id("a").user("vcap").file("db/password", b"x")`.

use executor_proto::v1::{
    Action, EnvironmentVariable, File, Limits, Redaction, RunAction, RunRequest, SecretArgument, UpdateFilesRequest,
    UserNamespace,
};

/// Memory limit in bytes for a container with a small program.
const SMALL: u64 = 64 << 20;

/// User of a process that attacks its own container.
#[derive(Clone, Copy, Debug)]
pub struct Attacker {
    pub name: &'static str,
    user: &'static str,
    user_namespace: UserNamespace,
}

/// Root and a user in a container with its own user namespace, and root in a container with the host's user namespace.
/// The operator must allow the host's user namespace (`allow_host_userns`).
pub const ATTACKERS: [Attacker; 3] = [
    Attacker { name: "root", user: "root", user_namespace: UserNamespace::Own },
    Attacker { name: "user", user: "1000:1000", user_namespace: UserNamespace::Own },
    Attacker { name: "root-of-the-host", user: "root", user_namespace: UserNamespace::Host },
];

/// Builds a request that runs a program.
pub fn program(path: &str, args: &[&str]) -> RunRequest {
    let run =
        RunAction { path: path.into(), args: args.iter().map(|arg| (*arg).into()).collect(), ..RunAction::default() };
    let limits = Limits { memory_bytes: SMALL, ..Limits::default() };
    RunRequest {
        action: Some(Action { run: Some(run), ..Action::default() }),
        limits: Some(limits),
        ..RunRequest::default()
    }
}

/// Builds a request that runs a shell script.
pub fn sh(script: &str) -> RunRequest {
    program("/bin/sh", &["-c", script])
}

/// Builds a request for a container that runs until it is stopped.
pub fn sleeper(id: &str) -> RunRequest {
    program("/bin/sleep", &["100000"]).id(id)
}

/// Builds a request that replaces or adds files of a container.
pub fn update(id: &str, files: &[(&str, &[u8])]) -> UpdateFilesRequest {
    let file =
        |(path, content): &(&str, &[u8])| File { path: (*path).into(), content: content.to_vec(), ..File::default() };
    UpdateFilesRequest { id: id.into(), files: files.iter().map(file).collect(), ..UpdateFilesRequest::default() }
}

pub trait RequestBuilder: Sized {
    fn id(self, id: &str) -> Self;
    fn rootfs(self, reference: &str) -> Self;
    fn memory(self, bytes: u64) -> Self;
    fn label(self, name: &str, value: &str) -> Self;
    fn grace_ms(self, ms: i64) -> Self;
    fn user(self, user: &str) -> Self;
    fn by(self, attacker: Attacker) -> Self;
    fn env(self, name: &str, value: &str) -> Self;
    /// Adds a secret file to the action.
    fn file(self, path: &str, content: &[u8]) -> Self;
    fn secret_env(self, name: &str, value: &str) -> Self;
    fn secret_arg(self, index: u32, value: &str) -> Self;
    fn runtime_token(self, path: &str) -> Self;
    fn unmasked(self) -> Self;
    /// Applies a closure to the action.
    fn action(self, change: impl FnOnce(&mut RunAction)) -> Self;
}

impl RequestBuilder for RunRequest {
    fn id(mut self, id: &str) -> Self {
        self.id = id.into();
        self
    }

    fn rootfs(mut self, reference: &str) -> Self {
        self.rootfs = reference.into();
        self
    }

    fn memory(mut self, bytes: u64) -> Self {
        self.limits.get_or_insert_default().memory_bytes = bytes;
        self
    }

    fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    fn grace_ms(mut self, ms: i64) -> Self {
        self.grace_period = Some(prost_types::Duration { seconds: ms / 1000, nanos: (ms % 1000) as i32 * 1_000_000 });
        self
    }

    fn user(self, user: &str) -> Self {
        self.action(|run| run.user = user.into())
    }

    fn by(mut self, attacker: Attacker) -> Self {
        self.user_namespace = attacker.user_namespace.into();
        self.user(attacker.user)
    }

    fn env(self, name: &str, value: &str) -> Self {
        self.action(|run| {
            run.env.push(EnvironmentVariable {
                name: name.into(),
                value: value.into(),
                ..EnvironmentVariable::default()
            });
        })
    }

    fn file(self, path: &str, content: &[u8]) -> Self {
        self.action(|run| {
            run.volume_mounted_files.push(File { path: path.into(), content: content.into(), ..File::default() });
        })
    }

    fn secret_env(self, name: &str, value: &str) -> Self {
        self.action(|run| {
            run.secret_environment.push(EnvironmentVariable {
                name: name.into(),
                value: value.into(),
                ..EnvironmentVariable::default()
            });
        })
    }

    fn secret_arg(self, index: u32, value: &str) -> Self {
        self.action(|run| {
            run.secret_arguments.push(SecretArgument { index, value: value.into(), ..SecretArgument::default() });
        })
    }

    fn runtime_token(mut self, path: &str) -> Self {
        self.runtime_token_path = path.into();
        self
    }

    fn unmasked(mut self) -> Self {
        self.set_redaction(Redaction::None);
        self
    }

    fn action(mut self, change: impl FnOnce(&mut RunAction)) -> Self {
        change(self.action.get_or_insert_default().run.get_or_insert_default());
        self
    }
}
