//! A small control plane: runs a program with a secret file, prints the program's output as it arrives, even across a
//! restart of executord, and exits with the program's exit code.
//!
//! ```sh
//! cargo run -p executor-client --example run-with-secret -- /run/executor/executor.sock host /bin/sh -c 'wc -c "$1"' sh /run/demo
//! ```
//! The secret is read from standard input. The program finds it in the file /run/demo.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use executor_client::v1::{LogStream, exit_status};
use executor_client::{Client, Error, Run, Secret, rest_of_log};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (Some(socket), Some(rootfs), Some(program)) = (words.next(), words.next(), words.next()) else {
        eprintln!("usage: run-with-secret SOCKET ROOTFS PROGRAM [ARGUMENT...] < SECRET");
        return ExitCode::from(2);
    };
    let mut secret = Vec::new();
    if let Err(error) = std::io::stdin().read_to_end(&mut secret) {
        eprintln!("cannot read standard input: {error}");
        return ExitCode::from(2);
    }
    let run = Run::new(rootfs, program).args(words).secret_file("/run/demo", Secret::from(secret));
    match perform(&socket, run).await {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(125)
        }
    }
}

async fn perform(socket: &str, run: Run) -> Result<u8, Error> {
    let client = Client::connect(socket).await?;
    let id = client.run(&run).await?.container.id;
    drop(run); // the secret has been sent to executord
    let mut log = client.logs(rest_of_log(&id, 0));
    while let Some(entry) = log.next().await? {
        match entry.stream() {
            LogStream::Stdout => drop(std::io::stdout().write_all(&entry.data)),
            _ => drop(std::io::stderr().write_all(&entry.data)),
        }
    }
    let completed = client.wait(&id).await?;
    client.delete(&id, false).await?;
    let status = completed.result.and_then(|result| result.exit).and_then(|exit| exit.status);
    Ok(match status {
        Some(exit_status::Status::Code(code)) => u8::try_from(code).unwrap_or(125),
        Some(exit_status::Status::Signal(signal)) => u8::try_from(128 + signal).unwrap_or(125),
        None => 125,
    })
}
