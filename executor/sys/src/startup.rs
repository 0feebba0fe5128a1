//! Performs start-up steps of a daemon that concern panics, the environment, and child processes.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::process::threads;

/// Makes a panic in any thread print its message and abort the process (SIGABRT), regardless of the build's `panic`
/// setting. Without this, a cloned init that unwinds would continue in its parent's code.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

/// Removes variables from this process's environment, so that neither child processes nor libraries use them.
///
/// # Errors
/// Returns an error if the caller has more than one thread, because another thread could be reading the environment.
pub fn remove_variables(names: &[&str]) -> io::Result<()> {
    if threads()? != 1 {
        return Err(io::Error::other("cannot change the environment: this process has more than one thread"));
    }
    for name in names {
        // SAFETY: there is one thread (checked above), so no other thread reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
    Ok(())
}

/// Makes the command run in its own session, so that it survives its parent and gets no signals from the terminal.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and execve only setsid is called, which is async-signal-safe and allocates nothing.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// Environment variable that selects the test below in the child process.
    const PANICS: &str = "EXECUTOR_TEST_PANICS";

    #[test]
    fn a_panic_aborts_the_process() {
        if let Some(hook) = std::env::var_os(PANICS) {
            if hook == "abort" {
                abort_on_panic();
            }
            let _ = std::panic::catch_unwind(|| panic!("as the test wants"));
            return;
        }
        let run = |hook: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "startup::tests::a_panic_aborts_the_process", "--nocapture"]).env(PANICS, hook);
            command.output().unwrap()
        };
        let aborted = run("abort");
        assert_eq!(aborted.status.signal(), Some(6), "{aborted:?}");
        assert!(String::from_utf8_lossy(&aborted.stderr).contains("as the test wants"), "{aborted:?}");
        assert!(run("none").status.success(), "the control: without the hook it unwinds");
    }

    #[test]
    fn a_detached_child_leads_a_session() {
        let mut command = Command::new("sleep");
        let mut child = in_own_session(command.arg("1000")).spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        assert_eq!(nix::unistd::getsid(Some(pid)).unwrap(), pid);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_threaded_process_keeps_its_environment() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(remove_variables(&["HOME"]).is_err());
        drop(stop);
        let _ = thread.join();
    }
}
