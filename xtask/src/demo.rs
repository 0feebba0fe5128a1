//! `cargo xtask demo`: runs a container with a secret file, and proves that no copy of the secret remains.
//!
//! The demo starts a private daemon as root in a temporary directory, which is removed at the end, and generates a
//! random secret. It prints the process's output, the executor's result, and a list of claims, each verified from
//! outside. If a claim fails, the demo fails. `agent-cli audit` searches for residue and shows its own controls.

mod container;
mod daemon;
mod host;
mod readme;
mod screen;
mod secret;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};

use self::container::{Container, ID, OWNER};
use self::daemon::Daemon;
use self::host::{cgroups, mounts};
use self::screen::Screen;
use self::secret::Secret;
use crate::dist;
use crate::workspace::{Workspace, is_root};

/// Options of the demo.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build and run the programs that ship, which takes several times as long to build
    #[arg(long)]
    release: bool,
}

/// Builds the programs, runs the demo and checks its claims; fails if a claim fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "containers require root: run the demo as root (sudo)");
    let programs = if options.release {
        dist::build(workspace)?;
        workspace.dist()
    } else {
        dist::build_unoptimized(workspace)?
    };
    Ok(show(&programs)?.verdict())
}

/// Runs the demo with the programs in a directory, and checks its claims and the output that the README shows.
pub(crate) fn test(workspace: &Workspace, programs: &Path) -> anyhow::Result<ExitCode> {
    let mut screen = show(programs)?;
    let readme = std::fs::read_to_string(workspace.root.join("README.md")).context("cannot read README.md")?;
    let verdict = screen.verdict();
    readme::check(&readme, screen.lines())?;
    Ok(verdict)
}

/// Runs the demo with the programs in a directory.
fn show(programs: &Path) -> anyhow::Result<Screen> {
    let mut screen = Screen::new();
    screen.title("A secret file in a container, and a search for copies of it");

    let secret = Secret::random()?;
    let daemon = Daemon::start(programs)?;
    let command = "agent-cli run --user 1000:1000 --file /etc/cf-service-bindings/db/password=@- -- sh -c ...";
    screen.heading("A private daemon runs this");
    screen.quote(&[command.to_owned(), format!("with {secret} on standard input")]);

    let running = Container::run(&daemon, &secret)?;
    report_inside(&mut screen, &running, &secret)?;
    let cgroup = report_host(&mut screen, &daemon, &running)?;
    let ended = running.stop()?;
    report_result(&mut screen, &ended);
    report_exit(&mut screen, &daemon)?;
    daemon.agent(&["rm", ID])?;
    report_audit(&mut screen, &daemon)?;
    report_daemon_exit(&mut screen, daemon, &secret, &cgroup)?;
    Ok(screen)
}

fn report_inside(screen: &mut Screen, container: &Container, secret: &Secret) -> anyhow::Result<()> {
    screen.heading("Inside the container");
    screen.facts(container.facts());
    let fact = |name: &str| container.fact(name);
    let mount: Vec<_> = fact("mount").split(' ').collect();
    let has = |options: Option<&&str>, wanted: &[&str]| {
        options.is_some_and(|options| wanted.iter().all(|one| options.split(',').any(|option| option == *one)))
    };
    screen.claim("the process read the secret that was sent", fact("sha256") == secret.sha256()?);
    screen.claim("the secret is masked in the output", fact("printed") == "[REDACTED:db/password]");
    screen.claim(
        "the file is 0600 and belongs to the user of the process",
        fact("mode and owner") == format!("600 {OWNER}"),
    );
    screen.claim(
        "the directory is 0700 and belongs to the user of the process",
        fact("directory") == format!("700 {OWNER}"),
    );
    screen.claim("the mount is ro,nosuid,nodev,noexec", has(mount.get(5), &["ro", "nosuid", "nodev", "noexec"]));
    let filesystem = mount.iter().position(|word| *word == "-").map_or(&[][..], |at| &mount[at + 1..]);
    let noswap = filesystem.first() == Some(&"ramfs") || has(filesystem.get(2), &["noswap"]);
    screen.claim("no page of the secret can reach a swap device (tmpfs noswap, or ramfs)", noswap);
    screen.claim("writing to the file is refused", fact("write").contains("Read-only"));
    screen.claim("a seccomp filter is in force, and no_new_privs", fact("seccomp, no_new_privs") == "2 1");
    screen.claim("the process sees no network interface except lo", fact("network") == "lo");
    Ok(())
}

