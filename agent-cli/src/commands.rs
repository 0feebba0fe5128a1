//! The commands, one module each, and what they have in common: a connection, an output, a look.

mod archive;
mod attach;
mod audit;
mod bindings;
mod cnab;
mod cp;
mod events;
mod exec;
mod feed;
mod generate;
mod image;
mod info;
mod inspect;
mod logs;
mod ps;
mod rm;
mod rotate;
mod run;
mod secrets;
mod signal;
mod stop;
mod wait;

pub(crate) use cnab::{Ended, drive};
use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, GetRequest};
pub(crate) use image::send::OnDisk;
use serde::Serialize;
use tonic::Status;

use crate::bindings::Delivery;
use crate::cli::{AttachArgs, AuditArgs, Cli, Command, DeliveryArgs, ExecArgs, Global, IdArg, LogsArgs, SignalArgs};
use crate::connect::{Client, DEFAULT_SOCKET};
use crate::exit::{OURS, Outcome};
use crate::failure::Failure;
use crate::ids;
use crate::interrupt::Interrupts;
use crate::local::PrivateDaemon;
use crate::output::Output;
use crate::request::{Request, forbid_dumps};
use crate::source::Flag;
use crate::view::style::Style;
use crate::view::{human, json};

/// What a command works with.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) output: Output,
    pub(crate) style: Style,
    pub(crate) json: bool,
}

/// Carries a command out; the answer is the status to exit with.
pub(crate) fn execute(cli: Cli) -> Result<u8, Failure> {
    cli.check()?;
    let Cli { global, command } = cli;
    // Secrets are read before anything is started: an error costs nothing then, and Ctrl-C just ends us.
    let job = match command {
        Command::Generate(args) => return generate::generate(&args),
        Command::Bindings(command) => {
            forbid_dumps();
            return bindings::local(command, global.json);
        }
        Command::Run(args) => {
            let mut args = args;
            let fetch_to = args.outputs.output_to.take();
            let sources = [&args.files, &args.public_files, &args.secret_env, &args.secret_args];
            args.streams.check(args.detach, sources.into_iter().flatten())?;
            let streams = args.streams.clone();
            let ending =
                run::AtTheEnd { detach: args.detach, keep: args.keep, fetch_to, can_stay: !global.local, streams };
            let others = [
                (Flag::File, &*args.files),
                (Flag::PublicFile, &args.public_files),
                (Flag::SecretEnv, &args.secret_env),
                (Flag::SecretArg, &args.secret_args),
            ];
            let delivery = delivery(&args.bindings, &others)?;
            let request = Request::build(*args, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))?;
            if let Some(delivery) = &delivery {
                delivery.check(&request)?;
            }
            if let (Some(to), Some(outputs)) = (&ending.fetch_to, request.outputs()) {
                cp::check_destination(outputs, to)?;
            }
            forbid_dumps();
            Job::Run(request, delivery, ending)
        }
        Command::Audit(args) => {
            audit::require_root()?;
            forbid_dumps();
            Job::Audit(args)
        }
        Command::Cnab(args) => match cnab::begin(&global, &args)? {
            cnab::Begun::Done(status) => return Ok(status),
            cnab::Begun::Work(work) => {
                forbid_dumps();
                Job::Cnab(work)
            }
        },
        Command::Rotate(args) => {
            let others = [(Flag::File, &*args.files), (Flag::PublicFile, &args.public_files)];
            let delivery = delivery(&args.bindings, &others)?;
            let request = rotate::Request::build(args, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))?;
            forbid_dumps();
            Job::Rotate(request, delivery)
        }
        Command::Secrets(args) => {
            forbid_dumps();
            Job::Other(Command::Secrets(args))
        }
        Command::Image(args) => {
            forbid_dumps();
            Job::Image(image::Job::build(args.command)?)
        }
        other => Job::Other(other),
    };
    // One thread: a private executord is told of the death of the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
    let result = runtime.block_on(with_daemon(&global, job));
    // Whatever still waits for a daemon that does not answer is not waited for.
    runtime.shutdown_background();
    result
}

enum Job {
    Run(Request, Option<Delivery>, run::AtTheEnd),
    Audit(AuditArgs),
    Rotate(rotate::Request, Option<Delivery>),
    Image(image::Job),
    Cnab(Box<cnab::Work>),
    Other(Command),
}

/// The bindings that the flags name, read before anything is started.
/// `others` may want standard input, too.
fn delivery(args: &DeliveryArgs, others: &[(Flag, &[String])]) -> Result<Option<Delivery>, Failure> {
    Delivery::read(args, others, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))
}

