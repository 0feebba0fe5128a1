//! Restarts of executord. After a normal exit no output is duplicated or missing. After a kill no output is missing.

use std::collections::BTreeSet;

use executor_proto::v1::Redaction;
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sh};
use integration::wait;

use super::{Message, Receiver, configuration, directory, metric};

/// Prints increasing numbers, and exits on SIGUSR1.
const COUNT: &str = "trap 'echo end; exit' USR1; i=0; while :; do i=$((i+1)); echo $i; sleep 0.002; done";

fn numbers(messages: &[Message]) -> Vec<u64> {
    messages.iter().filter_map(|message| message.text.parse().ok()).collect()
}

#[test]
fn restart_neither_loses_nor_repeats_lines() {
    let setup = Setup::default();
    let socket = directory(&setup).join("log.sock");
    let receiver = Receiver::listen(&socket);
    let config = configuration(&setup, &format!("unix://{}", socket.display()), "");
    let mut daemon = setup.config(&config).start();
    daemon.api.run_to_end(sh("echo before").id("before"));
    daemon.api.started(sh(COUNT).id("counter"));
    let mut connection = receiver.accept();
    let mut all = connection.until("100");
    assert!(daemon.terminate().success());
    while let Some(message) = connection.next() {
        all.push(message);
    }
    daemon.start_again();
    let mut connection = receiver.accept();
    let reached = numbers(&all).len() as u64 + 100;
    all.extend(connection.until(&reached.to_string()));
    let counted = numbers(&all);
    assert_eq!(counted, (1..=reached).collect::<Vec<_>>(), "in order, without duplicates");
    assert_eq!(all.iter().filter(|message| message.text == "before").count(), 1);

    daemon.kill();
    while let Some(message) = connection.next() {
        all.push(message);
    }
    daemon.start_again();
    let mut connection = receiver.accept();
    daemon.api.signal("counter", 10).unwrap();
    all.extend(connection.until("end"));
    let counted: BTreeSet<u64> = numbers(&all).into_iter().collect();
    assert_eq!(counted.len() as u64, *counted.last().unwrap(), "duplicates are permitted, and none is missing");
    assert_eq!(metric(&daemon, "executor_log_unsent_lines_total", "syslog"), 0);
}

/// While the receiver does not accept lines, a printed secret is not in executord's memory, not even after the
/// container is removed. As a control, a secret that is printed unmasked is found in the waiting messages.
#[test]
fn waiting_lines_contain_no_secret_in_memory() {
    let search = |redaction: Redaction| {
        let setup = Setup::default();
        let socket = directory(&setup).join("log.sock");
        let receiver = Receiver::listen(&socket);
        let config = configuration(&setup, &format!("unix://{}", socket.display()), "");
        let daemon = setup.config(&config).start();
        let _connection = receiver.accept();
        let canary = Canary::random(64).unwrap();
        let mut needles = Needles::new().unwrap();
        needles.add("secret", canary.as_bytes());
        // The output is larger than the socket buffers, so a batch of lines waits in executord. Each line contains the
        // secret.
        let script = "yes \"secret=$(cat /etc/cf-service-bindings/db/password)\" | head -n 50000";
        let mut request = sh(script).id("prints").file("db/password", canary.as_bytes());
        request.redaction = redaction.into();
        daemon.api.run_to_end(request);
        wait::until("the lines wait", || {
            (metric(&daemon, "executor_log_waiting_containers", "syslog") == 1).then_some(())
        });
        let found = || {
            let mut search = Search::new(&needles);
            search.process(&Process::from_pid(daemon.pid() as u32).unwrap());
            search.report().found()
        };
        let waiting = found();
        daemon.api.delete("prints", false).unwrap();
        (waiting, found())
    };
    assert_eq!(search(Redaction::Auto), (false, false));
    assert!(search(Redaction::None).0, "control: the unmasked secret is found");
}