fn report_host(screen: &mut Screen, daemon: &Daemon, container: &Container) -> anyhow::Result<String> {
    screen.heading("While the container runs, seen from the host");
    let processes = daemon.processes()?;
    let init = container.pid(&processes)?;
    screen.quote(&processes.iter().map(ToString::to_string).collect::<Vec<_>>());
    screen.control("the container has a cgroup", !cgroups(ID)?.is_empty());
    let daemons_cgroup = cgroup_above(&cgroups(ID)?)?;
    let seen_inside = mounts(&init.to_string(), daemon.directory())?;
    screen.control("the tmpfs shows in the container's mount table", !seen_inside.is_empty());
    screen.claim("the tmpfs does not show in the host's mount table", mounts("self", daemon.directory())?.is_empty());
    Ok(daemons_cgroup)
}

/// Returns the name of the cgroup that contains the cgroups of the daemon's containers.
fn cgroup_above(cgroups: &[PathBuf]) -> anyhow::Result<String> {
    let above = cgroups.first().and_then(|path| path.parent()?.file_name()?.to_str());
    Ok(above.context("the container has no cgroup")?.to_owned())
}

fn report_result(screen: &mut Screen, ended: &container::ContainerResult) {
    screen.heading("The result");
    screen.facts(ended.facts());
    screen.claim("the process exited by itself on SIGTERM, with exit status 0", ended.exit_status == Some(0));
    let wiped = ended.wipe.files == 1 && ended.wipe.bytes == secret::LENGTH && ended.wipe.verified;
    screen.claim("the receipt: one file, all its bytes, read back as zero", wiped);
}

fn report_exit(screen: &mut Screen, daemon: &Daemon) -> anyhow::Result<()> {
    screen.heading("After the exit of the container");
    let left = daemon.processes()?;
    screen.claim("no process of the container is left", !left.iter().any(|process| process.contained));
    screen.claim("no cgroup of the container is left", cgroups(ID)?.is_empty());
    screen.claim("no mount of the container is left", mounts("self", daemon.directory())?.is_empty());
    Ok(())
}

/// Runs `agent-cli audit` and prints its results: the search for residue of files, rotated files, variables, arguments
/// and the runtime token.
fn report_audit(screen: &mut Screen, daemon: &Daemon) -> anyhow::Result<()> {
    screen.heading("agent-cli audit: another container with every kind of secret, and a search for the secrets");
    let audit = daemon.agent_command().arg("audit").output().context("cannot start agent-cli audit")?;
    let reported = String::from_utf8_lossy(&audit.stdout).into_owned();
    screen.quote(&reported.lines().map(str::to_owned).collect::<Vec<_>>());
    std::io::stderr().write_all(&audit.stderr)?;
    screen.claim("no secret is left one second after the exit of the container", audit.status.success());
    Ok(())
}

fn report_daemon_exit(screen: &mut Screen, daemon: Daemon, secret: &Secret, cgroup: &str) -> anyhow::Result<()> {
    screen.heading("After the daemon's exit");
    let (left, processes) = daemon.stop()?;
    screen.claim("no process of the daemon is left", processes.is_empty());
    screen.claim("no cgroup of the daemon is left", cgroups(cgroup)?.is_empty());
    let entries =
        std::fs::read_dir(left.path())?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    screen.claim("the run and state directories are removed", entries == [daemon::LOG]);
    let log = std::fs::read(left.path().join(daemon::LOG))?;
    screen.claim(&format!("the log of {} bytes does not contain the secret", log.len()), !secret.is_in(&log));
    Ok(())
}