/// Connects, or starts a private executord and takes it down at the end.
async fn with_daemon(global: &Global, job: Job) -> Result<u8, Failure> {
    let output = Output::start().map_err(Failure::System)?;
    let session = |client| Session { client, output: output.clone(), style: Style::detect(), json: global.json };
    if !global.local {
        let default = if matches!(job, Job::Other(Command::Secrets(_))) { secrets::SOCKET } else { DEFAULT_SOCKET };
        let client = Client::connect(&global.socket(default)).await?;
        return match job {
            Job::Run(request, delivery, ending) => {
                let mut interrupts = Interrupts::install().map_err(Failure::System)?;
                let result = run::run(&session(client), request, delivery, ending, &mut interrupts).await;
                settle(&output, result, &mut interrupts).await
            }
            Job::Audit(args) => {
                let mut interrupts = Interrupts::install().map_err(Failure::System)?;
                let result = audit::audit(&session(client), args, &mut interrupts).await;
                settle(&output, result, &mut interrupts).await
            }
            Job::Cnab(work) => {
                let mut interrupts = Interrupts::install().map_err(Failure::System)?;
                let result = cnab::carry_out(&session(client), work, &mut interrupts).await;
                settle(&output, result, &mut interrupts).await
            }
            // A file that is half fetched is taken away again; a terminal is put back.
            Job::Other(command @ (Command::Cp(_) | Command::Exec(_) | Command::Attach(_))) => {
                let mut interrupts = Interrupts::install().map_err(Failure::System)?;
                let result = work(&session(client), Job::Other(command), &mut interrupts).await;
                settle(&output, result, &mut interrupts).await
            }
            // Nothing has to be cleared away: signals end us as they end any program.
            job => {
                let result = other(&session(client), job).await;
                let written = output.finish().await;
                result.and_then(|status| written.map(|()| status))
            }
        };
    }
    let mut interrupts = Interrupts::install().map_err(Failure::System)?;
    let mut daemon = PrivateDaemon::start()?;
    let ready = tokio::select! {
        ready = daemon.ready() => ready.map_err(Failure::from),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    };
    let result = match ready {
        Err(failure) => Err(failure),
        Ok(client) => {
            let session = session(client);
            tokio::select! {
                result = work(&session, job, &mut interrupts) => result,
                lost = daemon.lost() => Err(lost.into()),
            }
        }
    };
    let home = daemon.home().display().to_string();
    tokio::select! {
        stopped = daemon.stop() => if let Err(complaint) = stopped {
            output.note(complaint);
        },
        // executord was told already, and is told again by our end.
        _ = interrupts.next() => output.note(format!("left at once; {home} may still be there")),
    }
    settle(&output, result, &mut interrupts).await
}

/// With a private executord every command is interruptible, for it has to be taken down.
async fn work(session: &Session, job: Job, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    match job {
        Job::Run(request, delivery, ending) => run::run(session, request, delivery, ending, interrupts).await,
        Job::Audit(args) => audit::audit(session, args, interrupts).await,
        Job::Cnab(work) => cnab::carry_out(session, work, interrupts).await,
        job => tokio::select! {
            result = other(session, job) => result,
            signal = interrupts.next() => Err(Failure::Interrupted(signal)),
        },
    }
}

/// Waits until the output is written, unless its reader takes longer than the user's patience.
async fn settle(output: &Output, result: Result<u8, Failure>, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    if result.as_ref().is_err_and(Failure::is_hasty) {
        return result;
    }
    tokio::select! {
        written = output.finish() => result.and_then(|status| written.map(|()| status)),
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    }
}

async fn other(session: &Session, job: Job) -> Result<u8, Failure> {
    let work = async {
        let command = match job {
            Job::Rotate(request, delivery) => return rotate::rotate(session, request, delivery).await,
            Job::Image(job) => return image::image(session, job).await,
            Job::Run(..) | Job::Audit(_) | Job::Cnab(_) => return Ok(0), // carried out before
            Job::Other(command) => command,
        };
        let client = &session.client;
        match command {
            Command::Ps(args) => ps::ps(session, args).await,
            Command::Inspect(IdArg { id }) => ids::with(client, id, |id| inspect::inspect(session, id)).await,
            Command::Logs(args) => {
                ids::with(client, args.id.clone(), |id| logs::logs(session, LogsArgs { id, ..args.clone() })).await
            }
            Command::Cp(args) => cp::cp(session, args).await,
            Command::Wait(args) => wait::wait(session, args).await,
            Command::Stop(args) => stop::stop(session, args).await,
            Command::Signal(args) => {
                ids::with(client, args.id.clone(), |id| signal::signal(session, SignalArgs { id, ..args.clone() }))
                    .await
            }
            Command::Exec(args) => {
                ids::with(client, args.id.clone(), |id| exec::exec(session, ExecArgs { id, ..args.clone() })).await
            }
            Command::Attach(args) => {
                ids::with(client, args.id.clone(), |id| attach::attach(session, AttachArgs { id, ..args.clone() }))
                    .await
            }
            Command::Rm(args) => rm::rm(session, args).await,
            Command::Events(args) => events::events(session, args).await,
            Command::Info => info::info(session).await,
            Command::Secrets(args) => secrets::secrets(session, args).await,
            // Carried out before.
            Command::Run(_)
            | Command::Audit(_)
            | Command::Rotate(_)
            | Command::Image(_)
            | Command::Generate(_)
            | Command::Bindings(_)
            | Command::Cnab(_) => Ok(0),
        }
    };
    tokio::select! {
        result = work => result,
        // A reader that went away ends what would go on for ever.
        () = session.output.failed() => session.output.result().map(|()| 0),
    }
}

