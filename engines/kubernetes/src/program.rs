//! Main function of `executor-cri`: parses the command line, serves until a signal, and returns an exit code.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, Parser as _};
use executor_client::Client;
use executor_streams::{Limits, Streams};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::check;
use crate::config::{ConfigFile, Csi};
use crate::csi;
use crate::follow;
use crate::node::Node;
use crate::options::Options;
use crate::serve::{self, Socket};
use crate::services;
use crate::store::Store;
use crate::volumes::{self, Volumes};

/// Runs the program with the command line of this process.
pub fn main() -> ExitCode {
    executor_sys::startup::abort_on_panic();
    let options = Options::parse();
    if let Some(directory) = &options.generate_man {
        return match clap_mangen::generate_to(Options::command(), directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("cannot write the manual page: {error}")),
        };
    }
    // Log this crate only: libraries log the frames of connections.
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let filter = Targets::new().with_target(env!("CARGO_CRATE_NAME"), options.log);
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    if executor_secrets::CONTROL {
        tracing::error!("this build does not wipe secrets: it is for tests only");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}")),
    };
    if options.check {
        return match runtime.block_on(check(&options)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(problem) => fail(&problem),
        };
    }
    match runtime.block_on(run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(&problem),
    }
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("executor-cri: {problem}");
    ExitCode::FAILURE
}

/// Prints the missing settings of a node. Returns true if no missing setting affects every pod.
async fn check(options: &Options) -> Result<bool, String> {
    let client = Client::connect(&options.executor).await.map_err(|error| error.to_string())?;
    let config = ConfigFile::new(options.config.as_deref()).read()?;
    let kubelet = check::read(&options.kubelet_config);
    if let Err(error) = &kubelet {
        let file = options.kubelet_config.display();
        eprintln!("executor-cri: cannot read {file}: {error}; the settings of the kubelet were not checked");
    }
    let of_what = if kubelet.is_ok() { "" } else { " of the host and of executord" };
    let missing = check::check(&client, options, &config, kubelet.ok().as_deref()).await;
    let missing = missing.map_err(|error| error.to_string())?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&missing).map_err(|error| error.to_string())?);
    } else if missing.is_empty() {
        println!("no settings{of_what} are missing for ordinary pods, system pods and pods with user namespaces");
    }
    for setting in missing.iter().filter(|_| !options.json) {
        let pods = if setting.is_needed { "every pod" } else { "some pods" };
        println!("{pods}: {}", setting.what);
        if !setting.line.is_empty() {
            println!("    {}", setting.line);
        }
    }
    Ok(!missing.iter().any(|setting| setting.is_needed))
}

async fn run(options: Options) -> Result<(), String> {
    let config_file = ConfigFile::new(options.config.as_deref());
    let config = config_file.read()?;
    let store = Store::open(&options.state_dir)?;
    let csi_settings = config.csi.clone();
    let with_tokens = csi_settings.iter().flat_map(|csi| csi.tokens.keys().cloned()).collect();
    let volumes = Volumes::open(options.state_dir.join("volumes"), with_tokens)?;
    let client = Client::connect_with_keepalive(&options.executor).await.map_err(|error| error.to_string())?;
    let bound = Streams::bind(options.streaming_port, Limits::default()).await;
    let (streams, streaming) =
        bound.map_err(|error| format!("cannot listen on port {} of 127.0.0.1: {error}", options.streaming_port))?;
    let node = Node::new(client, store, volumes, streams, &options, config, config_file);
    // Read the state of executord before the first call is served.
    let cursor = follow::recover(&node).await.map_err(|error| error.to_string())?;
    let socket = Socket::bind(&options.socket)?;
    tokio::spawn(streaming.run());
    tokio::spawn(follow::follow(Arc::clone(&node), cursor));
    let (stop, stopping) = watch::channel(false);
    let mut serving = vec![tokio::spawn(serve::serve(socket, services::routes(&node), stopping.clone()))];
    if let Some(settings) = csi_settings {
        serving.extend(serve_plugin(&node, &settings, &stopping)?);
    }
    tracing::info!(socket = %options.socket.display(), executord = %options.executor.display(), "serving runtime.v1");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
        return Err("cannot install the signal handlers".into());
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let _ = stop.send(true);
    for served in serving {
        let _ = served.await;
    }
    Ok(())
}

/// Serves the plugin for volumes and the registration of the plugin.
///
/// # Errors
/// Returns an error if this process cannot mount volumes, or cannot create a socket.
fn serve_plugin(
    node: &Arc<Node>,
    settings: &Csi,
    stopping: &watch::Receiver<bool>,
) -> Result<[tokio::task::JoinHandle<()>; 2], String> {
    volumes::check_privilege().map_err(|error| {
        format!(
            "cri.csi: cannot mount volumes: {error}; the guide for Kubernetes nodes has the settings of the service"
        )
    })?;
    let [plugin, registration] = csi::sockets(settings);
    let [services, registering] = csi::routes(node, settings);
    let (plugin, registration) = (Socket::bind(&plugin)?, Socket::bind(&registration)?);
    tracing::info!(name = settings.driver, "serving csi.v1");
    let serve = |socket, routes| tokio::spawn(serve::serve(socket, routes, stopping.clone()));
    Ok([serve(plugin, services), serve(registration, registering)])
}
