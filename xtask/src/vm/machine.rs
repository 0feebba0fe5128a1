//! Runs the virtual machine: qemu boots the kernel directly, without an initramfs, a network or a screen.
//!
//! The first serial port is the console, logged to `target/vm/console.log`. Over the second serial port, the checks
//! send their reports to this program, one per line. Changes to the disk are written to a temporary file of qemu or to
//! a persistent file. The machine stops when the checks report that they are done, when it powers off, or at the
//! deadline. Checks may reboot the machine, which keeps the temporary file. In the other modes, a reboot (a kernel
//! panic) powers the machine off.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::root::Root;
use crate::workspace::{run, step};

/// Memory of the machine, in MiB. Sufficient for the checks, and for a container that reaches its memory limit.
const MEMORY_MB: u32 = 2048;
const PROCESSORS: &str = "2";
/// Option of qemu that powers the machine off instead of rebooting it.
const NO_REBOOT: &str = "-no-reboot";
/// Line with which the guest reports that its checks are done.
const DONE: &str = "@done";

/// A machine that has not been started.
pub(super) struct Machine {
    pub(super) directory: PathBuf,
    pub(super) root: Root,
    pub(super) payload: PathBuf,
    pub(super) accel: String,
    pub(super) deadline: Duration,
    pub(super) changes: Changes,
    pub(super) shown: Option<Shown>,
}

/// Files that hold the machine's memory and page flags. They remain after the machine has stopped.
pub(super) struct Shown {
    /// The machine's memory, from the first byte on.
    pub(super) memory: PathBuf,
    pub(super) memory_mb: u32,
    /// A third disk, to which the machine writes its page flags.
    pub(super) pages: PathBuf,
}

/// Handling of changes to the machine's disk.
pub(super) enum Changes {
    /// Changes are discarded with the machine.
    Discarded,
    /// Changes are stored in this qcow2 file. qemu keeps the tables of newly written blocks in its own memory until the
    /// guest flushes its disk. If qemu is killed, unflushed data is lost, like on a disk with a volatile cache.
    Stored(PathBuf),
}

/// A running machine, which is switched off on drop.
pub(super) struct Running {
    qemu: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Waits for the next line of the guest.
    ///
    /// # Errors
    /// Returns an error at the deadline, or if the machine has stopped.
    pub(super) fn line(&self, until: Instant) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
    }

    /// Cuts the power by killing qemu. Returns the lines that the guest wrote before.
    pub(super) fn cut(mut self) -> anyhow::Result<Vec<String>> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(self.lines.iter().collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Machine {
    /// Boots the machine, passes each line of the checks to `line`, and returns when the checks are done.
    pub(super) fn run(&self, filter: &[String], mut line: impl FnMut(&str)) -> anyhow::Result<()> {
        step(&format!("Booting the virtual machine ({})", self.accelerator()));
        // If the machine reboots because of a kernel panic, the guest reports a failure.
        let running = self.start(&format!("vm.filter={}", filter.join(",")), &[])?;
        let deadline = Instant::now() + self.deadline;
        loop {
            match running.line(deadline) {
                Ok(reported) if reported == DONE => return Ok(()),
                Ok(reported) => line(&reported),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the checks did not complete within {} minutes", self.deadline.as_secs() / 60)
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the machine stopped before its checks completed"),
            }
        }
    }

    /// Boots the machine once with these words added to the kernel's command line. A reboot powers the machine off.
    pub(super) fn boot(&self, words: &str) -> anyhow::Result<Running> {
        self.start(words, &[NO_REBOOT])
    }

    fn start(&self, words: &str, options: &[&str]) -> anyhow::Result<Running> {
        let console = format!("file:{}", self.directory.join("console.log").display());
        let mut command = self.command(words, &["-serial", &console, "-serial", "stdio"]);
        command.args(options);
        let mut qemu = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start qemu")?;
        let output = qemu.stdout.take().context("qemu has no standard output")?;
        let (sender, lines) = channel();
        let running = Running { qemu, lines };
        // The thread exits when qemu exits and the pipe is closed.
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(running)
    }

    /// Boots into a root shell on this terminal.
    pub(super) fn shell(&self) -> anyhow::Result<ExitCode> {
        step("Booting into a shell; leave it with `exit`, or with Ctrl-A X immediately");
        run(&mut self.command("vm.shell", &["-serial", "mon:stdio", "-serial", "null", NO_REBOOT]))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the end of the console's output.
    pub(super) fn console(&self) -> String {
        let text = fs::read(self.directory.join("console.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn command(&self, words: &str, ports: &[&str]) -> Command {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-M", "q35", "-smp", PROCESSORS, "-accel", self.accelerator()]);
        let memory_mb = self.shown.as_ref().map_or(MEMORY_MB, |shown| shown.memory_mb);
        command.args(["-m", &memory_mb.to_string()]);
        if let Some(shown) = &self.shown {
            let memory = format!("size={memory_mb}M,share=on,mem-path={}", escaped(&shown.memory));
            command.args(["-object", &format!("memory-backend-file,id=memory,{memory}")]);
            command.args(["-machine", "memory-backend=memory"]);
        }
        // A nested KVM may reject the flags that describe the vulnerabilities of this CPU.
        command.args([
            "-cpu",
            if self.accelerator() == "kvm" { "host,arch-capabilities=off" } else { "Westmere,+rdrand" },
        ]);
        command.args(["-nodefaults", "-display", "none", "-nic", "none"]).args(ports);
        command.arg("-kernel").arg(&self.root.kernel);
        let kernel = "root=/dev/nvme0n1 rw console=ttyS0 quiet panic=-1 mitigations=off systemd.show_status=0";
        command.arg("-append").arg(format!("{kernel} {words}"));
        let (root, mode) = match &self.changes {
            Changes::Discarded => (&self.root.disk, "format=raw,snapshot=on"),
            Changes::Stored(file) => (file, "format=qcow2,cache=writeback"),
        };
        let pages = self.shown.as_ref().map(|shown| ("pages", &shown.pages, "format=raw"));
        let disks = [("root", root, mode), ("payload", &self.payload, "format=raw,readonly=on")];
        for (name, image, mode) in disks.into_iter().chain(pages) {
            command.args(["-drive", &format!("file={},if=none,id={name},{mode}", escaped(image))]);
            command.args(["-device", &format!("nvme,drive={name},serial={name}")]);
        }
        // Directory of the temporary file with the changes.
        command.env("TMPDIR", &self.directory);
        command
    }

    fn accelerator(&self) -> &'static str {
        // KVM is not the default, because it may exist in a virtual machine but hang.
        if self.accel == "kvm" { "kvm" } else { "tcg,thread=multi" }
    }
}

/// Escapes a path, because an unescaped comma begins another option.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