impl Session {
    /// Prints the JSON document or the text for people, whichever was asked for.
    async fn print(&self, document: &impl Serialize, text: impl FnOnce() -> String) {
        let text = if self.json { json::document(document) } else { text() };
        self.output.text(text).await;
    }

    /// Does the same with several containers at once, each by its id or a beginning of it: what became of each, in order.
    async fn each<F>(
        &self,
        ids: Vec<String>,
        work: impl Fn(Client, String) -> F + Clone + Send + Sync + 'static,
    ) -> Vec<(String, Result<Container, Failure>)>
    where
        F: Future<Output = Result<Container, Failure>> + Send,
    {
        let mut tasks = Vec::with_capacity(ids.len());
        for id in ids {
            let (client, work, asked) = (self.client.clone(), work.clone(), id.clone());
            let task = async move { ids::with(&client, asked, |id| work(client.clone(), id)).await };
            tasks.push((id, tokio::spawn(task)));
        }
        let mut done = Vec::with_capacity(tasks.len());
        for (id, task) in tasks {
            let lost = |error: tokio::task::JoinError| Err(Failure::System(std::io::Error::other(error)));
            done.push((id, task.await.unwrap_or_else(lost)));
        }
        done
    }

    /// Prints the documents of [`Session::each`], and gives the containers, or what failed.
    async fn told(&self, done: Vec<(String, Result<Container, Failure>)>) -> Result<Vec<Container>, Failure> {
        if let [(_, done)] = &done[..] {
            if let (Ok(container), true) = (done, self.json) {
                self.output.text(json::document(&json::Container::from(container))).await;
            }
        } else if self.json {
            let documents: Vec<json::Tried> = done.iter().map(|(id, done)| json::Tried::new(id, done)).collect();
            self.output.text(json::document(&documents)).await;
        }
        let all = done.len();
        let (mut containers, mut failures) = (Vec::with_capacity(all), Vec::new());
        for (_, done) in done {
            match done {
                Ok(container) => containers.push(container),
                Err(failure) => failures.push(failure),
            }
        }
        match failures.len() {
            0 => Ok(containers),
            1 => Err(failures.swap_remove(0)),
            failed => {
                failures.iter().for_each(|failure| self.output.note(failure.describe()));
                Err(Failure::Several { failed, all })
            }
        }
    }

    /// The end of a command that tried each of several things. One failure is the command's own; several are told one by
    /// one.
    async fn tried<T: Serialize>(&self, done: &[T], mut failures: Vec<Failure>) -> Result<u8, Failure> {
        if self.json {
            self.output.text(json::document(&done)).await;
        }
        if failures.len() < 2 {
            return failures.pop().map_or(Ok(0), Err);
        }
        for failure in &failures {
            self.output.note(failure.describe());
        }
        Err(Failure::Several { failed: failures.len(), all: done.len() })
    }

    /// Says why a container ended in another way than by its process, unless the log has told so already.
    fn explain_end(&self, container: &Container, told: &[String]) {
        let Some(result) = &container.result else { return };
        if result.oom_killed {
            let limit = container.spec.as_ref().and_then(|spec| spec.limits).map_or(0, |limits| limits.memory_bytes);
            self.output
                .note(format!("the memory limit ({}) was reached: the kernel killed a process", human::bytes(limit)));
        }
        if result.output_incomplete && !told.iter().any(|line| line.contains(human::OUTPUT_INCOMPLETE)) {
            self.output.note(human::OUTPUT_INCOMPLETE);
        }
        if let Some(outputs) = &result.outputs {
            self.output.note(format!("outputs: {}", crate::text::plain(&human::outputs(outputs))));
        }
        match &result.failure {
            Some(failure) if !told.iter().any(|line| line.contains(&failure.message)) => {
                self.output.note(crate::text::plain(&failure.message));
            }
            None if Outcome::of(Some(result)).status() == OURS && result.exit.is_none() => {
                self.output.note(format!("executord does not know how {} ended", container.id));
            }
            _ => {}
        }
    }
}

/// Asks for a container, over the failures that `away` tells.
async fn container(session: &Session, id: &str, doing: &str, away: fn(&Status) -> bool) -> Result<Container, Failure> {
    let call = |mut rpc: ExecutorClient<_>| {
        let request = GetRequest { id: id.to_owned() };
        async move { rpc.get(request).await }
    };
    expected(session.client.patiently(doing, away, call).await?.container, doing)
}

/// A container that an answer must carry.
fn expected(container: Option<Container>, doing: &str) -> Result<Container, Failure> {
    container.ok_or_else(|| Failure::Refused {
        code: tonic::Code::Internal,
        message: format!("{doing}: executord's answer lacks the container"),
    })
}
